"""Fixtures: names that no other test uses."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4()}"
