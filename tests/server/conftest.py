"""A node with the topic `demo` of four partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from tests.server.node_harness import options


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path / "node")) as node:
        node.create_topic("demo", 4)
        yield node
