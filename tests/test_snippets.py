"""The Python of the documentation passes the strict type checkers that users run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

NAMES = {
    "spark.md": (
        "from pyspark.sql import DataFrame, SparkSession\n"
        "spark: SparkSession\nrows: DataFrame\nurl: str\nplace: str\n"
    )
}
"""Names that the fragments of a document use, as a stub."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with each snippet and example as a module of its own."""
    directory = tmp_path_factory.mktemp("snippets")
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(1)) + 1
            name = f"{document.stem.lower()}_line_{line}.py"
            start = f"from {document.stem}_names import *\n" if document.name in NAMES else ""
            (directory / name).write_text(start + block.group(1), "utf-8")
        if document.name in NAMES:
            (directory / f"{document.stem}_names.pyi").write_text(NAMES[document.name], "utf-8")
    for example in sorted((ROOT / "examples").glob("*.py")):
        (directory / f"example_{example.name}").write_text(example.read_text("utf-8"), "utf-8")
    return directory


def test_there_is_something_to_check(snippets: Path) -> None:
    names = {path.name for path in snippets.glob("*.py")}
    assert "example_produce.py" in names
    assert any(name.startswith("readme_line_") for name in names)


def test_mypy_accepts_them(snippets: Path) -> None:
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--strict"]
    files = [str(path) for path in sorted(snippets.glob("*.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *config, *files],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(snippets)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_them(snippets: Path) -> None:
    settings = {
        "include": ["."],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "stubPath": str(ROOT / "typings"),
        "reportMissingTypeStubs": False,
        "reportMissingModuleSource": False,
    }
    config = snippets / "pyrightconfig.json"
    config.write_text(json.dumps(settings), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
