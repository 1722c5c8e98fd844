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
THIRD_PARTY = {"landing.md", "decoding.md", "arrow.md"}
"""Their programs use libraries whose own types strict checkers reject; other tests run them."""

PLUGS = {"airflow.md", "celery.md", "dramatiq.md", "faststream.md", "taskiq.md"}
"""Their programs use libraries of the plugs' environments, where other tests run them."""

NOT_INSTALLED = ("testcontainers",)
"""Libraries that examples mention, and that the checks do not install."""

DOCUMENTS = [
    ROOT / "README.md",
    *(
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.parent.name != "protocol" and path.name not in THIRD_PARTY | PLUGS
    ),
]
"""The pages about protocols have records of experiments instead of examples."""

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

NAMES = {
    "docs/spark.md": (
        "from pyspark.sql import DataFrame, SparkSession\n"
        "spark: SparkSession\nrows: DataFrame\nstream: DataFrame\nurl: str\ncheckpoint: str\n"
    ),
}
"""Names that the fragments of a document use, as a stub."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with each snippet and example as a module of its own."""
    directory = tmp_path_factory.mktemp("snippets")
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        relative = document.relative_to(ROOT).as_posix()
        title = re.sub(r"\W", "_", relative.removesuffix(".md").lower())
        for block in BLOCK.finditer(text):
            if block.group(1).startswith(tuple(f"from {name}" for name in NOT_INSTALLED)):
                continue
            line = text.count("\n", 0, block.start(1)) + 1
            name = f"{title}_line_{line}.py"
            start = f"from {title}_names import *\n" if relative in NAMES else ""
            (directory / name).write_text(start + block.group(1), "utf-8")
        if relative in NAMES:
            (directory / f"{title}_names.pyi").write_text(NAMES[relative], "utf-8")
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
