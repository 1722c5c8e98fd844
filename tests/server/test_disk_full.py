"""A node whose disk is full: responses to sends, its stop, and the next start."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from pathlib import Path

import pytest

import coherer
from coherer._server.core.disk import FORGET_MS, RESERVE_FILE, Disk
from coherer._server.node.node import Node, NodeOptions
from coherer._store import Draft, OsFiles
from coherer.errors import CohererError, RefusedError, StoreFullError, UsageError
from coherer.testing.clock import ManualClock
from tests.server.node_harness import options
from tests.waiting import until


class FillableDisk:
    """The disk of this machine, which the test fills up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = self.out_of_files = False
        write, open_file = OsFiles.write, OsFiles.open

        def refusing(files: OsFiles, handle: int, data: bytes, offset: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(files, handle, data, offset)

        def opening(files: OsFiles, path: Path, *, create: bool = False) -> int:
            if self.out_of_files:
                raise OSError(errno.EMFILE, "Too many open files")
            return open_file(files, path, create=create)

        monkeypatch.setattr(OsFiles, "write", refusing)
        monkeypatch.setattr(OsFiles, "open", opening)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FillableDisk:
    return FillableDisk(monkeypatch)


def url_of(node: Node, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_sends_are_refused_while_the_disk_is_full(
    tmp_path: Path, disk: FillableDisk, protocol: str
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
    tmp_path: Path, disk: FillableDisk, caplog: pytest.LogCaptureFixture
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


class Usage:
    """The size of a disk, which the test sets."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, _: Path) -> tuple[int, int, int]:
        return 10_000, 10_000 - self.free, self.free


def test_the_limit_of_free_space_has_a_hysteresis(tmp_path: Path) -> None:
    usage = Usage(1_000)
    disk = Disk(tmp_path, 1_000, ManualClock().now_ms, usage)
    assert disk.problem is None
    for free, refuses in (
        (999, True),
        (1_000, True),
        (1_499, True),
        (1_500, False),
        (1_001, False),
    ):
        usage.free = free
        disk.check()
        assert (disk.refusal is not None, disk.problem is not None) == (refuses, refuses), free


def test_a_refused_batch_is_remembered_until_one_of_its_size_is_stored(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = Disk(tmp_path, 0, clock.now_ms)
    disk.refused(StoreFullError("The disk is full."), 100_000)
    disk.stored(50)  # a small one fits into the rest of a block
    assert disk.problem == "The disk is full."
    disk.stored(100_000)
    assert disk.problem is None
    disk.refused(StoreFullError("The disk is full."), 100_000)
    clock.advance(FORGET_MS)
    disk.check()
    assert disk.problem is None


def test_a_disk_that_cannot_be_measured_is_as_full_as_before(tmp_path: Path) -> None:
    free: int | None = 10

    def usage(_: Path) -> tuple[int, int, int]:
        if free is None:
            raise OSError(errno.ESTALE, "Stale file handle")
        return 1_000, 1_000 - free, free

    disk = Disk(tmp_path, 100, lambda: 0, usage)
    full = disk.problem
    assert full is not None
    free = None
    disk.check()
    assert (disk.problem, disk.free) == (full, None)
    free = 500
    disk.check()
    free = None
    disk.check()
    assert disk.problem is None


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_sends_are_refused_before_the_disk_is_full(tmp_path: Path, protocol: str) -> None:
    async with Node(options(tmp_path, disk_free_min_bytes=1 << 62)) as node:
        node.create_topic("orders", 1)
        async with (
            coherer.connect(url_of(node, protocol)) as client,
            client.producer("orders") as producer,
        ):
            await node.ready()
            with pytest.raises(RefusedError) as caught:
                await producer.send(coherer.Message("orders", b"refused"))
            assert "sends are refused below" in caught.value.text
        assert "The disk is full" in (node.not_ready() or "")
        text = await node.metrics.text()
        (line,) = [one for one in text.splitlines() if one.startswith(b"coherer_store_writable{")]
        assert line.endswith(b" 0")
        status = await node.metrics.status()
        assert status.disk is not None
        assert status.disk.problem == status.reason == node.not_ready()


async def test_an_hour_with_a_full_disk_keeps_retention_and_offsets(
    tmp_path: Path, disk: FillableDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written, for an hour of the node's clock; then all goes on."""
    monkeypatch.setattr("coherer._server.node.node.TICK_S", 0.001)
    clock = ManualClock()
    given = options(tmp_path, segment_bytes=1 << 20, retention_hours=0.5)
    async with Node(given, now_ms=clock.now_ms) as node:
        core = node.core
        assert core is not None
        core.topics.ensure_topic("orders", 1, core.now_ms())
        await core.files.flush()
        for _ in range(3):
            core.store.append([Draft("orders", 0, bytes(400_000), b"") for _ in range(2)])
        core.store.flush_queues()
        core.offsets.open("g", "orders", 0).move_to(2)
        began = core.store.min_offset
        disk.full = True
        for _ in range(60):
            clock.advance(60_000)
            await asyncio.sleep(0)
        await until(lambda: core.store.min_offset > began)
        failures = node.upkeep.failures
        assert failures["deleting expired messages"] == 0
        await until(lambda: node.upkeep.failures["saving offsets"] > 0)
        disk.full = False
        offsets = tmp_path / "config" / "consumerOffset.json"

        def saved() -> bool:
            clock.advance(6_000)
            return b'"orders@g":{0:2}' in offsets.read_bytes() if offsets.exists() else False

        await until(saved)


async def test_creating_a_topic_logs_no_traceback(
    tmp_path: Path, disk: FillableDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path)) as node, coherer.connect(node.rocketmq_url) as client:
        await node.ready()
        disk.full = True
        with pytest.raises(CohererError, match="The disk is full"):
            await client.admin().topics.create("orders", 1)
        disk.full = False
    assert "The disk is full" in caplog.text
    assert "Traceback" not in caplog.text


async def test_the_reserve_is_kept_while_only_open_files_are_missing(
    tmp_path: Path, disk: FillableDisk
) -> None:
    async with Node(options(tmp_path)) as node:
        core = node.core
        assert core is not None
        await core.check_disk()
        reserve = tmp_path / RESERVE_FILE
        before = reserve.stat().st_size
        core.offsets.open("g", "orders", 0).move_to(2)
        disk.out_of_files = True
        with pytest.raises(StoreFullError, match="Too many open files"):
            await core.save_positions()
        assert reserve.stat().st_size == before
        disk.out_of_files, disk.full = False, True
        with pytest.raises(StoreFullError, match="The disk is full"):
            await core.save_positions()
        assert reserve.stat().st_size < before
        disk.full = False
