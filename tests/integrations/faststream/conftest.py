"""Fixtures: a node, names that no other test uses, and a subscriber's events."""

from __future__ import annotations

import itertools
from collections.abc import Generator

import pytest

from coherer.testing import EmbeddedNode, embedded_node

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node() -> Generator[EmbeddedNode]:
    with embedded_node() as running:
        yield running


@pytest.fixture
def url(node: EmbeddedNode) -> str:
    return node.rocketmq_url


@pytest.fixture
def topic() -> str:
    return f"topic{next(_numbers)}"
