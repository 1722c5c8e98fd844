"""Held gets, and consumers that do not read their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._server.core.core import Core
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.tubemq.broker import gets
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.gets import PendingGet
from coherer._store import Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Response
from coherer.testing import ManualClock
from tests.server.broker_harness import BrokerClient, bodies, close, serve
from tests.waiting import until


async def test_a_get_waits_for_its_partition(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    client.register()
    serial = client.post_get()
    clock.advance(3_999)
    broker.tick()
    assert client.got(serial) is None
    assert broker.gets.held_count == 1
    await client.send(partitionId=1)
    assert client.got(serial) is None
    await client.send(data=b"now")
    answer = client.got(serial)
    assert answer is not None
    assert bodies(answer) == [b"now"]
    assert broker.gets.held_count == 0


async def test_a_get_waits_no_longer_than_half_its_time(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    client.register()
    short, long = client.post_get(timeout_ms=3_000), None
    clock.advance(1_500)
    broker.tick()
    answer = client.got(short)
    assert answer is not None
    assert (answer.success, answer.errCode) == (False, 404)
    assert answer.errMsg == "The request offset reached maxOffset!"
    long = client.post_get(timeout_ms=600_000)
    clock.advance(4_000)
    broker.tick()
    assert client.got(long) is not None


async def test_how_a_held_get_ends(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    def code(serial: int) -> int:
        answer = client.got(serial)
        return answer.errCode if answer is not None else 0

    client.register()
    first = client.post_get()
    second = client.post_get()
    assert (code(first), code(second)) == (404, 0), "one for each reader"
    client.register()
    assert code(second) == 411
    third = client.post_get()
    client.unregister()
    assert code(third) == 411
    client.register()
    fourth = client.post_get(timeout_ms=600_000)
    [reader] = broker.state.leases.held_by("c1")
    reader.deadline_ms = clock.now_ms()
    broker.tick()
    assert code(fourth) == 411
    client.register()
    fifth = client.post_get()
    broker.core.remove_topic("demo")
    assert code(fifth) == 411
    client.register()
    sixth = client.post_get()
    await close(broker)
    assert code(sixth) == 503


async def test_held_gets_cost_nothing_until_they_are_due(
    client: BrokerClient, broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand of them took a fifth of a core, and 20 ms of each closed connection."""
    looked = 0

    class Get(PendingGet):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name in {"deadline_ms", "channel"}
            return object.__getattribute__(self, name)

    monkeypatch.setattr(gets, "PendingGet", Get)
    for number in range(3):
        client.register(partitionId=number)
    soon = client.post_get(timeout_ms=2_000, partitionId=0)
    late = [client.post_get(partitionId=number) for number in (1, 2)]
    assert broker.gets.held_count == 3
    looked = 0
    for _ in range(100):
        broker.tick()
        BrokerClient(broker).receiver.closed(None)
    assert looked == 0
    clock.advance(999)
    broker.tick()
    assert client.got(soon) is None
    clock.advance(1)
    broker.tick()
    assert client.got(soon) is not None
    assert [client.got(serial) for serial in late] == [None, None]
    clock.advance(3_000)
    broker.tick()
    assert None not in [client.got(serial) for serial in late]
    assert broker.gets.held_count == 0


async def test_a_closed_connection_drops_its_gets(client: BrokerClient, broker: Broker) -> None:
    other = BrokerClient(broker)
    client.register()
    other.register(groupName="h")
    serial, kept = client.post_get(), other.post_get(groupName="h")
    client.receiver.closed(None)
    assert broker.gets.held_count == 1
    await client.send()
    assert client.got(serial) is None
    assert other.got(kept) is not None
    assert len(broker.state.leases) == 2, "leases end by timeout"


async def test_a_consumer_with_one_thread_finds_the_partition_with_messages(
    client: BrokerClient, broker: Broker
) -> None:
    for number in range(3):
        client.register(partitionId=number)
    held = client.post_get(partitionId=0)
    await client.send(partitionId=2, data=b"there")
    released = client.got(held)
    assert released is not None
    assert bodies(released) == [], "ask again at once"
    assert bodies(client.get(partitionId=1)) == []
    assert client.got(client.post_get(partitionId=1)) is None, "notified once"
    assert bodies(client.get(partitionId=2)) == [b"there"]
    assert client.got(client.post_get(partitionId=0)) is None, "no further messages"
    assert broker.gets.held_count == 2


