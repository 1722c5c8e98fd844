"""A node whose disk is full: responses to sends, its stop, and the next start."""

from __future__ import annotations

import errno
import logging
import random
from pathlib import Path

import pytest

import coherer
from coherer._server.node.node import Node, NodeOptions
from coherer._store import OsFiles
from coherer.errors import RefusedError, UsageError
from tests.server.node_harness import options


class Disk:
    """The disk of this machine, which the test fills up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        write = OsFiles.write

        def refusing(files: OsFiles, handle: int, data: bytes, offset: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(files, handle, data, offset)

        monkeypatch.setattr(OsFiles, "write", refusing)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def url_of(node: Node, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_sends_are_refused_while_the_disk_is_full(
    tmp_path: Path, disk: Disk, protocol: str
) -> None:
    async with Node(options(tmp_path)) as node:
        node.create_topic("orders", 1)
        async with (
            coherer.connect(url_of(node, protocol)) as client,
            client.producer("orders") as producer,
        ):
            await producer.send(coherer.Message("orders", b"before"))
            await node.ready()
            assert node.not_ready() is None
            disk.full = True
            with pytest.raises(RefusedError) as caught:
                await producer.send(coherer.Message("orders", b"refused"))
            assert "The disk is full" in (node.not_ready() or ""), "/health/ready answers 503"
            error = caught.value
            assert error.code == {"tubemq": 419, "rocketmq": 14}[protocol]
            assert "The disk is full: could not write the log." in error.text
            assert "Free disk space on that server" in error.hint
            assert "Send more slowly" not in str(error)
            disk.full = False
            await producer.send(coherer.Message("orders", b"after"))
            assert node.not_ready() is None


async def test_it_stops_in_order(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path)) as node:
        node.create_topic("orders", 1)
        async with coherer.connect(node.rocketmq_url) as client:
            async with client.producer("orders") as producer:
                for number in range(20):
                    message = coherer.Message("orders", b"%d" % number, keys=("k",))
                    await producer.send(message)
            async with client.consumer("readers", "orders", start="earliest") as consumer:
                async for message in consumer:
                    message.ack()
                    break
        disk.full = True
        caplog.clear()
        caplog.set_level(logging.WARNING)
    # Leaving the block has raised nothing.
    told = [record for record in caplog.records if "disk is full" in record.getMessage()]
    assert any("safe in the log" in record.getMessage() for record in told)
    assert (tmp_path / "abort").exists()
    disk.full = False
    async with (
        Node(options(tmp_path)) as node,
        coherer.connect(node.url) as client,
        client.consumer("others", "orders", start="earliest") as consumer,
    ):
        bodies: list[bytes] = []
        async for received in consumer:
            bodies.append(received.body)
            if len(bodies) == 20:
                break
        assert bodies == [b"%d" % number for number in range(20)]
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("given", [{"retention_bytes": 1 << 20}, {"retention_bytes": 0}])
def test_a_limit_that_cannot_be_kept_is_refused(tmp_path: Path, given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"retention_bytes .* or more"):
        NodeOptions(directory=tmp_path, **given)
    with pytest.raises(UsageError, match=r"retention_bytes .* 2,147,483,648 or more"):
        NodeOptions(directory=tmp_path, retention_bytes=1 << 30, segment_bytes=1 << 30)


async def test_a_limit_that_an_old_log_cannot_keep_is_refused(tmp_path: Path) -> None:
    async with Node(options(tmp_path, segment_bytes=1 << 26)):
        pass
    async with (
        Node(options(tmp_path, segment_bytes=1 << 26)) as node,
        coherer.connect(node.url) as client,
        client.producer("t") as producer,
    ):
        await producer.send(coherer.Message("t", b"x"))
    limited = options(tmp_path, segment_bytes=None, retention_bytes=1 << 26)
    with pytest.raises(UsageError, match="134,217,728 or more"):
        await Node(limited).start()
    async with Node(options(tmp_path, segment_bytes=None, retention_bytes=1 << 27)):
        pass


async def test_a_fast_producer_does_not_outrun_the_limit(tmp_path: Path) -> None:
    limit = 16 << 20
    given = options(tmp_path, segment_bytes=None, retention_bytes=limit)
    segment = given.log_file_bytes()
    assert segment < 5 << 20
    async with Node(given) as node:
        assert node.core is not None
        store, largest = node.core.store, 0
        body = random.Random(1).randbytes(65_536)  # nothing that could be compressed
        async with coherer.connect(node.rocketmq_url) as client, client.producer("t") as producer:
            for _ in range(10):
                sent = await producer.send_many(coherer.Message("t", body) for _ in range(64))
                assert not sent.failed
                largest = max(largest, store.end_offset - store.min_offset)
    assert limit < largest <= limit + segment
