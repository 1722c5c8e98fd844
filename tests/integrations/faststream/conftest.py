"""Fixtures: names that no other test uses."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"topic{next(_numbers)}"
