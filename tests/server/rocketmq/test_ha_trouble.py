"""Replication over slow and broken connections, with lagging slaves and invalid data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from coherer import _net as net
from coherer._server.rocketmq.ha.frames import REPORT
from coherer._server.rocketmq.ha.slave import SILENCE_MS, HaSlave, MetadataSync
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError
from coherer.testing import ManualClock
from coherer.testing.proxy import FaultProxy
from tests.server import ha_harness
from tests.server.ha_harness import Harness, Side, running
from tests.waiting import until


@pytest.fixture
async def harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Harness]:
    async with running(tmp_path, clock) as harness:
        yield harness


def same(one: Side, other: Side) -> bool:
    """Whether the logs are the same, byte for byte, from where the shorter one begins."""
    at, end = max(one.store.min_offset, other.store.min_offset), one.store.end_offset
    if other.store.end_offset != end:
        return False
    while at < end:
        data = one.store.read_raw(at, 1 << 20)
        if data != other.store.read_raw(at, 1 << 20):
            return False
        at += len(data)
    return True


async def test_under_load_with_a_line_that_breaks_again_and_again(
    harness: Harness, tmp_path: Path, clock: ManualClock
) -> None:
    side = Side(tmp_path / "follower", clock)
    async with FaultProxy("127.0.0.1", harness.listener.port) as proxy:
        slave = HaSlave(side.core, log_of_master=harness.side.extent, retry_s=0.001)
        slave.found(proxy.address)
        slave.start()
        for number in range(60):
            await harness.side.send(*[f"{number}/{each}" + "x" * 700 for each in range(50)])
            if number % 4 == 1:
                proxy.answers.cut_after_bytes = 1_000 + 7_777 * number  # in the middle of a record
            if number % 15 == 7:
                await until(lambda: side.store.end_offset == harness.side.store.end_offset)
                proxy.cut()
        proxy.answers.heal()
        await until(lambda: same(harness.side, side))
        assert proxy.accepted > 5
        assert side.bodies() == harness.side.bodies()[-len(side.bodies()) :]
        assert len(harness.side.bodies()) == 3_000
        await slave.close()
    await side.close()


async def test_a_slave_copies_what_follows_damage_and_a_missing_file(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_harness, "OPTIONS", replace(ha_harness.OPTIONS, verify_bytes=0))
    bodies = [f"<{number}>" + "x" * 1_000 for number in range(300)]
    async with running(tmp_path, clock) as harness:
        await harness.side.send(bodies[0])
        side, slave = harness.slave()
        await until(lambda: same(harness.side, side))
        await slave.close()
        await harness.side.send(*bodies[1:])
        rotten, missing = (harness.side.store.log.segments[number].path for number in (1, 3))
    data = missing.read_bytes()
    lost = [body for body in bodies if body.encode() in data]
    missing.unlink()
    data = rotten.read_bytes()
    lost.append(next(body for body in bodies if data.find(body.encode()) > 20_000))
    rotten.write_bytes(data.replace(lost[-1].encode(), lost[-1].upper().encode()))
    async with running(tmp_path, clock) as harness:
        side, slave = harness.slave()
        await until(lambda: side.store.end_offset == harness.side.store.end_offset)
        assert side.bodies() == [body for body in bodies if body not in lost]
        assert len(harness.side.store.log.damage) == 2, "which metrics and `status` show"


async def test_lost_bytes_are_noticed_and_fetched_again(
    harness: Harness, tmp_path: Path, clock: ManualClock
) -> None:
    await harness.side.send("first")
    side = Side(tmp_path / "follower", clock)
    async with FaultProxy("127.0.0.1", harness.listener.port) as proxy:
        slave = HaSlave(side.core, log_of_master=harness.side.extent, retry_s=0.001)
        slave.found(proxy.address)
        slave.start()
        await until(lambda: side.bodies() == ["first"])
        proxy.answers.drop_reads = 1
        await harness.side.send("lost on its way")
        await proxy.until(lambda: proxy.answers.lost_bytes)
        await harness.side.send("what follows does not follow")
        await until(lambda: same(harness.side, side))
        assert proxy.accepted == 2
        await slave.close()
    await side.close()


async def test_either_side_notices_that_the_other_has_vanished(
    harness: Harness, tmp_path: Path, clock: ManualClock
) -> None:
    side = Side(tmp_path / "follower", clock)
    async with FaultProxy("127.0.0.1", harness.listener.port) as proxy:
        slave = HaSlave(side.core, log_of_master=harness.side.extent, retry_s=0.001)
        slave.found(proxy.address)
        slave.start()
        await harness.side.send("first")
        await until(lambda: side.bodies() == ["first"])
        for faults in (proxy.answers, proxy.requests):
            [served], link = harness.master.slaves, slave.link
            assert link is not None
            faults.black_hole = True
            for _ in range(SILENCE_MS // 6_000):
                clock.advance(6_000)
                harness.master.tick()
                slave.tick()
                now_ms = clock.now_ms()
                heard = link if faults is proxy.requests else served
                await until(lambda: heard.read_ms == now_ms)  # noqa: B023
                assert slave.link is link

            def parted() -> bool:
                """What was on its way before the black hole may have arrived in it."""
                clock.advance(1_000)
                harness.master.tick()
                slave.tick()
                return served not in harness.master.slaves and slave.link is not link  # noqa: B023

            await until(parted)
            faults.heal()
            await until(lambda: len(harness.master.slaves) == 1 and slave.link is not None)
            body = f"after {len(side.bodies())}"
            await harness.side.send(body)

            def caught_up() -> bool:
                """A connection that was made in the black hole has to time out, too."""
                clock.advance(1_000)
                harness.master.tick()
                slave.tick()
                return side.bodies()[-1:] == [body]  # noqa: B023

            await until(caught_up)
        await slave.close()
    await until(lambda: not harness.master.slaves)
    await side.close()


async def test_reports_of_a_slave_that_does_not_read_are_read(
    harness: Harness,
) -> None:
    """On a slow line the write buffer stays full for longer than a slave may be silent."""
    await harness.listener.close()
    limits = net.ConnectionLimits(write_buffer_high_bytes=1 << 16, write_buffer_low_bytes=1 << 14)
    harness.listener = await net.listen(
        "127.0.0.1", 0, harness.master.make, budget=net.ConnectionBudget(limits)
    )
    first = await harness.side.send("x")
    peer = await harness.peer()
    peer.connection.pause_reading()
    peer.connection.write(REPORT.pack(first))
    await until(lambda: any(one.acked == first for one in harness.master.slaves))
    [slave] = harness.master.slaves
    for _ in range(20):
        await harness.side.send(*["x" * 30_000 for _ in range(30)])
    assert slave.connection.overloaded
    assert slave.connection.unsent_bytes < 4 << 20, "the rest waits in the log"
    end = slave.position
    for _ in range(5):
        harness.clock.advance(15_000)
        peer.connection.write(REPORT.pack(end))
        now_ms = harness.clock.now_ms()
        await until(lambda: slave.read_ms == now_ms)  # noqa: B023
        harness.master.tick()
    assert list(harness.master.slaves) == [slave]
    assert await harness.master.safe(end, 1) == 0
    peer.connection.abort()
    await until(lambda: not harness.master.slaves)


async def test_waiting_in_vain_costs_nothing_later(harness: Harness) -> None:
    end = await harness.side.send("x")
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(0))
    await until(lambda: bool(harness.master.slaves))
    patient = [asyncio.create_task(harness.master.safe(end + n, 60_000)) for n in range(3)]
    outcomes = await asyncio.gather(*[harness.master.safe(end + n, 1) for n in range(200)])
    assert set(outcomes) == {12}
    assert harness.master.waiting <= 2 * len(patient)
    harness.master.has(end + 1)
    async with asyncio.timeout(10):
        assert [await patient[0], await patient[1]] == [0, 0]
    assert not patient[2].done()
    patient[2].cancel()


@pytest.mark.parametrize("address", ["a..b:1", "127.0.0.1:99999", "nobody", "x" * 70 + ":5"])
async def test_an_invalid_address_of_the_master(
    harness: Harness,
    tmp_path: Path,
    clock: ManualClock,
    address: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await harness.side.send("x")
    side = Side(tmp_path / "follower", clock)
    slave = HaSlave(side.core, log_of_master=harness.side.extent, retry_s=0.001)
    slave.found(address)
    slave.start()
    await until(lambda: "Copying the master's log failed" in caplog.text)
    slave.found(f"127.0.0.1:{harness.listener.port}")
    await until(lambda: side.bodies() == ["x"])
    await slave.close()
    await side.close()


async def test_following_continues_after_an_unhandled_error(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dial, calls = net.dial, 0

    async def fails_once(host: str, port: int, *args: object, **more: object) -> object:
        nonlocal calls
        calls += port == harness.listener.port  # others dial, too: scenarios that run beside us
        if calls == 1 and port == harness.listener.port:
            raise ZeroDivisionError
        return await dial(host, port, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(net, "dial", fails_once)
    await harness.side.send("x")
    side, _ = harness.slave()
    with caplog.at_level(logging.ERROR, "coherer"):
        await until(lambda: side.bodies() == ["x"])
    assert "ZeroDivisionError" in caplog.text


BODIES = (
    b"",
    b"\xff\x00",
    b"null",
    b"[" * 5_000,
    b'{"offsetTable":{"t@g":{"0":"x"}}}',
    b'{"topicConfigTable":{"t":null},"dataVersion":7}',
    b'{"subscriptionGroupTable":[{}]}',
)


@pytest.mark.parametrize("body", BODIES)
async def test_a_master_that_knows_nonsense(
    tmp_path: Path, clock: ManualClock, body: bytes
) -> None:
    def talk(_: Channel, request: Command) -> Command:
        return Command(0, body=body)

    master = RemotingServer(dict.fromkeys(map(int, RequestCode), talk))
    listener = await net.listen("127.0.0.1", 0, master.make)
    side, outgoing = Side(tmp_path / "side", clock), RemotingClient()
    sync = MetadataSync(side.core, outgoing, lambda _: None)
    sync.master = f"127.0.0.1:{listener.port}"
    before = side.core.topics.dump()
    with pytest.raises(CohererError):
        await sync.run_once()
    assert side.core.topics.dump() == before
    outgoing.close()
    await listener.close()
    await side.close()
