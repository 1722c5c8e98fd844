"""Replication: wire format, following a master, and waiting for slaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer import _net as net
from coherer._record.layout import decode
from coherer._server.rocketmq.ha.frames import HEAD, REPORT, Pieces, Reports
from coherer._server.rocketmq.ha.master import BEHIND_BYTES_MAX, HaMaster
from coherer._server.rocketmq.ha.slave import HaSlave
from coherer._store import Draft, Store
from coherer._store.offset_reserve import GAP_QUEUE, LEAD_MIN
from coherer.errors import ProtocolError, StoreFullError, UnavailableError
from coherer.testing import ManualClock
from tests.copies import copy_tree
from tests.server.ha_harness import OPTIONS, Harness, Peer, Side, running
from tests.waiting import until


@pytest.fixture
async def harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Harness]:
    async with running(tmp_path, clock) as harness:
        yield harness


# -- the wire


def test_the_worked_examples() -> None:
    assert REPORT.pack(4096).hex() == "0000000000001000"
    assert HEAD.pack(4096, 1024).hex() == "000000000000100000000400"
    assert HEAD.pack(4096, 0).hex() == "000000000000100000000000"


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.integers(1, 30))
def test_only_the_newest_report_counts(offsets: list[int], step: int) -> None:
    data = b"".join(map(REPORT.pack, offsets))
    reports = Reports()
    last = [reports.last(data[at : at + step]) for at in range(0, len(data), step)]
    assert [found for found in last if found is not None][-1] == offsets[-1]


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 50))
def test_pieces_come_whole_however_they_are_cut(bodies: list[bytes], step: int) -> None:
    data = b"".join(HEAD.pack(at, len(body)) + body for at, body in enumerate(bodies))
    pieces = Pieces()
    found = [p for at in range(0, len(data), step) for p in pieces.feed(data[at : at + step])]
    assert [(piece.offset, piece.data) for piece in found] == list(enumerate(bodies))


@given(st.binary(max_size=100))
def test_garbage_from_a_master_is_pieces_or_refused(data: bytes) -> None:
    with suppress(ProtocolError):
        for piece in Pieces().feed(data):
            assert piece.offset >= 0


# -- the master


async def test_a_slave_continues_from_the_end_of_its_log(harness: Harness) -> None:
    middle = await harness.side.send("a", "b")
    end = await harness.side.send("c")
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(middle))
    offset, size = HEAD.unpack(await peer.hears(HEAD.size))
    assert (offset, size) == (middle, end - middle)
    assert decode(await peer.hears(size)).body == b"c"
    later = await harness.side.send("d")
    assert HEAD.unpack(await peer.hears(HEAD.size)) == (end, later - end)


async def test_a_new_slave_begins_with_the_last_file(harness: Harness) -> None:
    for _ in range(5):
        await harness.side.send("x" * 30_000)
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(0))
    offset, size = HEAD.unpack(await peer.hears(HEAD.size))
    assert offset == harness.side.store.last_segment_offset > 0
    assert 0 < size <= 32 * 1024


async def test_pieces_never_cross_the_end_of_a_file(harness: Harness) -> None:
    for _ in range(7):
        await harness.side.send("x" * 20_000)
    at, end = harness.side.store.queue_range("t", 0)[0] + 1, harness.side.store.end_offset
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(at))
    while at < end:
        offset, size = HEAD.unpack(await peer.hears(HEAD.size))
        assert offset == at
        assert offset // (1 << 16) == (offset + size - 1) // (1 << 16)
        assert await peer.hears(size) == bytes(harness.side.store.read_raw(at, size))
        at += size


async def test_a_master_shows_that_it_lives_and_cuts_off_the_silent(harness: Harness) -> None:
    end = await harness.side.send("a")
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(end))
    await until(lambda: any(slave.acked == end for slave in harness.master.slaves))
    harness.clock.advance(5_001)
    harness.master.tick()
    assert HEAD.unpack(await peer.hears(HEAD.size)) == (end, 0)
    harness.clock.advance(15_000)
    harness.master.tick()
    async with asyncio.timeout(10):
        await peer.lost.wait()
    assert not harness.master.slaves


async def test_a_slave_with_a_longer_log_is_disconnected(harness: Harness) -> None:
    end = await harness.side.send("a")
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(end + 1))
    async with asyncio.timeout(10):
        await peer.lost.wait()
    assert harness.master.replicated == 0


async def test_sends_that_wait_for_a_slave(harness: Harness) -> None:
    end = await harness.side.send("a")
    assert await harness.master.safe(end, 10) == 11  # no slave
    peer = await harness.peer()
    peer.connection.write(REPORT.pack(0))
    await until(lambda: bool(harness.master.slaves))
    assert await harness.master.safe(end, 10) == 12  # somebody is, and does not say that he has it
    waiting = asyncio.create_task(harness.master.safe(end, 10_000))
    peer.connection.write(REPORT.pack(end))
    assert await waiting == 0
    assert (
        await harness.master.safe(end + BEHIND_BYTES_MAX, 10) == 11
    )  # a lagging slave does not count


async def test_nobody_waits_for_a_slave_that_has_just_begun(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces one that had everything."""
    monkeypatch.setattr("coherer._server.rocketmq.ha.master.BEHIND_BYTES_MAX", 10_000)
    end = await harness.side.send(*["x" * 1_000] * 20)
    first = await harness.peer()
    first.connection.write(REPORT.pack(end))
    await until(lambda: harness.master.replicated == end)
    first.connection.close()
    await until(lambda: not harness.master.slaves)
    second = await harness.peer()
    second.connection.write(REPORT.pack(1))
    await until(lambda: [slave.acked for slave in harness.master.slaves] == [1])
    assert not harness.master.available(end + 1)
    assert await harness.master.safe(end + 1, 60_000) == 11
    second.connection.write(REPORT.pack(end - 5_000))
    await until(lambda: harness.master.available(end + 1))


