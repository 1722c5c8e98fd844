"""The Python that Spark's processes on this machine run.

Spark puts its zipped copy of PySpark first on their path. Python keeps no compiled code for a zip,
so each new process compiles PySpark again, which takes half a second: for each stream, and for each
of the five kinds of processes that a session starts once. A PySpark that was installed with pip
lies beside its zip, with compiled code. So a small script in front of Python removes Spark's copies
from the path, and Python finds the installed one.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PREFIX: Final = "coherer-python-"

_SCRIPT: Final = """\
#!/bin/sh
set -f
IFS=:
kept=
for path in $PYTHONPATH; do
  case $path in
    {spark}/*) ;;
    *) kept=$kept${{kept:+:}}$path ;;
  esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def choose(*, local: bool) -> bool:
    """Have Spark run this Python, unless `PYSPARK_PYTHON` names another one.

    Args:
        local: all processes are on this machine, so that they can run a script of this process.

    Returns:
        Whether Spark runs this Python.
    """
    named = os.environ.get("PYSPARK_PYTHON", "")
    inherited = Path(named).parent.name.startswith(_PREFIX)
    if named and not inherited:
        return named == sys.executable
    spark = _installed() if local and os.name == "posix" else None
    script = None if spark is None else _script(spark)
    os.environ["PYSPARK_PYTHON"] = sys.executable if script is None else str(script)
    return True


@cache
def _script(spark: Path) -> Path:
    """The script, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    text = _SCRIPT.format(spark=shlex.quote(str(spark)), python=shlex.quote(sys.executable))
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return script


def _installed() -> Path | None:
    """The folder of a PySpark that is installed with its zip, if Spark will start from there."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    spark = Path(spec.origin).parent
    home = os.environ.get("SPARK_HOME")
    if home is not None and Path(home).resolve() != spark.resolve():
        return None
    return spark if (spark / "python" / "lib" / "pyspark.zip").exists() else None