async def test_a_get_does_not_wait_while_another_partition_has_a_backlog(
    store: Store, clock: ManualClock
) -> None:
    broker = Broker(BrokerOptions(transfer_bytes=1), Core(store, clock.now_ms))
    serve(broker)
    client = BrokerClient(broker)
    for _ in range(3):
        await client.send(partitionId=1)
    client.register(partitionId=0)
    held = client.post_get(partitionId=0)
    client.register(partitionId=1)
    assert client.got(held) is not None, "the new partition has messages"
    assert len(bodies(client.get(partitionId=1))) == 1
    assert bodies(client.get(partitionId=0)) == [], "there are more"
    assert len(bodies(client.get(partitionId=1))) == 1
    assert len(bodies(client.get(partitionId=1))) == 1
    assert client.got(client.post_get(partitionId=0)) is None, "no further messages"
    await close(broker)


async def test_a_partition_that_is_never_asked_for_does_not_cause_a_busy_loop(
    client: BrokerClient,
) -> None:
    client.register(partitionId=0)
    client.register(partitionId=1)
    answered = 0
    for _ in range(20):
        serial = client.post_get(partitionId=0)
        await client.send(partitionId=1)
        answered += client.got(serial) is not None
    assert answered == 1, "only the first; later ones are held until replaced"
    codes = [
        methods.parse(pb.GetMessageResponseB2C, answer.body).errCode
        for answer in client.connection.answers.values()
        if isinstance(answer, Response) and answer.method == methods.GET_MESSAGES
    ]
    assert codes.count(200) == 1


async def test_a_consumer_that_does_not_read_its_answers_gets_no_more(client: BrokerClient) -> None:
    await client.send(data=b"x" * 1000)
    client.register()
    client.connection.full = True
    serials = [client.post_get(lastPackConsumed=False) for _ in range(3)]
    assert not client.connection.reading
    await client.connection.draining.wait()
    assert all(client.got(serial) is None for serial in serials)
    client.connection.full = False
    client.connection.drained.set()
    await until(lambda: client.connection.reading)
    assert all(client.got(serial) is not None for serial in serials)
    assert client.got(client.post_get(lastPackConsumed=False)) is not None


async def test_a_connection_closes_while_its_gets_are_postponed(
    client: BrokerClient, broker: Broker
) -> None:
    client.register()
    before = asyncio.all_tasks()
    client.connection.full = True
    client.post_get()
    await client.connection.draining.wait()
    client.receiver.closed(None)
    client.connection.drained.set()
    await until(lambda: asyncio.all_tasks() <= before)
    assert broker.gets.held_count == 0


async def test_a_postponed_get_that_is_overdue_only_commits(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    for body in (b"a", b"b"):
        await client.send(data=body)
    client.register()
    assert bodies(client.get(lastPackConsumed=False)) == [b"a", b"b"]
    await client.send(data=b"c")
    client.connection.full = True
    overdue = client.post_get(timeout_ms=1_000, lastPackConsumed=True)
    later = client.post_get(timeout_ms=60_000, lastPackConsumed=False)
    await client.connection.draining.wait()
    clock.advance(1_000)
    client.connection.full = False
    client.connection.drained.set()
    await until(lambda: client.connection.reading)
    assert client.got(overdue) is None
    answer = client.got(later)
    assert answer is not None
    # The overdue get has committed the first two messages, and read nothing.
    assert bodies(answer) == [b"c"]


async def test_a_postponed_get_that_is_overdue_may_belong_to_nobody(
    client: BrokerClient, clock: ManualClock
) -> None:
    client.connection.full = True
    overdue = client.post_get(timeout_ms=1_000)
    await client.connection.draining.wait()
    clock.advance(1_000)
    client.connection.drained.set()
    await until(lambda: client.connection.reading)
    assert client.got(overdue) is None
