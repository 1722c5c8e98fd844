"""Write an archive of the classes that Spark loads, with which its JVM starts in half the time.

A JVM takes classes from such an archive without parsing and verifying them (class data sharing,
JEP 350). `tools/run_tests.py` gives it to the tests, which start Spark about a hundred times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_LOADS: Final = Path(__file__).with_name("load_spark_classes.py")
_QUIET: Final = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def write(archive: Path) -> bool:
    """Write the archive, which takes 40 s; return whether Java could."""
    options = f"{_QUIET} -XX:ArchiveClassesAtExit={archive}"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
    # The pipe is open until the JVM, which outlives Python, has written the archive.
    done = subprocess.run(
        [sys.executable, _LOADS], env=environment, stdout=subprocess.PIPE, check=False
    )
    return done.returncode == 0 and archive.exists()


def options(archive: Path) -> str:
    """Return the options (`SPARK_SUBMIT_OPTS`) of a JVM that uses the archive if it can."""
    return f"{_QUIET} -XX:SharedArchiveFile={archive}"
