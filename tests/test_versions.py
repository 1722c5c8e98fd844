"""One list of Pythons and systems, the same wherever the project states it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import coherer

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CLASSIFIERS = "\n".join(PROJECT["project"]["classifiers"])
PYTHONS = re.findall(r"Python :: (3\.\d+)", CLASSIFIERS)
SYSTEMS = re.findall(r"Operating System :: .*?(\w+)$", CLASSIFIERS, re.MULTILINE)


def row(first: str) -> str:
    """A row of the page about compatibility."""
    page = (ROOT / "docs/compatibility.md").read_text("utf-8")
    (found,) = re.findall(rf"^\| {first} \| ([^|]*)\|", page, re.MULTILINE)
    return str(found)


def test_the_lists_agree() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (sentence,) = re.findall(r"Coherer runs on Python (.*), and is tested on (.*)\. It", readme)
    assert re.findall(r"3\.\d+", sentence[0]) == PYTHONS
    assert sentence[1] == " and ".join(SYSTEMS)
    assert re.findall(r"3\.\d+", row("Python")) == PYTHONS
    assert row("System").startswith(", ".join(SYSTEMS) + ";")
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"


def test_the_workflow_runs_them() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    matrix = workflow["jobs"]["matrix"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert (
        [one.partition("-")[0] for one in matrix["system"]]
        == ["ubuntu"]
        == [{"Linux": "ubuntu"}[name] for name in SYSTEMS]
    )


def test_the_version_has_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    stated = (ROOT / PROJECT["tool"]["hatch"]["version"]["path"]).read_text("utf-8")
    assert f'"{coherer.__version__}"' in stated