# -- the slave


async def test_a_slave_copies_the_log(harness: Harness) -> None:
    for number in range(50):
        await harness.side.send(*[f"{number}/{each}" + "x" * 500 for each in range(10)])
    assert harness.side.store.last_segment_offset > 0
    side, slave = harness.slave()
    await until(lambda: side.store.end_offset == harness.side.store.end_offset)
    assert side.bodies() == harness.side.bodies()
    assert side.store.min_offset == 0
    await harness.side.send("later")
    await until(lambda: side.bodies()[-1:] == ["later"])
    await until(lambda: harness.master.replicated == harness.side.store.end_offset)
    assert slave.link is not None


async def test_a_slave_copies_a_log_that_does_not_begin_at_0(harness: Harness) -> None:
    for number in range(10):
        await harness.side.send(*[f"{number}/{each}" + "x" * 500 for each in range(50)])
        if number == 4:
            harness.clock.advance(100 * 3_600_000)
    harness.side.store.delete_expired(harness.clock.now_ms())
    assert 0 < harness.side.store.min_offset < harness.side.store.last_segment_offset
    side, _ = harness.slave()
    await until(lambda: side.store.end_offset == harness.side.store.end_offset)
    assert side.bodies() == harness.side.bodies()
    assert side.store.min_offset == harness.side.store.min_offset


async def test_a_slave_reconnects_and_continues(harness: Harness) -> None:
    side, slave = harness.slave()
    await harness.side.send("a")
    await until(lambda: side.bodies() == ["a"])
    assert slave.link is not None
    first = slave.link
    first.connection.abort()
    await harness.side.send("b", "c")
    await until(lambda: side.bodies() == ["a", "b", "c"])
    assert slave.link is not first


