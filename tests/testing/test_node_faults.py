"""Faults on demand, in virtual time and on a node with real sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import coherer
import coherer.blocking
from coherer._net import Connection
from coherer._server.node.node import Node
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.session import Session
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import ClientSession
from coherer.errors import (
    CohererError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    StoreError,
    UnavailableError,
    UsageError,
)
from coherer.message import Message
from coherer.testing import (
    EmbeddedNode,
    Fault,
    NodeFaults,
    SimulatedNode,
    async_embedded_node,
    embedded_node,
    simulate,
)
from coherer.testing.faults import taps_of
from tests.waiting import until

PROTOCOLS = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])


def connect(node: SimulatedNode | EmbeddedNode, protocol: str) -> coherer.Client:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    return coherer.connect(url, timeout_ms=3_000)


@PROTOCOLS
async def test_refused_requests(coherer_simulated: SimulatedNode, protocol: str) -> None:
    node, code = coherer_simulated, {"tubemq": 415, "rocketmq": 16}[protocol]
    for topic in ("orders", "other"):
        node.create_topic(topic)
    async with connect(node, protocol) as client, client.producer() as producer:
        with node.faults.refuse("send", code, "No, says the test.", topic="orders") as refused:
            await producer.send(Message("other", b"0"))
            with pytest.raises(RefusedError, match="No, says the test") as caught:
                await producer.send(Message("orders", b"1"))
        assert caught.value.code == code
        assert refused.hits >= 1
        hits = refused.hits
        await producer.send(Message("orders", b"2"))
        assert refused.hits == hits, "the fault has ended with its block"
    assert node.requests.count("send", topic="orders") == hits + 1
    assert node.requests.count("send", topic="other") == 1
    assert {one.protocol for one in node.requests.of("send")} == {protocol}


@PROTOCOLS
async def test_only_some_requests_are_struck(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """A temporary refusal, which the client overcomes."""
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.consumer("shop", "orders") as consumer:
        busy = {"tubemq": 419, "rocketmq": 2}[protocol]
        async with client.producer() as producer:
            with node.faults.refuse("receive", busy, group="shop", times=2) as refused:
                await asyncio.sleep(60)
                await producer.send(Message("orders", b"1"))
                batch = await consumer.receive()
            assert batch is not None
            assert refused.hits == 2


MAKE: dict[str, Callable[[NodeFaults], Fault]] = {
    "lost": lambda faults: faults.lose("send", times=1),
    "answer lost": lambda faults: faults.lose_answer("send", times=1),
    "late": lambda faults: faults.delay("send", 2.0, times=1),
    "answered late": lambda faults: faults.delay_answer("send", 2.0, times=1),
}


@PROTOCOLS
@pytest.mark.parametrize(
    ("fault", "is_stored", "takes_s"),
    [
        ("lost", False, None),
        ("answer lost", True, None),
        ("late", True, 2),
        ("answered late", True, 2),
    ],
)
async def test_lost_and_late(
    coherer_simulated: SimulatedNode,
    protocol: str,
    fault: str,
    is_stored: bool,
    takes_s: float | None,
) -> None:
    node, loop = coherer_simulated, asyncio.get_running_loop()
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer() as producer:
        first = await producer.send(Message("orders", b"first"))
        began_s = loop.time()
        with MAKE[fault](node.faults):
            if takes_s is None:
                with pytest.raises(RequestTimeoutError):
                    await producer.send(Message("orders", b"1"))
            else:
                await producer.send(Message("orders", b"1"))
                assert loop.time() - began_s == pytest.approx(takes_s, abs=0.1)
        last = await producer.send(Message("orders", b"last"))
        assert first.offset is not None
        assert last.offset == first.offset + 1 + is_stored


@PROTOCOLS
async def test_connections_that_fail(coherer_simulated: SimulatedNode, protocol: str) -> None:
    node, loop = coherer_simulated, asyncio.get_running_loop()
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer() as producer:
        await producer.send(Message("orders", b"0"))
        node.faults.reset()
        with pytest.raises(DisconnectedError):
            await producer.send(Message("orders", b"1"))
        await producer.send(Message("orders", b"2"))

        with node.faults.black_hole():
            began_s = loop.time()
            with pytest.raises(UnavailableError):
                await producer.send(Message("orders", b"3"))
            assert loop.time() - began_s == pytest.approx(3, abs=0.1)
        await producer.send(Message("orders", b"4"))

        node.faults.half_open()
        with pytest.raises(UnavailableError):
            await producer.send(Message("orders", b"5"))
        while True:  # until the client gives the connection up
            try:
                await producer.send(Message("orders", b"6"))
            except UnavailableError:
                continue
            break


@PROTOCOLS
@pytest.mark.parametrize("kill", [False, True])
async def test_a_node_that_is_down(
    coherer_simulated: SimulatedNode, protocol: str, kill: bool
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer() as producer:
        await producer.send(Message("orders", b"stored"))
        async with node.down(kill=kill):
            with pytest.raises(CohererError):
                await producer.send(Message("orders", b"lost"))
            with pytest.raises(UsageError, match="does not run"):
                _ = node.node
            await asyncio.sleep(3600)
        async with client.consumer("shop", "orders", start="earliest") as consumer:
            batch = await consumer.receive()
            assert batch is not None
            assert batch.bodies() == [b"stored"]


async def test_blocks_in_which_a_node_is_down_may_overlap(coherer_simulated: SimulatedNode) -> None:
    node = coherer_simulated
    async with node.down(kill=True):
        async with node.down():
            assert not node.is_running
        assert not node.is_running, "the other block has not ended"
    assert node.is_running
    async with node.down():
        await node.stop()
    assert not node.is_running, "the test has stopped it"
    async with node.down(kill=True):
        pass
    assert not node.is_running, "as before the block"
    await node.start()
    async with node.down():
        node.kill()
        await node.start()
        assert node.is_running
    assert node.is_running


@pytest.mark.parametrize("turns", range(1, 12))
async def test_the_last_wish_counts_whatever_is_going_on(
    coherer_simulated: SimulatedNode, turns: int
) -> None:
    """A test and a fault of `explore` start, stop and kill one node at the same time."""
    node = coherer_simulated

    async def after(first: Coroutine[Any, Any, None], then: Callable[[], Any]) -> None:
        task = asyncio.create_task(first)
        for _ in range(turns):
            await asyncio.sleep(0)
        if (second := then()) is not None:
            await second
        await asyncio.wait_for(task, 60)

    async def strike() -> None:
        async with node.down():
            await asyncio.sleep(5)

    await after(node.stop(), node.start)
    assert node.is_running
    await after(strike(), node.kill)
    assert not node.is_running
    await after(node.start(), node.start)
    assert node.is_running
    node.create_topic(f"t{turns}")
    async with node.down(kill=True):
        await after(strike(), node.kill)
    assert not node.is_running
    await after(node.start(), node.stop)
    assert not node.is_running
    await after(node.start(), node.kill)
    assert not node.is_running
    await node.start()
    striking = asyncio.create_task(strike())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with node.down(kill=True):
        await asyncio.sleep(1)
    await asyncio.wait_for(striking, 60)
    assert node.is_running, "both blocks have ended"
    cancelled = asyncio.create_task(strike())
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await node.start()
    assert node.is_running


def test_an_embedded_node_is_where_it_was_after_a_block(tmp_path: Path) -> None:
    with embedded_node(tmp_path) as node:
        with node.down(), node.down(kill=True):
            assert not node.is_running
        assert node.is_running
        with node.down():
            node.stop()
        assert not node.is_running
        with node.down(kill=True):
            pass
        assert not node.is_running
        node.start()
        assert node.is_running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares ports so")
def test_nobody_else_gets_the_ports_of_a_node_that_is_down(tmp_path: Path) -> None:
    with embedded_node(tmp_path) as node:
        ports = [*node.node.ports().values()]
        for kill in (False, True):
            with node.down(kill=kill):
                for port in ports:
                    with socket.socket() as other, pytest.raises(OSError, match="in use"):
                        other.bind(("127.0.0.1", port))
                    with pytest.raises(ConnectionRefusedError):
                        socket.create_connection(("127.0.0.1", port))
            assert [*node.node.ports().values()] == ports
        node.restart()
        assert [*node.node.ports().values()] == ports


@PROTOCOLS
async def test_disks_that_fail(coherer_simulated: SimulatedNode, protocol: str) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer() as producer:
        with node.faults.disk_full(), pytest.raises(RefusedError, match="full"):
            await producer.send(Message("orders", b"0"))
        await asyncio.sleep(10)
        await producer.send(Message("orders", b"1"))


@PROTOCOLS
def test_a_sync_that_fails(protocol: str) -> None:
    """The node acknowledges no message as durable that is not on the disk."""

    async def main() -> None:
        node.create_topic("orders")
        async with connect(node, protocol) as client, client.producer() as producer:
            await producer.send(Message("orders", b"0"))
            with node.faults.sync_fails():
                if protocol == "rocketmq":  # a receipt says it there
                    receipt = await producer.send(Message("orders", b"1"))
                    assert "FLUSH_DISK_TIMEOUT" in repr(receipt)
                else:
                    with pytest.raises(CohererError):
                        await producer.send(Message("orders", b"1"))
            # It does not trust this disk any more.
            with pytest.raises(CohererError, match=r"disk has failed.*check its disk"):
                await producer.send(Message("orders", b"2"))
            async with node.down(kill=True):
                pass
            await producer.send(Message("orders", b"3"))

    node = SimulatedNode(flush="sync")
    node.run(main())


async def test_a_standby(coherer_simulated: SimulatedNode) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    with node.faults.standby(), pytest.raises(UnavailableError, match=r"standby|not .*active"):
        async with connect(node, "tubemq") as client, client.consumer("shop", "orders"):
            pass
    async with connect(node, "tubemq") as client, client.consumer("shop", "orders"):
        pass


@PROTOCOLS
async def test_an_expired_consumer_comes_back(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with (
        connect(node, protocol) as client,
        client.consumer("shop", "orders") as consumer,
        client.producer() as producer,
    ):
        await asyncio.sleep(60)
        before = node.requests.count("register" if protocol == "tubemq" else "heartbeat")
        node.faults.expire("shop")
        await asyncio.sleep(60)
        after = node.requests.count("register" if protocol == "tubemq" else "heartbeat")
        assert after > before
        await producer.send(Message("orders", b"1"))
        batch = await consumer.receive()
        assert batch is not None


@PROTOCOLS
@pytest.mark.parametrize("members", [1, None])
async def test_revoked_partitions(
    coherer_simulated: SimulatedNode, protocol: str, members: int | None
) -> None:
    node, held, news = coherer_simulated, {"a": set[object](), "b": set[object]()}, Counter[str]()
    node.create_topic("orders", 4)

    def consumer(client: coherer.Client, name: str) -> coherer.Consumer:
        def assigned(partitions: Iterable[Any]) -> None:
            held[name] |= (found := {one for one in partitions if one.topic == "orders"})
            news["assigned"] += len(found)

        def revoked(partitions: Iterable[Any]) -> None:
            held[name] -= (gone := {one for one in partitions if one.topic == "orders"})
            news["revoked"] += len(gone)

        return client.consumer("shop", "orders", on_assigned=assigned, on_revoked=revoked)

    def shares() -> list[int]:
        return sorted(map(len, held.values()))

    async with (
        connect(node, protocol) as one,
        connect(node, protocol) as two,
        consumer(one, "a"),
        consumer(two, "b"),
    ):
        await until(lambda: shares() == [2, 2], 600)
        news.clear()
        left = [0, 4] if members else [0, 0]
        with node.faults.revoke("shop", members=members):
            await until(lambda: shares() == left, 600)
            await asyncio.sleep(300)
            assert shares() == left
            assert news == ({"revoked": 2, "assigned": 2} if members else {"revoked": 4})
            with node.faults.revoke("shop"):
                await until(lambda: shares() == [0, 0], 600)
            await until(lambda: shares() == left, 600)
            await asyncio.sleep(300)
            assert shares() == left
        await until(lambda: shares() == [2, 2], 600)
        with pytest.raises(UsageError, match="no members"), node.faults.revoke("nobody"):
            raise AssertionError("there is no such group")


@PROTOCOLS
async def test_a_node_with_real_sockets(protocol: str) -> None:
    with embedded_node(admin_port=None) as node:
        node.create_topic("orders")
        async with connect(node, protocol) as client, client.producer() as producer:
            with node.faults.lose_answer("send", times=1) as lost:
                await producer.publish("orders")
                sending = producer.submit(Message("orders", b"0"))
                while not lost.hits:  # noqa: ASYNC110 - the node is in another thread
                    await asyncio.sleep(0.002)
                node.faults.reset()
                with pytest.raises(DisconnectedError):
                    await sending
            with node.down(), pytest.raises(CohererError):
                await producer.send(Message("orders", b"down"))
            receipt = await producer.send(Message("orders", b"1"))
            assert receipt.offset == 1, "the first one was stored"
        assert node.requests.count("send", topic="orders") >= 2
        assert "send" in repr(node.requests).lower()


def test_a_request_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no request 'sned'"):
        NodeFaults().lose("sned")


def test_the_error_of_a_test_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(node: Node) -> None:
        await stop(node)
        raise StoreError("The disk is gone.")

    stop = Node.stop
    monkeypatch.setattr(Node, "stop", broken)
    notes = ["The node failed afterwards: The disk is gone."]

    async def in_loop() -> None:
        async with async_embedded_node():
            raise AssertionError("of the test")

    async def simulated() -> None:
        raise AssertionError("of the test")

    def embedded() -> None:
        with embedded_node():
            raise AssertionError("of the test")

    for run in (
        embedded,
        lambda: asyncio.run(in_loop()),
        lambda: simulate(in_loop()),
        lambda: SimulatedNode().run(simulated()),
    ):
        with pytest.raises(AssertionError, match="of the test") as failure:
            run()
        assert failure.value.__notes__ == notes
    with pytest.raises(StoreError, match="The disk is gone"), embedded_node():
        pass  # without an error of the test, this one is raised


@pytest.mark.parametrize("restart", [True, False])
def test_a_failed_sync_of_the_test_does_not_fail_the_stop(*, restart: bool) -> None:
    with embedded_node(flush="sync") as node:
        node.create_topic("orders")
        with (
            coherer.blocking.connect(node.rocketmq_url) as client,
            client.producer("orders") as producer,
        ):
            with node.faults.sync_fails(), suppress(CohererError):  # or the receipt says it
                producer.send(Message("orders", b"1"))
            if restart:
                node.restart()
                assert "FLUSH_DISK_TIMEOUT" not in repr(producer.send(Message("orders", b"2")))


@PROTOCOLS
async def test_a_fault_that_strikes_nothing_says_so(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        silent = r"faults.refuse\('send', topic='order'\) has struck no request"
        refused = node.faults.refuse("send", 14, topic="order")  # a typing error
        with pytest.warns(UserWarning, match=silent) as told, refused:
            await producer.send(Message("orders", b"1"))
        assert told[0].filename == __file__
        with pytest.raises(LookupError), node.faults.lose("send"):
            raise LookupError  # this says enough


@PROTOCOLS
async def test_a_delayed_request_meets_the_faults_of_inner_blocks(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        lost = node.faults.lose_answer("send", times=1)
        with node.faults.delay("send", 0.1), lost, pytest.raises(CohererError):
            await producer.send(Message("orders", b"2"))
        assert lost.hits == 1
        with node.faults.lose("send", times=1) as lost, node.faults.delay("send", 0.1, times=1):
            with pytest.raises(CohererError):
                await producer.send(Message("orders", b"3"))
            await producer.send(Message("orders", b"4"))
        assert lost.hits == 1


@PROTOCOLS
async def test_requests_are_recorded_before_anybody_looks(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number * 100_000))
        assert node.requests.count("send", topic="orders") == 3
        with node.faults.lose("send", times=1) as lost, pytest.raises(CohererError):
            await producer.send(Message("orders", b"lost"))
        await producer.send(Message("orders", b"after"))
    assert lost.hits == 1
    assert node.requests.count("send", topic="orders") == 5


class Recorder:
    """A receiver of bytes."""

    def __init__(self) -> None:
        self.read = bytearray()

    def received(self, data: bytes) -> None:
        self.read.extend(data)

    def closed(self, error: Exception | None) -> None:
        del error


class Silent(asyncio.Transport):
    """A connection on which nothing is sent."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low


