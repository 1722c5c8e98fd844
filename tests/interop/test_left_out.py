"""Java's TubeMQ consumers on our broker, and messages that nobody can deliver to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command, encode
from coherer.testing import async_embedded_node
from tests.interop.peers.cache import UnavailableError, prepare
from tests.interop.peers.clients import JavaClients, closing
from tests.interop.peers.driver import JavaDriver

pytestmark = pytest.mark.interop

DONE_S = 60
WAIT_MS = 5_000


@pytest.fixture
def java_clients(tmp_path: Path) -> Iterator[JavaClients]:
    try:
        system = prepare("tubemq").short_lived()
    except UnavailableError as error:
        pytest.skip(str(error))
    driver = JavaDriver(system, tmp_path, heap_mb=256)
    yield JavaClients(driver, lambda: driver)
    driver.stop()


async def send(node: Node, body: bytes, *, says_compressed: bool) -> None:
    """One message as a RocketMQ client sends it, whatever its flag says."""
    fields = {
        "producerGroup": "raw",
        "topic": "demo",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": str(int(says_compressed)),
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "",
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", node.rocketmq_port)
    writer.write(encode(Command(RequestCode.SEND_MESSAGE, fields=fields, body=body)))
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert b'"code":0' in await reader.readexactly(size)
    writer.close()
    await writer.wait_closed()


async def test_they_move_past_them(tmp_path: Path, java_clients: JavaClients) -> None:
    """One alone in a get, one between others, and one behind them; and what comes afterwards."""
    async with async_embedded_node(tmp_path / "node") as node:
        node.create_topic("demo", 1)
        await send(node, b"bad", says_compressed=True)
        master = node.url.removeprefix("tubemq://")
        puller = await java_clients.puller(master, "readers", {"demo": []})
        found: list[bytes] = []
        async with closing(puller), asyncio.timeout(DONE_S):
            assert await puller.get(WAIT_MS) is None, "there is nothing that it could have"
            for number in range(6):
                await send(node, b"%d" % number, says_compressed=number in {2, 5})
            while len(found) < 4:
                package = await puller.get(WAIT_MS)
                if package is not None:
                    found += package.bodies
                    await puller.confirm(package)
            await send(node, b"last", says_compressed=False)
            while found[-1] != b"last":
                package = await puller.get(WAIT_MS)
                if package is not None:
                    found += package.bodies
                    assert await puller.confirm(package) == 8
    assert found == [b"0", b"1", b"3", b"4", b"last"]
