"""The rules of the code base that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [p for p in sorted((ROOT / "src").rglob("*.py")) if not p.name.endswith("_pb2.py")]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTION_LINES_MAX = 60


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [ROOT / name for name in names if name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_functions_hold_one_idea(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


PRIVATE_ACCESS = {
    "os._exit": "ends a process without its exit handlers; documented",
    "self.producer._handle": "of the C++ client, which has no other way to set its log level",
    "self.consumer._handle": "as above",
    "consumer._handle": "as above",
}
"""Private names that tests use nevertheless, and why."""


def private_names(path: Path) -> Iterator[str]:
    """Private members of other objects that a file reads, writes, or replaces."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            yield from (name for name in names if re.search(r"(^|\.)_[^_.]+$", str(name)))


CLIENT_TESTS = ROOT / "tests/client"
"""They still reach into clients, and are not checked yet."""


@pytest.mark.parametrize(
    "path",
    [path for path in TESTS if CLIENT_TESTS not in path.parents],
    ids=lambda p: str(p.relative_to(ROOT / "tests")),
)
def test_tests_use_public_names(path: Path) -> None:
    assert [name for name in private_names(path) if name not in PRIVATE_ACCESS] == []


def test_nothing_is_left_unfinished() -> None:
    words = ["TO" + "DO", "FIX" + "ME", "XX" + "X ", "NotImplemented" + "Error"]
    for path in tracked():
        if path.suffix in {".py", ".md", ".java", ".toml"} and path.exists():
            text = path.read_text("utf-8")
            assert not [word for word in words if re.search(rf"\b{word}", text)], path