def connected() -> Connection:
    connection = Connection(lambda _: Recorder())
    connection.connection_made(Silent())
    return connection


def heartbeat(protocol: str) -> bytes:
    if protocol == "rocketmq":
        return Session().request(RequestCode.HEART_BEAT, body=b"{}")[1]
    message = pb.HeartRequestP2M(clientId="me", brokerCheckSum=-1, hostName="here")
    return ClientSession().request(methods.PRODUCER_HEARTBEAT, message, 1_000)[1]


@PROTOCOLS
@pytest.mark.parametrize("cut", [1, 5, 11, 20])
async def test_a_fault_that_begins_within_a_request(protocol: str, cut: int) -> None:
    """The beginning of the request is there already, so it arrives; the next one is struck."""
    faults, recorder, one = NodeFaults(), Recorder(), heartbeat(protocol)
    taps = taps_of(faults)
    tap = taps.tap(protocol, lambda _: recorder)(connected())
    tap.received(one + one[:cut])
    assert bytes(recorder.read) == one + one[:cut]
    with faults.lose("heartbeat") as lost:
        tap.received(one[cut:] + one + one[:cut])
        assert bytes(recorder.read) == one + one
    assert lost.hits == 1
    tap.received(one[cut:])  # what was held back
    tap.received(one)
    assert bytes(recorder.read) == one * 4
    assert taps.requests.count("heartbeat") == 5


