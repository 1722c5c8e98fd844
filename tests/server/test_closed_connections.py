"""What clients that have gone leave behind in a node."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from coherer import _net as net
from coherer.testing import async_embedded_node
from tests.waiting import until


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections() -> int:
    return sum(isinstance(one, net.Connection) for one in gc.get_objects())


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
@pytest.mark.usefixtures("no_collector")
async def test_their_memory_is_free_at_once(protocol: str) -> None:
    """The collector runs seldom in a large process, and a node can have thousands of clients that
    come and go in a minute."""
    async with async_embedded_node() as node:
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        before = connections()
        for _ in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.close()
            await writer.wait_closed()
            del writer
        await until(lambda: connections() <= before)
