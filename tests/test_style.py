"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [p for p in sorted((ROOT / "src").rglob("*.py")) if not p.name.endswith("_pb2.py")]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [ROOT / name for name in names if name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_files_and_functions_hold_one_idea(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name


def test_tests_of_one_idea_have_a_file() -> None:
    lengths = {str(path): path.read_text("utf-8").count("\n") for path in TESTS}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES_MAX} == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_nothing_is_left_unfinished() -> None:
    words = ["TO" + "DO", "FIX" + "ME", "XX" + "X ", "NotImplemented" + "Error"]
    for path in tracked():
        if path.suffix in {".py", ".md", ".java", ".toml"} and path.exists():
            text = path.read_text("utf-8")
            assert not [word for word in words if re.search(rf"\b{word}", text)], path