@PROTOCOLS
@pytest.mark.filterwarnings("ignore:.* has struck no request")
@pytest.mark.parametrize("looking", [True, False])
async def test_what_is_no_request_passes(*, protocol: str, looking: bool) -> None:
    faults, recorder, one = NodeFaults(), Recorder(), heartbeat(protocol)
    taps = taps_of(faults)
    tap = taps.tap(protocol, lambda _: recorder)(connected())
    with faults.lose("send") if looking else nullcontext():
        tap.received(one + b"\0" * 40)
        tap.received(b"more")
    assert bytes(recorder.read) == one + b"\0" * 40 + b"more"
    assert taps.requests.count("heartbeat") == 1


@PROTOCOLS
async def test_a_fault_that_is_used_up_leaves_the_others(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """A request is struck by each fault that it meets, until one keeps it from the node."""
    node, loop = coherer_simulated, asyncio.get_running_loop()
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        with (
            node.faults.refuse("send", code=1, times=1) as refused,
            node.faults.delay_answer("send", 1.0) as answered,
            node.faults.delay("send", 1.0) as delayed,
        ):
            if protocol == "tubemq":
                with pytest.raises(CohererError):
                    await producer.send(Message("orders", b"0"))
            began_s = loop.time()
            await producer.send(Message("orders", b"1"))
            assert loop.time() - began_s == pytest.approx(2, abs=0.1)
        assert (refused.hits, answered.hits, delayed.hits) == (1, 1, 1)


@PROTOCOLS
@pytest.mark.parametrize("fault", ["delay", "delay_answer"])
async def test_what_is_late_is_lost_in_a_black_hole(
    coherer_simulated: SimulatedNode, protocol: str, fault: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        with getattr(node.faults, fault)("send", 1.0):
            sent = asyncio.ensure_future(producer.send(Message("orders", b"1")))
            await asyncio.sleep(0.5)
        with node.faults.black_hole():
            await asyncio.sleep(1)
        with pytest.raises(RequestTimeoutError):
            await sent
        with getattr(node.faults, fault)("send", 1.0):
            sent = asyncio.ensure_future(producer.send(Message("orders", b"2")))
            await asyncio.sleep(0.5)
        node.faults.half_open()
        with pytest.raises(UnavailableError):
            await sent


@PROTOCOLS
async def test_blocks_of_one_fault_overlap(coherer_simulated: SimulatedNode, protocol: str) -> None:
    """As those of a test and of `explore` do: a fault ends with its last block."""
    node = coherer_simulated
    node.create_topic("orders")
    async with connect(node, protocol) as client, client.producer("orders") as producer:
        for fault in (node.faults.black_hole, node.faults.disk_full):
            with fault():
                with fault():
                    pass
                with pytest.raises(CohererError):
                    await producer.send(Message("orders", b"1"))
        await producer.send(Message("orders", b"2"))


def test_a_standby_that_is_started_again_is_one(tmp_path: Path) -> None:
    """Also if it is stopped when the block ends."""
    with embedded_node(tmp_path) as node:
        node.create_topic("orders")
        with coherer.blocking.connect(node.url, timeout_ms=1_000) as client:
            with node.faults.standby():
                with node.faults.standby(), node.down():
                    pass
                with pytest.raises(UnavailableError, match=r"standby|not .*active"):
                    client.partitions("orders")
                node.stop()
            node.start()
            assert client.partitions("orders")


@PROTOCOLS
async def test_what_is_late_waits_for_the_end_of_another_request(protocol: str) -> None:
    faults, recorder, one = NodeFaults(), Recorder(), heartbeat(protocol)
    tap = taps_of(faults).tap(protocol, lambda _: recorder)(connected())
    tap.received(one[:11])
    tap.deliver(one + one)
    assert bytes(recorder.read) == one[:11]
    tap.received(one[11:15])
    assert bytes(recorder.read) == one[:11], "the end of a request is passed on as a whole"
    tap.received(one[15:] + one[:5])
    assert bytes(recorder.read) == one * 3
    tap.received(one[5:])
    tap.deliver(one)
    assert bytes(recorder.read) == one * 5


@PROTOCOLS
async def test_the_rest_of_a_request_is_lost_where_nothing_is_transported(protocol: str) -> None:
    faults, recorder, one = NodeFaults(), Recorder(), heartbeat(protocol)
    taps = taps_of(faults)
    tap = taps.tap(protocol, lambda _: recorder)(connected())
    tap.received(one[:11])
    taps.sever()
    tap.received(one[11:] + one)
    assert bytes(recorder.read) == one[:11]
