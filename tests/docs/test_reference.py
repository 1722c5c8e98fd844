"""Every public name is on its page of the reference, once."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
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


def docstrings(module: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module's public classes and functions, and of their public members."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            members = vars(value).items() if inspect.isclass(value) else ()
            yield name, value.__doc__ or ""
            for member, own in members:
                if not member.startswith("_"):
                    yield f"{name}.{member}", getattr(own, "__doc__", None) or ""


@pytest.mark.parametrize(
    "module",
    ["coherer", *(f"coherer.{name}" for name in ("admin", "rocketmq", "tubemq", "testing"))],
)
def test_public_docstrings_name_nothing_private(module: str) -> None:
    private = re.compile(r"`(?:[\w.]*\.)?_[a-z][\w.]*`|see the module|see `start_position`")
    found = [name for name, text in docstrings(module) if private.search(text)]
    assert found == []
