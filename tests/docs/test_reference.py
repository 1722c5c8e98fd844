"""Every public name is on its page of the reference, once."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "docs/reference"
ELSEWHERE = {
    "coherer": {"CohererError", "admin", "blocking", "rocketmq", "spark", "testing", "tubemq"},
    "coherer.tubemq": {"Progress"},
}
"""Names that another page describes."""


def described(page: str, module: str) -> list[str]:
    """The names of a module that a page describes."""
    found: list[str] = []
    current = ""
    for line in (REFERENCE / page).read_text("utf-8").splitlines():
        if place := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
            current = place[1]
        elif (
            name := re.fullmatch(r"\.\. (?:auto\w+|py:data):: (\w+)", line)
        ) and current == module:
            found.append(name[1])
    return found


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("coherer", "coherer.md"),
        ("coherer.admin", "coherer.md"),
        ("coherer.rocketmq", "rocketmq.md"),
        ("coherer.tubemq", "tubemq.md"),
        ("coherer.testing", "testing.md"),
        ("coherer.spark", "spark.md"),
    ],
)
def test_every_name_is_described_once(module: str, page: str) -> None:
    found = described(page, module)
    assert len(found) == len(set(found))
    loaded = importlib.import_module(module)
    shared = set(described("coherer.md", "coherer")) if module != "coherer" else set()
    own = {
        name
        for name in set(loaded.__all__) - ELSEWHERE.get(module, set())
        if name not in shared or getattr(loaded, name) is not shared_value(name)
    }
    assert own == set(found)


def shared_value(name: str) -> object:
    return getattr(importlib.import_module("coherer"), name)


def test_every_blocking_name_is_described() -> None:
    loaded = importlib.import_module("coherer.blocking")
    found = described("blocking.md", "coherer.blocking")
    assert set(found) == set(loaded.__all__) - {"rocketmq", "tubemq"}
