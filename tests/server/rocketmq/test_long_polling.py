"""Many suspended pulls: all are answered, without blocking other requests."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from coherer import limits
from coherer._server.rocketmq.broker import pulling
from coherer._server.rocketmq.broker.pulling import OVERLOAD, SuspendedPull
from coherer._wire.rocketmq.command import Command
from coherer.testing import ManualClock
from tests.server.rocket_harness import SUBSCRIPTION, SUSPEND, BrokerHarness, Client, bodies_of

FOUND, BUSY, NOT_FOUND = 0, 2, 19


async def ready(peer: Client) -> None:
    """Have a message in the queue."""
    assert (await peer.send(b"old")).code == 0


def wait(peer: Client, count: int = 1) -> list[asyncio.Future[Command]]:
    """Pulls for the message to come."""
    asked = {"queueOffset": 1, "sysFlag": SUSPEND | SUBSCRIPTION}
    return [peer.begin_pull(**asked) for _ in range(count)]


async def test_one_message_wakes_many_and_others_have_their_turn(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await ready(peer)
    count = 3 * limits.WAITING_PULLS_PER_TURN
    waiting = wait(peer, count)
    other = await broker_harness.dial()
    await peer.settle()
    assert len(broker_harness.broker.pulls.suspended) == count
    assert (await other.send(b"new")).code == 0
    assert not all(pull.done() for pull in waiting), "the sender is not the last to hear"
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*waiting)
    assert {tuple(bodies_of(answer)) for answer in answers} == {(b"new",)}
    assert len(broker_harness.broker.pulls.suspended) == 0


async def test_waking_does_not_depend_on_the_number_of_waiting_pulls(
    broker_harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing each that waits with each that is woken took minutes for 100,000."""
    compared = 0

    def equal(self: SuspendedPull, other: object) -> bool:
        nonlocal compared
        compared += 1
        return self is other

    monkeypatch.setattr(SuspendedPull, "__eq__", equal)
    monkeypatch.setattr(SuspendedPull, "__hash__", object.__hash__)
    peer = await broker_harness.dial()
    await ready(peer)
    waiting = wait(peer, 500)
    await peer.settle()
    await peer.send(b"new")
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    assert compared < 1_000


