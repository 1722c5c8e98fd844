"""A node with the topic `demo` of four partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from tests.server.node_harness import options
from tests.server.small_disk import mounted


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path / "node")) as node:
        node.create_topic("demo", 4)
        yield node


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB."""
    with mounted(tmp_path / "disk") as path:
        yield path
