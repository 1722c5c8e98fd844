"""Check and test each plug of `coherer.integrations` in an environment of its own.

    python tools/test_integrations.py                      # every plug
    python tools/test_integrations.py kombu -x -k priority  # one, with options of pytest

The projects that the plugs serve pin libraries, each in its own way. So that no pin reaches the
other tests, the plug NAME is installed into `.venv/integrations/NAME`, with its dependency group
`integration-NAME` (which names its extra). mypy and pyright come from the environment of the
checks, and look at the plug's libraries in its own.

A test that fails is run once more, alone, as those of `tools/run_tests.py`. `make test` calls this
program at its end; if there is no time for all plugs (`time_left.py`), some are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from run_tests import Group, run_twice
from time_left import end_of

ROOT: Final = Path(__file__).parent.parent
PLUGS: Final = ROOT / "src/coherer/integrations"
SHARED: Final = sorted(PLUGS.glob("_*.py"))
"""The modules that plugs share; they are checked with each of them."""
TESTS: Final = ROOT / "tests/integrations"
PYTEST_OPTIONS: Final = (
    "--import-mode=importlib --strict-markers --strict-config --doctest-modules -p no:cacheprovider"
)
"""In place of those in `pyproject.toml`, which leave the plugs out."""


def plugs() -> list[str]:
    """Return the names of the plugs that have tests."""
    return sorted({path.parent.name for path in TESTS.glob("*/test_*.py")})


def source(plug: str) -> Path:
    """Return the package or the module of a plug."""
    package = PLUGS / plug
    return package if package.is_dir() else package.with_suffix(".py")


def environment(plug: str) -> Path:
    """Return the plug's Python, after installing what has changed in `pyproject.toml`."""
    place = ROOT / ".venv/integrations" / plug
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = place / "installed"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        if not python.exists():
            venv.create(place, with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
        group = f"integration-{plug}"
        run(python, "-m", "pip", "install", "--quiet", "-e", str(ROOT), "--group", group)
        stamp.write_text(wanted)
    return python


def pyright_settings(plug: str) -> Path:
    """Write pyright's settings for a plug: those of `pyproject.toml`, which leave the folder out.

    pyright also ignores files on its command line that the settings leave out, without a word.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    place = ROOT / ".venv/integrations" / plug
    settings = project["tool"]["pyright"] | {
        "include": [os.path.relpath(path, place) for path in (source(plug), *SHARED)],
        "exclude": [],
    }
    file = place / "pyright.json"
    file.write_text(json.dumps(settings), "utf-8")
    return file


def run(*command: str | Path) -> None:
    """Run a command in the root of the checkout.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True)


def check(plug: str, *chosen: str) -> None:
    """Check the types of a plug, then run its tests and the examples in its docstrings.

    Raises:
        CalledProcessError: a check or a test failed.
    """
    python = environment(plug)
    path = source(plug)
    mypy = ("-m", "mypy", "--follow-imports=silent", "--python-executable", python)
    # One by one: `pyproject.toml` leaves the folder out for the environment of the checks.
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    run(sys.executable, *mypy, *files, *SHARED)
    run(sys.executable, "-m", "pyright", "--pythonpath", python, "-p", pyright_settings(plug))
    tests = ("-n", "2", str(TESTS / plug), str(path), *map(str, SHARED), *chosen)
    code = run_twice(
        [Group(tests)], python=python, options=[f"--override-ini=addopts={PYTEST_OPTIONS}"]
    )
    if code:
        raise subprocess.CalledProcessError(code, ["pytest", *tests])


def main(arguments: list[str]) -> int:
    """Check one plug, if the first argument names it, or all; return the exit code."""
    console = Console()
    known = plugs()
    one = arguments[:1] if arguments[:1] and arguments[0] in known else []
    table = Table("plug", "result", "s", title="integrations", title_justify="left")
    code = 0
    end = math.inf if one else end_of(1.0)
    # Those at the end may be left out: not always the same ones.
    for plug in one or random.sample(known, len(known)):
        start = time.monotonic()
        if time.monotonic() > end:
            table.add_row(plug, "left out: the time of this group of tests is used up", "0")
            continue
        try:
            check(plug, *arguments[len(one) :])
        except subprocess.CalledProcessError as error:
            code = 1
            result = f"failed: {' '.join(map(str, error.cmd[:4]))} …"
        else:
            result = "passed"
        table.add_row(plug, result, f"{time.monotonic() - start:.0f}")
    console.print(table)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
