"""Slaves sign their connection to a master with accounts, and Java's protocol goes on working."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._server.rocketmq.ha.frames import HEAD, HELLO, REPORT
from coherer._server.rocketmq.ha.signing import (
    ANSWER_MS,
    NUMBER_BYTES,
    SILENCE_MS,
    WELCOME,
    Door,
    answer,
)
from coherer._server.rocketmq.ha.slave import HaSlave
from coherer.testing import ManualClock
from tests.server.ha_harness import Harness, Peer, Side
from tests.waiting import until

ACCOUNTS = {"operator": "operator-secret"}
ACCOUNT = ("operator", "operator-secret")


class Guarded(Harness):
    """A master whose slaves must sign."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        super().__init__(directory, clock)
        self.doors: list[Door] = []

    async def start(self) -> Guarded:
        self.listener = await net.listen("127.0.0.1", 0, self._open)
        return self

    def _open(self, connection: net.Connection) -> Door:
        door = Door(connection, ACCOUNTS.get, self.master.make, self.clock.now_ms())
        self.doors.append(door)
        return door


@pytest.fixture
async def guarded(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Guarded]:
    made = await Guarded(tmp_path, clock).start()
    yield made
    await made.close()


async def greeted(guarded: Harness) -> tuple[Peer, bytes]:
    """A slave by hand that has said hello, and the number that it was sent."""
    peer = await guarded.peer()
    peer.connection.write(REPORT.pack(HELLO))
    assert await peer.hears(HEAD.size) == HEAD.pack(HELLO, NUMBER_BYTES)
    return peer, await peer.hears(NUMBER_BYTES)


async def test_a_slave_that_signs_gets_the_log(guarded: Guarded) -> None:
    end = await guarded.side.send("secret")
    peer, number = await greeted(guarded)
    peer.connection.write(answer(ACCOUNT, number))
    assert await peer.hears(HEAD.size) == WELCOME
    peer.connection.write(REPORT.pack(0))
    assert await peer.hears(HEAD.size) == HEAD.pack(0, end)
    assert b"secret" in await peer.hears(end)


@pytest.mark.parametrize("size", [1, 7, 8, 9])
async def test_the_answer_may_come_in_pieces_and_after_a_report(
    guarded: Guarded, size: int
) -> None:
    end = await guarded.side.send("secret")
    peer, number = await greeted(guarded)
    data = REPORT.pack(0) + answer(ACCOUNT, number)
    for at in range(0, len(data), size):
        peer.connection.write(data[at : at + size])
        peer.connection.flush()
    assert await peer.hears(2 * HEAD.size) == WELCOME + HEAD.pack(0, end)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda number: REPORT.pack(0) + REPORT.pack(HELLO), id="a second hello"),
        pytest.param(lambda number: answer(("operator", "guess"), number), id="secret"),
        pytest.param(lambda number: answer(("nobody", ""), number), id="account"),
        pytest.param(lambda number: answer(ACCOUNT, bytes(NUMBER_BYTES)), id="another number"),
        pytest.param(lambda number: answer(ACCOUNT, number)[:8] + b"\xff\xff", id="endless name"),
        pytest.param(lambda number: REPORT.pack(-3), id="unknown"),
    ],
)
async def test_a_wrong_signature_ends_the_connection(guarded: Guarded, wrong: object) -> None:
    await guarded.side.send("secret")
    peer, number = await greeted(guarded)
    assert callable(wrong)
    peer.connection.write(wrong(number))
    await peer.lost.wait()
    assert not peer.heard
    assert not guarded.master.slaves


@pytest.mark.parametrize("first", [0, 4096, -2, -3])
async def test_a_slave_that_does_not_sign_gets_nothing(guarded: Guarded, first: int) -> None:
    await guarded.side.send("secret")
    peer = await guarded.peer()
    peer.connection.write(REPORT.pack(first))
    await peer.lost.wait()
    assert not peer.heard


async def test_numbers_are_used_once(guarded: Guarded) -> None:
    first, number = await greeted(guarded)
    first.connection.write(recorded := answer(ACCOUNT, number))
    assert await first.hears(HEAD.size) == WELCOME
    again, other = await greeted(guarded)
    assert other != number
    again.connection.write(recorded)
    await again.lost.wait()


async def test_who_never_signs_is_disconnected(guarded: Guarded, clock: ManualClock) -> None:
    peer, _ = await greeted(guarded)
    [door] = guarded.doors
    assert door.is_waiting(clock.now_ms())
    clock.advance(SILENCE_MS + 1)
    assert not door.is_waiting(clock.now_ms())
    await peer.lost.wait()


async def follows(harness: Harness, side: Side, account: tuple[str, str] | None) -> HaSlave:
    slave = HaSlave(side.core, log_of_master=harness.side.extent, account=account, retry_s=0.01)
    slave.found(f"127.0.0.1:{harness.listener.port}")
    slave.start()
    return slave


async def test_our_slave_signs(guarded: Guarded, tmp_path: Path, clock: ManualClock) -> None:
    await guarded.side.send("one", "two")
    side = Side(tmp_path / "slave", clock)
    slave = await follows(guarded, side, ACCOUNT)
    await until(lambda: side.bodies() == ["one", "two"])
    await slave.close()
    await side.close()


async def test_our_slave_says_what_is_wrong(
    guarded: Guarded, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(tmp_path / "slave", clock)
    slave = await follows(guarded, side, ("operator", "guess"))
    await until(lambda: "check the account of this slave" in caplog.text)
    assert "the signature of account 'operator' is wrong" in caplog.text
    await slave.close()
    await side.close()


async def test_our_slave_goes_on_at_once_with_our_master_without_accounts(
    tmp_path: Path, clock: ManualClock
) -> None:
    harness = await Harness(tmp_path, clock).start()
    await harness.side.send("one")
    side = Side(tmp_path / "slave", clock)
    slave = await follows(harness, side, ACCOUNT)
    await until(lambda: side.bodies() == ["one"])
    await slave.close()
    await side.close()
    await harness.close()


async def test_our_slave_goes_on_after_a_moment_with_javas_master(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Java's master takes no notice of -1, and answers nothing."""
    masters: list[Peer] = []

    def accept(connection: net.Connection) -> Peer:
        masters.append(Peer(connection))
        return masters[-1]

    listener = await net.listen("127.0.0.1", 0, accept)
    side = Side(tmp_path / "slave", clock)
    slave = HaSlave(side.core, log_of_master=side.extent, account=ACCOUNT, retry_s=0.01)
    slave.found(f"127.0.0.1:{listener.port}")
    slave.start()
    await until(lambda: masters)
    assert await masters[0].hears(8) == REPORT.pack(HELLO)
    slave.tick()
    assert not masters[0].heard
    clock.advance(ANSWER_MS + 1)
    slave.tick()
    assert await masters[0].hears(8) == REPORT.pack(0)
    await slave.close()
    await listener.close()
    await side.close()
