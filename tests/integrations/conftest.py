"""Fixtures that the tests of several plugs share: a node, and the address of what they test."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from coherer.testing import EmbeddedNode, embedded_node


@pytest.fixture(scope="session")
def node() -> Generator[EmbeddedNode]:
    with embedded_node() as running:
        yield running


@pytest.fixture
def url(node: EmbeddedNode) -> str:
    """The node's URL, or `COHERER_PLUGS_URL`: that of another cluster, for a run by hand."""
    return os.environ.get("COHERER_PLUGS_URL", node.rocketmq_url)
