"""docs/architecture.md, or the docstring of a package, names every module."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from coherer.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "coherer"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
GENERATED = "_pb2"
BY_THEMSELVES = {"integrations"}
"""Each package in it belongs to another project, and is read together with that project."""


def names(text: str) -> set[str]:
    """The names between backticks; `index*` stands for all names that begin so."""
    spans = re.findall(r"`([^`]+)`", text)
    return {name for span in spans for name in re.findall(r"\w[\w*]*", span)}


def rows() -> dict[str, set[str]]:
    """The table of packages: each package of the first cells, and the names beside it."""
    table = PAGE.split("\n## Packages\n")[1].split("\n## ")[0]
    found: dict[str, set[str]] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            packages, contents = line.strip("|").split(" | ", 1)
            for package in re.findall(r"`([^`]+?)/?`", packages):
                found.setdefault(package, set()).update(names(contents))
    return found


ROWS = rows()
PACKAGES = sorted(
    path.parent.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("__init__.py")
    if path.parent != SOURCE
)


def row_of(package: str) -> str | None:
    """The most exact row for a package."""
    return max((one for one in ROWS if f"{package}/".startswith(f"{one}/")), key=len, default=None)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_and_its_modules_are_named(package: str) -> None:
    """In the row of the package, or in the docstring of the package."""
    row = row_of(package)
    modules = {path.stem for path in (SOURCE / package).glob("*.py")} - {"__init__"}
    assert row is not None or not modules, f"{package}/ has no row"
    if row is None or row in BY_THEMSELVES:
        return
    docstring = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text("utf-8")))
    known = ROWS[row] | names(docstring or "")
    if package == "cli":
        known |= {entry.module for entry in COMMANDS.values()}
    missing = {
        module
        for module in modules
        if not module.endswith(GENERATED) and not any(fnmatchcase(module, one) for one in known)
    }
    assert missing == set()


def test_the_packages_of_the_table_are_there() -> None:
    assert [row for row in ROWS if not (SOURCE / row).exists()] == []