async def test_a_slave_says_that_the_master_has_deleted_what_it_lacks(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    side, slave = harness.slave()
    end = await harness.side.send("a")
    await until(lambda: side.bodies() == ["a"])
    await slave.close()
    await harness.side.send(*["x" * 500] * 400)
    harness.clock.advance(100 * 3_600_000)
    harness.side.store.delete_expired(harness.clock.now_ms())
    begin = harness.side.store.min_offset
    assert begin > end
    slave.start()
    text = f"The master's log begins at {begin}, and this slave's ends at {end}"
    await until(lambda: text in caplog.text)
    assert "Give the slave a new directory." in caplog.text
    assert side.bodies() == ["a"]


async def test_a_slave_follows_though_it_cannot_ask_where_the_log_begins(harness: Harness) -> None:
    side, slave = harness.slave()
    await harness.side.send("a")
    await until(lambda: side.bodies() == ["a"])
    await slave.close()
    await harness.side.send("b")

    async def refuses() -> tuple[int, int]:
        raise UnavailableError("No.")

    again = HaSlave(side.core, log_of_master=refuses, retry_s=0.01)
    again.found(slave.address)
    again.start()
    await until(lambda: side.bodies() == ["a", "b"])
    await again.close()


async def test_a_master_that_moves_while_its_slave_connects(
    harness: Harness, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial, moved = net.dial, asyncio.Event()
    async with running(tmp_path / "other", clock) as other:
        side = Side(tmp_path / "follower", clock)
        slave = HaSlave(side.core, log_of_master=other.side.extent, retry_s=0.01)

        async def slow(host: str, port: int, *args: object, **more: object) -> object:
            made = await dial(host, port, *args, **more)  # type: ignore[arg-type]
            if port == harness.listener.port:
                slave.found(f"127.0.0.1:{other.listener.port}")
                moved.set()
            return made

        monkeypatch.setattr(net, "dial", slow)
        slave.found(f"127.0.0.1:{harness.listener.port}")
        slave.start()
        await moved.wait()
        await other.side.send("new")
        await until(lambda: side.bodies() == ["new"])
        assert not harness.master.slaves
        await slave.close()
        await side.close()


async def other_master(harness: Harness, tmp_path: Path, *bodies: str) -> Harness:
    """A master that had "a", "b" and "c" too, lost the last two, and stored others."""
    source = harness.side.store
    copy_tree(source.directory, tmp_path / "other" / "master")
    log = tmp_path / "other" / "master" / "commitlog" / f"{0:020}"
    place = source.place_of("t", 0, 1)
    assert place is not None
    with log.open("r+b") as file:
        file.seek(place)
        file.write(bytes(source.end_offset - place))
    harness.clock.advance(1)
    made = await Harness(tmp_path / "other", harness.clock).start()
    assert made.side.bodies() == ["a"]
    if bodies:
        await made.side.send(*bodies)
    return made


@pytest.mark.parametrize("count", [0, 1, 2, 300])
async def test_a_slave_notices_that_its_master_has_lost_what_it_had_copied(
    harness: Harness,
    tmp_path: Path,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    count: int,
) -> None:
    """Also when the master has written past the end of the slave."""
    side, slave = harness.slave()
    await harness.side.send("a")
    await harness.side.send("b", "c")
    await until(lambda: side.bodies() == ["a", "b", "c"])
    other = await other_master(harness, tmp_path, *["x"] * count)
    slave.found(f"127.0.0.1:{other.listener.port}")

    def noticed() -> bool:
        clock.advance(1_000)  # so that the master sends a heartbeat
        other.master.tick()
        return "other bytes" in caplog.text or "they do not match" in caplog.text

    with caplog.at_level(logging.INFO, "coherer"):
        await until(noticed)
    assert other.master.replicated <= other.side.store.end_offset
    assert side.bodies() == ["a", "b", "c"]
    if count == 300:
        place = harness.side.store.place_of("t", 0, 1)
        assert "other bytes than this slave's at offset" in caplog.text
        assert other.master.replicated <= place
    await slave.close()
    await other.close()


def flip(log: Path, at: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 4
    log.write_bytes(content)


BODY, FLAG = 90, 19
"""Bytes of a record. Only the body has a checksum."""


@pytest.mark.parametrize(
    ("name", "number", "byte", "goes_on"),
    [
        ("slave", 0, BODY, True),
        ("slave", 1, BODY, True),
        ("slave", 0, FLAG, True),
        ("master", 0, FLAG, True),
        ("master", 0, BODY, False),  # the master may have stored it again
        ("slave", 2, FLAG, False),  # the newest message is another one
        ("master", 2, FLAG, False),
    ],
)
async def test_a_bit_that_flips_in_an_older_message_does_not_stop_a_slave(
    harness: Harness,
    tmp_path: Path,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    name: str,
    number: int,
    byte: int,
    goes_on: bool,
) -> None:
    side, slave = harness.slave()
    await harness.side.send("aaaa", "bbbb")
    await harness.side.send("cccc")
    await until(lambda: len(side.bodies()) == 3)
    place = side.store.place_of("t", 0, number)
    assert place is not None
    await slave.close()
    again = tmp_path / "again"
    for one in (side, harness.side):
        one.store.flush_queues()
        copy_tree(one.store.directory, again / one.store.directory.name)
    flip(again / name / "commitlog" / f"{0:020}", place + byte)
    async with running(again, clock) as made:
        other, slave = made.slave()
        await made.side.send("dddd")
        if goes_on:
            await until(lambda: other.bodies()[-1:] == ["dddd"])
            assert "The master's log has another byte than this slave's" in caplog.text
        else:
            await until(lambda: "The master's log has other bytes" in caplog.text)
            await slave.close()
            assert "dddd" not in other.bodies()


async def test_a_slave_wakes_waiting_consumers(harness: Harness) -> None:
    side, _ = harness.slave()
    woken: list[tuple[str, int, int]] = []
    side.core.on_arrival(
        lambda drafts, placed: woken.extend(
            (draft.topic, draft.queue_id, place.queue_offset)
            for draft, place in zip(drafts, placed, strict=True)
        )
    )
    await harness.side.send("a", "b")
    await until(lambda: len(woken) == 2)
    assert woken == [("t", 0, 0), ("t", 0, 1)]


async def test_a_record_in_two_halves_waits_for_the_second(
    harness: Harness, tmp_path: Path
) -> None:
    end = await harness.side.send("a" * 1_000)
    data = bytes(harness.side.store.read_raw(0, end))
    peers: asyncio.Queue[Peer] = asyncio.Queue()

    def accept(connection: net.Connection) -> Peer:
        peer = Peer(connection)
        peers.put_nowait(peer)
        return peer

    listener = await net.listen("127.0.0.1", 0, accept)
    side = Side(tmp_path / "halves", harness.clock)
    slave = HaSlave(side.core, log_of_master=side.extent, retry_s=0.01)
    slave.found(f"127.0.0.1:{listener.port}")
    slave.start()
    peer = await peers.get()
    assert REPORT.unpack(await peer.hears(8)) == (0,)
    peer.connection.write(HEAD.pack(0, 500) + data[:500] + HEAD.pack(500, 0))
    peer.connection.write(HEAD.pack(500, end - 500) + data[500:])
    assert REPORT.unpack(await peer.hears(8)) == (end,)
    assert side.bodies() == ["a" * 1_000]
    # A gap closes the connection; the next one continues from the end of the log.
    peer.connection.write(HEAD.pack(end + 1, 1) + b"x")
    async with asyncio.timeout(10):
        await peer.lost.wait()
    again = await peers.get()
    assert REPORT.unpack(await again.hears(8)) == (1,)  # first it compares
    again.connection.write(HEAD.pack(1, end - 1) + data[1:])
    assert REPORT.unpack(await again.hears(8)) == (end,)
    await slave.close()
    await listener.close()
    await side.close()


async def test_a_slave_says_that_a_java_master_has_deleted_what_it_waits_for(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's master keeps the connection, and sends heartbeats."""
    end = await harness.side.send("a")
    data, log, asked = bytes(harness.side.store.read_raw(0, end)), [0, end], asyncio.Event()
    peers: asyncio.Queue[Peer] = asyncio.Queue()

    def accept(connection: net.Connection) -> Peer:
        peer = Peer(connection)
        peers.put_nowait(peer)
        return peer

    async def log_of_master() -> tuple[int, int]:
        asked.set()
        return log[0], log[1]

    listener = await net.listen("127.0.0.1", 0, accept)
    side = Side(tmp_path / "waiting", harness.clock)
    slave = HaSlave(side.core, log_of_master=log_of_master, retry_s=0.01, ask_s=0.01)
    slave.found(f"127.0.0.1:{listener.port}")
    slave.start()
    peer = await peers.get()
    assert REPORT.unpack(await peer.hears(8)) == (1,)  # an empty slave asks for all of the log
    peer.connection.write(HEAD.pack(1, end - 1) + data[1:] + HEAD.pack(end, 0))
    assert REPORT.unpack(await peer.hears(8)) == (end,)
    for _ in range(3):  # a master that has nothing new is not left
        asked.clear()
        async with asyncio.timeout(10):
            await asked.wait()
    assert not peer.lost.is_set()
    log[:] = end + 65_536, end + 70_000
    async with asyncio.timeout(10):
        await peer.lost.wait()
    assert side.bodies() == ["a"]
    await until(lambda: f"begins at {log[0]}, and this slave waits for what is at" in caplog.text)
    assert "Give the slave a new directory." in caplog.text
    await slave.close()
    await listener.close()
    await side.close()


async def test_a_slave_reports_though_nothing_happens_and_leaves_a_silent_master(
    harness: Harness,
) -> None:
    _, slave = harness.slave()
    await until(lambda: slave.link is not None)
    first = slave.link
    for _ in range(5):  # longer than a master listens to nothing
        harness.clock.advance(5_001)
        slave.tick()
        now_ms = harness.clock.now_ms()
        await until(lambda: [one.read_ms for one in harness.master.slaves] == [now_ms])  # noqa: B023
        harness.master.tick()
        await until(lambda: slave.link is not None and slave.link.read_ms == now_ms)  # noqa: B023
    assert slave.link is first
    harness.clock.advance(20_001)
    slave.tick()
    await until(lambda: slave.link is not None and slave.link is not first)


async def test_a_gap_is_told_once_whatever_goes_wrong(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heir is killed before it has told its gap, and then its disk is full for a while."""
    replica = msgspec.structs.replace(OPTIONS, replica=True)
    with Store.open(tmp_path, replica, now_ms=clock.now_ms) as store:
        store.append([Draft("t", 0, b"before", b"")])
    Store.open(tmp_path, OPTIONS, now_ms=clock.now_ms).close()

    def is_full(*_: object) -> None:
        raise StoreFullError("The disk is full.")

    ends: set[int] = set()
    for tells in (True, False):
        side = Side(tmp_path, clock)
        master, store = HaMaster(side.core), side.store
        assert store.has_untold_gap == tells
        with monkeypatch.context() as patch:
            patch.setattr(store, "append", is_full)
            master.tell_gap()
            await asyncio.sleep(0)
            master.tick()
            await asyncio.sleep(0)
        assert store.has_untold_gap == tells
        for _ in range(3):
            master.tick()
            await asyncio.sleep(0)
        assert not store.has_untold_gap
        _, end = store.queue_range(*GAP_QUEUE)
        ends.add(end)
        found = store.read(*GAP_QUEUE, end - 1, max_bytes=1 << 20, max_count=10)
        assert len(found.records) == 1
        await side.close()
    [end] = ends
    assert end > LEAD_MIN
