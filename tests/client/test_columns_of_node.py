"""Readers of columns and readers of messages see the same topic."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

import coherer
from coherer._client.tubemq.client import Client
from coherer._server.node.node import Node
from coherer._wire.tubemq.names import Partition
from coherer.message import Message
from coherer.testing import async_embedded_node

pytest.importorskip("pyarrow")

OFFSET_BITS = 48
NOON = datetime.fromisoformat("2024-01-02T12:00")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with async_embedded_node(tmp_path) as node:
        node.create_topic("demo", 1)
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with coherer.connect(node.url) as client:
        assert isinstance(client, Client)
        yield client


async def fill(node: Node, count: int) -> None:
    """Messages of both protocols, with and without tags, times and properties, some compressed."""
    large = b"compressible " * 1000
    tube = [
        Message("demo", b"plain"),
        Message("demo", b"tagged", "UA", NOON, (), {"flight": "1545"}),
        Message("demo", b"", None, None, (), {"flight": "ü"}),
    ]
    rocket = [
        Message("demo", b"plain"),
        Message("demo", b"keyed", "UA", None, ("k1", "k2"), {"list": "a,b=c", "flight": "1545"}),
        Message("demo", large, "AA"),
    ]
    for _ in range(count):
        for url, messages in ((node.url, tube), (node.rocketmq_url, rocket)):
            async with coherer.connect(url) as client, client.producer("demo") as producer:
                for message in messages:
                    if message.body or url != node.url:  # TubeMQ has no empty messages
                        await producer.send(message)


async def rows_of(
    client: Client, start: int, end: int | None, *, columns: bool
) -> tuple[list[dict[str, object]], int, int]:
    """The rows of a range, the position after it, and how many messages it lacks."""
    [partition] = await client.partitions("demo")
    found: list[dict[str, object]] = []
    async with client.reader(partition, start, end=end, columns=columns) as reader:
        while (batch := await reader.read()) is not None:
            found += batch.to_arrow().to_pylist()
        return found, reader.position, reader.left_out


def overwrite(directory: Path, at: int, data: bytes) -> None:
    """Damage the log of a running node."""
    [path] = directory.glob("**/commitlog/0*")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def position_of(row: dict[str, object]) -> int:
    """Where a message is in the log."""
    number = row["id"]
    assert isinstance(number, int)
    return number & (1 << OFFSET_BITS) - 1


async def test_messages_of_both_protocols(node: Node, client: Client) -> None:
    await fill(node, 3)
    every, _, _ = await rows_of(client, 0, None, columns=False)
    assert len(every) == 15
    for start, end in ((0, None), (0, 4), (4, 5), (4, 15), (7, 99)):
        one = await rows_of(client, start, end, columns=False)
        assert await rows_of(client, start, end, columns=True) == one


async def test_small_reads(tmp_path: Path) -> None:
    """More messages than one answer holds, and readers that follow the end of the partition."""
    async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
        assert isinstance(client, Client)
        node.create_topic("demo", 1)
        [partition] = await client.partitions("demo")
        async with (
            client.producer("demo") as producer,
            client.reader(partition, 0, end=1 << 40, columns=True) as reader,
        ):
            seen: list[object] = []
            for _ in range(2):
                report = await producer.send_many([Message("demo", b"x" * 1000)] * 6000)
                report.check()
                while (batch := await reader.read()) is not None:
                    assert batch.size_bytes < 3 << 20
                    seen += batch.to_arrow(["offset"]).column("offset").to_pylist()
            assert seen == [*range(12_000)]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("at", "data", "lost"),
    [
        pytest.param(0, b"\0\0\1", 1, id="size"),
        pytest.param(4, b"bad", 1, id="magic number"),
        pytest.param(27, b"\xff", 1, id="offset"),
    ],
)
async def test_a_damaged_head(
    node: Node,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    at: int,
    data: bytes,
    lost: int,
    columns: bool,
) -> None:
    await fill(node, 2)
    every, _, _ = await rows_of(client, 0, None, columns=False)
    overwrite(tmp_path, position_of(every[3]) + at, data)
    with caplog.at_level(logging.WARNING):
        found = await rows_of(client, 0, None, columns=columns)
    assert found == (every[:3] + every[3 + lost :], len(every), lost)
    assert "stored records from offset 0 on cannot be read" in caplog.text
    assert await rows_of(client, 0, None, columns=not columns) == found


@pytest.mark.parametrize("acknowledged", [0, 2])
async def test_a_consumer_asks_for_messages_where_a_head_is_damaged(
    node: Node,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    acknowledged: int,
) -> None:
    async with client.consumer("g", "demo", start="earliest") as consumer:
        for number in range(acknowledged):
            async with client.producer("demo") as producer:
                await producer.send(Message("demo", b"%d" % number))
            early = await consumer.receive()
            assert early is not None
            assert early.bodies() == [b"%d" % number]
            await consumer.commit(early)
    await fill(node, 2)
    every, _, _ = await rows_of(client, acknowledged, None, columns=False)
    overwrite(tmp_path, position_of(every[3]) + 4, b"bad")
    left: list[object] = [row["offset"] for row in (every[:3] + every[4:])]
    async with client.consumer("g", "demo", start="earliest") as consumer:
        seen: list[object] = []
        with caplog.at_level(logging.WARNING):
            while len(seen) < len(left):
                batch = await consumer.receive()
                assert batch is not None
                seen += batch.offsets()
                await consumer.commit(batch)
        assert seen == left
        assert f"stored records from offset {acknowledged} on cannot be read" in caplog.text
        assert f"(offset {acknowledged + 3})" in caplog.text


async def test_a_damaged_body(node: Node, client: Client, tmp_path: Path) -> None:
    await fill(node, 1)
    every, _, _ = await rows_of(client, 0, None, columns=False)
    for row in (every[0], every[4]):
        overwrite(tmp_path, position_of(row) + 90, b"\xff")
    one = await rows_of(client, 0, None, columns=False)
    assert await rows_of(client, 0, None, columns=True) == one
    assert (len(one[0]), one[2]) == (len(every) - 2, 2)


async def test_the_broker_answers_other_readers_at_the_same_time(
    node: Node, client: Client
) -> None:
    """A reader of columns does not move the position of a group."""
    await fill(node, 1)
    [partition] = await client.partitions("demo")
    assert isinstance(partition, Partition)
    async with client.consumer("g", "demo", start="earliest") as consumer:
        batch = await consumer.receive()
        assert batch is not None
        assert len((await rows_of(client, 0, None, columns=True))[0]) == 5
        await consumer.commit(batch)
        assert len(batch) == 5
