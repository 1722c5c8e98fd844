"""Every plug has a dependency group, an extra, tests, and a line in the reference."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGS = sorted(
    path.stem
    for path in (ROOT / "src/coherer/integrations").iterdir()
    if not path.name.startswith("_")
)


def test_each_group_of_tests_belongs_to_a_plug() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    prefix = "integration-"
    assert [
        name.removeprefix(prefix) for name in sorted(groups) if name.startswith(prefix)
    ] == PLUGS
    tested = sorted(path.parent.name for path in (ROOT / "tests/integrations").glob("*/test_*.py"))
    assert sorted(set(tested)) == PLUGS


def test_the_contract_between_plugs_lists_all() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [modules] = [
        one["modules"] for one in contracts if one["name"] == "Plugs do not know each other"
    ]
    assert modules == [f"coherer.integrations.{plug}" for plug in PLUGS]


@pytest.mark.parametrize("plug", PLUGS)
def test_a_plug_is_in_the_reference(plug: str) -> None:
    pages = (ROOT / "docs/reference").glob("*.md")
    assert any(f"coherer.integrations.{plug}" in page.read_text("utf-8") for page in pages)
