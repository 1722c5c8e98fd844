"""Gets that wait for messages, and consumers that do not read their answers."""

from __future__ import annotations

import asyncio

from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.state import BrokerOptions
from coherer._store import Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Response
from coherer.testing import ManualClock
from tests.server.broker_stage import Peer, bodies, close, serve


async def test_a_get_waits_for_its_partition(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    peer.register()
    serial = peer.post_get()
    clock.advance(3_999)
    broker.tick()
    assert peer.got(serial) is None
    assert broker.gets.held_count == 1
    await peer.send(partitionId=1)
    assert peer.got(serial) is None
    await peer.send(data=b"now")
    answer = peer.got(serial)
    assert answer is not None
    assert bodies(answer) == [b"now"]
    assert broker.gets.held_count == 0


async def test_a_get_waits_no_longer_than_half_its_time(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    peer.register()
    short, long = peer.post_get(timeout_ms=3_000), None
    clock.advance(1_500)
    broker.tick()
    answer = peer.got(short)
    assert answer is not None
    assert (answer.success, answer.errCode) == (False, 404)
    assert answer.errMsg == "The request offset reached maxOffset!"
    long = peer.post_get(timeout_ms=600_000)
    clock.advance(4_000)
    broker.tick()
    assert peer.got(long) is not None


async def test_what_ends_a_waiting_get(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    def code(serial: int) -> int:
        answer = peer.got(serial)
        return answer.errCode if answer is not None else 0

    peer.register()
    first = peer.post_get()
    second = peer.post_get()
    assert (code(first), code(second)) == (404, 0), "one for each reader"
    peer.register()
    assert code(second) == 411
    third = peer.post_get()
    peer.unregister()
    assert code(third) == 411
    peer.register()
    fourth = peer.post_get(timeout_ms=600_000)
    [reader] = broker.state.leases.held_by("c1")
    reader.deadline_ms = clock.now_ms()
    broker.tick()
    assert code(fourth) == 411
    peer.register()
    fifth = peer.post_get()
    broker.core.remove_topic("demo")
    assert code(fifth) == 411
    peer.register()
    sixth = peer.post_get()
    await close(broker)
    assert code(sixth) == 503


async def test_a_closed_connection_leaves_nothing_behind(peer: Peer, broker: Broker) -> None:
    other = Peer(broker)
    peer.register()
    other.register(groupName="h")
    serial, kept = peer.post_get(), other.post_get(groupName="h")
    peer.service.closed(None)
    assert broker.gets.held_count == 1
    await peer.send()
    assert peer.got(serial) is None
    assert other.got(kept) is not None
    assert len(broker.state.leases) == 2, "leases end by time"


async def test_a_consumer_with_one_thread_finds_the_partition_with_messages(
    peer: Peer, broker: Broker
) -> None:
    for number in range(3):
        peer.register(partitionId=number)
    held = peer.post_get(partitionId=0)
    await peer.send(partitionId=2, data=b"there")
    released = peer.got(held)
    assert released is not None
    assert bodies(released) == [], "ask again at once"
    assert bodies(peer.get(partitionId=1)) == []
    assert peer.got(peer.post_get(partitionId=1)) is None, "told once"
    assert bodies(peer.get(partitionId=2)) == [b"there"]
    assert peer.got(peer.post_get(partitionId=0)) is None, "nothing more to find"
    assert broker.gets.held_count == 2


async def test_a_backlog_is_not_waited_beside(store: Store, clock: ManualClock) -> None:
    broker = Broker(BrokerOptions(transfer_bytes=1), Core(store, clock.now_ms))
    serve(broker)
    peer = Peer(broker)
    for _ in range(3):
        await peer.send(partitionId=1)
    peer.register(partitionId=0)
    held = peer.post_get(partitionId=0)
    peer.register(partitionId=1)
    assert peer.got(held) is not None, "the new partition has messages"
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert bodies(peer.get(partitionId=0)) == [], "there are more"
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert peer.got(peer.post_get(partitionId=0)) is None, "that was all"
    await close(broker)


async def test_a_consumer_that_never_asks_does_not_make_the_others_spin(peer: Peer) -> None:
    peer.register(partitionId=0)
    peer.register(partitionId=1)
    answered = 0
    for _ in range(20):
        serial = peer.post_get(partitionId=0)
        await peer.send(partitionId=1)
        answered += peer.got(serial) is not None
    assert answered == 1, "the first; each later one waits until the next one takes its place"
    codes = [
        methods.parse(pb.GetMessageResponseB2C, answer.body).errCode
        for answer in peer.wire.answers.values()
        if isinstance(answer, Response) and answer.method == methods.GET_MESSAGES
    ]
    assert codes.count(200) == 1


async def test_a_consumer_that_does_not_read_is_not_served(peer: Peer) -> None:
    await peer.send(data=b"x" * 1000)
    peer.register()
    peer.wire.full = True
    serials = [peer.post_get(lastPackConsumed=False) for _ in range(3)]
    assert not peer.wire.reading
    await asyncio.sleep(0)
    assert all(peer.got(serial) is None for serial in serials)
    peer.wire.full = False
    peer.wire.room.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert all(peer.got(serial) is not None for serial in serials)
    assert peer.wire.reading
    assert peer.got(peer.post_get(lastPackConsumed=False)) is not None


async def test_a_connection_that_ends_while_its_gets_are_put_off(
    peer: Peer, broker: Broker
) -> None:
    peer.register()
    peer.wire.full = True
    peer.post_get()
    await asyncio.sleep(0)
    peer.service.closed(None)
    peer.wire.room.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert broker.gets.held_count == 0