async def test_waiting_pulls_cost_nothing_until_they_are_due(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand of them took two fifths of a core."""
    looked = 0

    class Pull(SuspendedPull):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "deadline_ms"
            return object.__getattribute__(self, name)

    monkeypatch.setattr(pulling, "SuspendedPull", Pull)
    await ready(peer)
    late = wait(peer, 200)
    soon = peer.begin_pull(
        queueOffset=1, sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=1_000
    )
    await peer.settle()
    looked = 0
    suspended = broker_harness.broker.pulls.suspended
    for _ in range(100):
        suspended.expire(clock.now_ms())
    assert looked == 0
    clock.advance(999)
    suspended.expire(clock.now_ms())
    await peer.settle()
    assert not soon.done()
    clock.advance(1)
    suspended.expire(clock.now_ms())
    async with asyncio.timeout(10):
        assert (await soon).code == NOT_FOUND
    assert not any(pull.done() for pull in late)
    clock.advance(14_000)
    suspended.expire(clock.now_ms())
    async with asyncio.timeout(10):
        assert {(await pull).code for pull in late} == {NOT_FOUND}
    assert len(suspended) == 0


async def test_so_many_may_wait(
    broker_harness: BrokerHarness, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITING_PULLS_MAX", 3)
    await ready(peer)
    waiting = wait(peer, 4)
    async with asyncio.timeout(10):
        refused = await waiting[3]
    assert (refused.code, refused.remark) == (BUSY, OVERLOAD)
    await peer.send(b"new")
    async with asyncio.timeout(10):
        assert {(await pull).code for pull in waiting[:3]} == {FOUND}


async def test_waiting_pulls_take_so_much_memory(
    broker_harness: BrokerHarness, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand pulls whose filters have a megabyte each would take a terabyte."""
    monkeypatch.setattr(limits, "WAITING_PULLS_BYTES_MAX", 1_000_000)
    await ready(peer)
    flags = SUSPEND | SUBSCRIPTION

    def begin(tag: str) -> asyncio.Future[Command]:
        return peer.begin_pull(queueOffset=1, sysFlag=flags, subscription=tag)

    waiting = [begin("x" * 60_000), begin("x" * 60_000)]
    async with asyncio.timeout(10):
        refused = await begin("y" * 60_000)
    assert (refused.code, refused.remark) == (BUSY, OVERLOAD)
    waiting.append(begin("TagA"))
    await peer.settle()
    assert not any(pull.done() for pull in waiting), "those with one filter share it"
    broker_harness.broker.close()
    async with asyncio.timeout(10):
        assert {(await pull).code for pull in waiting} == {NOT_FOUND}
    waiting = [begin("y" * 60_000)]
    await peer.settle()
    assert not waiting[0].done(), "there is room again"


async def test_selectors_of_waiting_pulls_count_as_compiled(
    peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITING_PULLS_BYTES_MAX", 100_000)
    await ready(peer)
    asked = {"queueOffset": 1, "sysFlag": SUSPEND | SUBSCRIPTION, "expressionType": "SQL92"}
    waiting = peer.begin_pull(**asked, subscription="a = 1" + " OR b = 2" * 30)
    async with asyncio.timeout(10):
        refused = await peer.pull(**asked, subscription="a = 2" + " OR b = 2" * 30)
    assert (refused.code, refused.remark) == (BUSY, OVERLOAD)
    assert not waiting.done()


async def test_pulls_of_a_closed_connection_are_dropped(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await ready(peer)
    gone, holding = await broker_harness.dial(), broker_harness.broker.pulls.suspended
    wait(gone, 5)
    await gone.settle()
    left = wait(peer)
    await peer.settle()
    assert len(holding) == 6
    await gone.hang_up()
    await peer.settle()
    assert len(holding) == 1
    await peer.send(b"new")
    async with asyncio.timeout(10):
        assert (await left[0]).code == FOUND


async def test_a_stop_answers_suspended_pulls(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await ready(peer)
    waiting = wait(peer, limits.WAITING_PULLS_PER_TURN + 1)
    await peer.settle()
    broker_harness.broker.close()
    async with asyncio.timeout(10):
        assert {(await pull).code for pull in waiting} == {NOT_FOUND}


async def test_an_unhandled_error_is_answered_and_the_other_pulls_are_resumed(
    broker_harness: BrokerHarness,
    peer: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await ready(peer)
    waiting = wait(peer, 2)
    await peer.settle()
    read, calls = broker_harness.store.read_slices, 0

    def fails_once(*args: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return read(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(broker_harness.store, "read_slices", fails_once)
    with caplog.at_level(logging.ERROR, "coherer"):
        await peer.send(b"new")
        async with asyncio.timeout(10):
            answers = [await pull for pull in waiting]
    assert [answer.code for answer in answers] == [1, FOUND]
    assert (answers[0].remark or "").startswith("ZeroDivisionError")
    assert "Code 11" in caplog.text


async def test_filters_that_let_everything_pass_leave_no_memory_counted(
    peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid selector was counted when its pull began to wait, and not when it ended."""
    monkeypatch.setattr(limits, "WAITING_PULLS_BYTES_MAX", 10_000)
    await ready(peer)
    for offset in range(1, 5):
        asked = {"queueOffset": offset, "sysFlag": SUSPEND | SUBSCRIPTION}
        waiting = [
            peer.begin_pull(**asked, subscription="a = " * 100, expressionType="SQL92"),
            peer.begin_pull(**asked),
        ]
        await peer.settle()
        assert not any(pull.done() for pull in waiting)
        await peer.send(b"new")
        async with asyncio.timeout(10):
            assert {(await pull).code for pull in waiting} == {FOUND}
