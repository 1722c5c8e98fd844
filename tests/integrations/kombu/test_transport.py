"""The transport as kombu's users see it: what is lost, repeated, reordered, and what it costs."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from kombu.exceptions import OperationalError

from coherer import blocking
from coherer.errors import UnavailableError, UsageError
from coherer.integrations.kombu import RocketMQ, link, session
from coherer.rocketmq import Message, Queue
from coherer.testing import ManualClock, embedded_node
from tests.integrations.kombu.conftest import Connect
from tests.integrations.programs import until


@contextmanager
def consuming(
    connection: kombu.Connection, *queues: kombu.Queue, prefetch: int = 0, no_ack: bool = False
) -> Iterator[list[Any]]:
    """Consume queues; yields the list of received messages, which are not acknowledged."""
    received: list[Any] = []
    channel = connection.channel()
    with kombu.Consumer(
        channel,
        queues,
        on_message=received.append,
        prefetch_count=prefetch or None,
        no_ack=no_ack,
    ):
        yield received


def drain(connection: kombu.Connection, holds: Callable[[], object]) -> None:
    """Handle events until a condition holds."""

    def step() -> object:
        if holds():
            return True
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        return holds()

    until(step)


def payloads(received: list[Any]) -> list[Any]:
    return [message.payload for message in received]


def test_a_prefetch_count_holds_back_what_is_behind_it(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("work")) as queue:
        for number in range(10):
            queue.put(number)
        with consuming(connection, queue.queue, prefetch=3) as received:
            drain(connection, lambda: len(received) == 3)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
            received[0].ack()
            drain(connection, lambda: len(received) == 4)
            for message in received[1:]:
                message.ack()
            drain(connection, lambda: len(received) == 7)


def test_consumers_in_several_connections_share_a_queue(connect: Connect) -> None:
    with connect(partitions=4) as one, connect(partitions=4) as other:
        queue = kombu.Queue("shared", routing_key="shared")
        with consuming(one, queue) as here, consuming(other, queue) as there:
            producer = kombu.Producer(one.channel())
            sent = 0

            def both() -> bool:
                nonlocal sent
                producer.publish(sent, routing_key="shared")
                sent += 1
                for connection in (one, other):
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.05)
                return bool(here) and bool(there)

            until(both)


def test_a_new_consumer_waits_for_what_others_have_in_hand(
    connect: Connect, prefix: str, coherer_rocketmq_url: str
) -> None:
    """A consumer that gives partitions up locks those from which it has messages."""
    queue = kombu.Queue("handover", routing_key="handover")
    group = f"{prefix}handover"
    options: dict[str, Any] = {"partitions": 4, "handover_ms": 60_000}
    with connect(**options) as old, connect(**options) as new:
        producer = kombu.Producer(old.channel())
        producer.publish("first", routing_key="handover", declare=[queue])
        with consuming(old, queue) as here, blocking.connect(coherer_rocketmq_url) as client:
            drain(old, lambda: here)
            here[0].ack()
            assert isinstance(client, blocking.rocketmq.Client)
            groups, queues = client.admin().groups, client.partitions(group)
            assert set(groups.lock(group, queues)) == set(queues)
            with consuming(new, queue) as there:
                for number in range(8):
                    producer.publish(number, routing_key="handover")
                with pytest.raises(TimeoutError):
                    new.drain_events(timeout=1.5)
                groups.unlock(group, queues)
                drain(new, lambda: there)


def test_two_processes_that_bind_a_queue_do_not_skip_what_is_published_meanwhile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reached, go_on = session.Session.ends, threading.Event(), threading.Event()

    async def late(self: session.Session, topics: Iterable[str]) -> dict[Queue, int]:
        if not reached.is_set():
            reached.set()
            await asyncio.to_thread(go_on.wait)
        return await real(self, topics)

    monkeypatch.setattr(session.Session, "ends", late)
    exchange = kombu.Exchange("orders", type="direct")
    queue = kombu.Queue("billing", exchange=exchange, routing_key="new")
    with connect() as slow, connect() as quick:
        binding = threading.Thread(target=queue(slow.channel()).declare)
        binding.start()
        assert reached.wait(30)
        queue(quick.channel()).declare()
        kombu.Producer(quick.channel(), exchange=exchange).publish("order", routing_key="new")
        go_on.set()
        binding.join()
        with consuming(slow, queue) as received:
            drain(slow, lambda: received)
            assert payloads(received) == ["order"]


def test_a_process_that_was_killed_while_it_bound_a_queue_stops_nobody(
    connect: Connect, prefix: str, coherer_rocketmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "REGISTER_S", 0.2)
    exchange = kombu.Exchange("orders", type="direct")
    queue = kombu.Queue("billing", exchange=exchange, routing_key="new")
    with connect() as connection, blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        client.admin().topics.create(f"{prefix}orders", 2, wait_ms=10_000)
        queues = client.partitions(f"{prefix}orders")
        assert set(client.admin().groups.lock(f"{prefix}billing", queues)) == set(queues)
        queue(connection.channel()).declare()
        producer = kombu.Producer(connection.channel(), exchange=exchange)
        producer.publish("order", routing_key="new")
        with consuming(connection, queue) as received:
            drain(connection, lambda: received)
            assert payloads(received) == ["order"]


def test_repeated_messages_are_marked_whatever_time_it_is_at_the_broker(
    connect: Connect,
) -> None:
    queue = kombu.Queue("skew", routing_key="skew")
    with embedded_node(clock=ManualClock()) as node:
        node.clock.advance(hours=1)
        with connect(node.rocketmq_url) as first:
            first.Producer().publish("work", routing_key="skew", declare=[queue])
            with consuming(first, queue) as received:
                drain(first, lambda: received)
        with connect(node.rocketmq_url) as second, consuming(second, queue) as received:
            drain(second, lambda: received)
            assert received[0].delivery_info["redelivered"]
            received[0].ack()
            second.Producer().publish("more", routing_key="skew")
            drain(second, lambda: len(received) == 2)
            assert not received[1].delivery_info.get("redelivered")


def test_a_delay_that_cannot_be_sent_on_repeats_nothing_else(
    connect: Connect, coherer_rocketmq_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = session.Session.send, threading.Event()

    async def refuse(self: session.Session, message: Message, content: dict[str, Any]) -> None:
        if self.due(content) is not None and not refused.is_set():
            refused.set()
            raise UnavailableError("The broker is down.")
        await real(self, message, content)

    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    queue = kombu.Queue("steps", routing_key="steps")
    with (
        connect(partitions=1) as connection,
        blocking.rocketmq.connect(coherer_rocketmq_url) as client,
        client.producer() as producer,
    ):
        connection.Producer().publish("first", routing_key="steps", declare=[queue])
        with consuming(connection, queue) as received:
            drain(connection, lambda: received)
            monkeypatch.setattr(session.Session, "send", refuse)
            early = forged(headers={"eta": tomorrow})
            producer.send(Message(f"{prefix}steps", early, tag="queue"))
            assert refused.wait(30)
            connection.Producer().publish("second", routing_key="steps")
            drain(connection, lambda: "second" in payloads(received))
            assert payloads(received) == ["first", "second"]


def test_what_a_closed_connection_has_not_acknowledged_is_delivered_again(connect: Connect) -> None:
    queue = kombu.Queue("again", routing_key="again")
    with connect() as first:
        with closing(first.SimpleQueue(queue)) as simple:
            simple.put("acknowledged")
            simple.put("not acknowledged")
        with consuming(first, queue) as received:
            drain(first, lambda: len(received) == 2)
            [done] = [one for one in received if one.payload == "acknowledged"]
            done.ack()
    with connect() as second, consuming(second, queue) as received:
        drain(second, lambda: received)
        assert payloads(received) == ["not acknowledged"]
        assert received[0].delivery_info["redelivered"]


def test_a_closed_channel_gives_back_what_it_has_not_acknowledged(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("channel")) as queue:
        queue.put("message")
        with connection.channel() as channel:
            message = until(lambda: channel.basic_get("channel"))
            assert not message.acknowledged
        again = until(lambda: connection.default_channel.basic_get("channel"))
        assert again.payload == "message"
        assert again.delivery_info["redelivered"]
        again.ack()


def test_a_requeued_message_may_go_to_another_consumer(connect: Connect) -> None:
    queue = kombu.Queue("requeue", routing_key="requeue")
    with connect() as connection:
        with closing(connection.SimpleQueue(queue)) as simple:
            simple.put("first")
            simple.put("second")
        with consuming(connection, queue) as received:
            drain(connection, lambda: len(received) == 2)
            received[0].requeue()
            drain(connection, lambda: len(received) == 3)
            assert received[2].payload == received[0].payload
            assert received[2].delivery_info["redelivered"]


def test_a_requeued_message_keeps_its_key(
    connect: Connect, coherer_rocketmq_url: str, prefix: str
) -> None:
    with connect() as connection, closing(connection.SimpleQueue("keys")) as queue:
        queue.put("task", correlation_id="task-1")
        queue.get(timeout=20).requeue()
        queue.get(timeout=20).ack()
    with blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        found = client.admin().messages.find(f"{prefix}keys", "task-1")
    assert len(found) == 2


@pytest.mark.parametrize("then", ["requeue", "close"])
def test_a_message_that_cannot_be_requeued_is_not_settled(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    queue = kombu.Queue("stuck", routing_key="stuck")

    async def refuse(*_: object) -> None:
        raise UnavailableError("The broker is down.")

    with connect() as connection:
        connection.Producer().publish("work", routing_key="stuck")
        with consuming(connection, queue) as received:
            drain(connection, lambda: received)
            with monkeypatch.context() as patch:
                patch.setattr(session.Session, "send", refuse)
                with pytest.raises(UnavailableError):
                    received[0].requeue()
            if then == "close":
                received[0].channel.close()
            else:
                received[0].requeue()
        with consuming(connection, queue) as again:
            drain(connection, lambda: again)
            assert payloads(again) == ["work"]


@pytest.fixture
def late(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, coherer_rocketmq_url: str, prefix: str
) -> Iterator[tuple[kombu.Connection, kombu.Queue, Any]]:
    """A connection, a queue, and its message, which took so long that the group was left."""
    monkeypatch.setattr(link, "LINGER_S", 0.05)
    monkeypatch.setattr(link, "LEAVE_S", 0.1)
    queue = kombu.Queue("late", routing_key="late")
    with connect() as connection, blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        with closing(connection.SimpleQueue(queue)) as simple:
            simple.put("long")
        bound = queue(connection.channel())
        message = until(bound.get)

        def left() -> bool:
            found = client.admin().groups.consumers(f"{prefix}late")
            return found is None or not found.members

        until(left)
        yield connection, queue, message


def test_a_message_of_a_group_that_was_left_is_requeued(
    late: tuple[kombu.Connection, kombu.Queue, Any],
) -> None:
    connection, queue, message = late
    message.requeue()
    with consuming(connection, queue) as received:
        drain(connection, lambda: received)
        assert payloads(received) == ["long"]
        assert received[0].delivery_info["redelivered"]
        received[0].ack()
        assert queue(connection.channel()).queue_declare(passive=True).message_count == 0


@pytest.mark.parametrize("settle", ["ack", "requeue"])
def test_a_message_of_a_group_that_was_left_is_another_one(
    late: tuple[kombu.Connection, kombu.Queue, Any], settle: str
) -> None:
    connection, queue, message = late
    with consuming(connection, queue) as received:
        drain(connection, lambda: received)
        getattr(message, settle)()
        assert queue(connection.channel()).queue_declare(passive=True).message_count == 0
        received[0].ack()
        assert payloads(received) == ["long"]


def test_a_rejected_message_is_a_dead_letter(
    connect: Connect, prefix: str, coherer_rocketmq_url: str
) -> None:
    with connect() as connection, closing(connection.SimpleQueue("reject")) as queue:
        queue.put("poison")
        queue.get(timeout=10).reject()
        with pytest.raises(queue.Empty):
            queue.get_nowait()
    with blocking.connect(coherer_rocketmq_url) as client:
        dead = f"%DLQ%{prefix}reject"
        assert isinstance(client, blocking.rocketmq.Client)
        assert sum(end for _, end in client.offsets(dead).values()) == 1


def forged(**parts: object) -> bytes:
    """A message as kombu stores it, with parts of types that kombu would never send."""
    head = {
        "content-type": "text/plain",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_info": {"exchange": "news", "routing_key": "foreign"}},
    }
    return json.dumps(head | parts).encode() + b"\nforged"


NO_MESSAGES = [
    b"no JSON",
    b"[]\n",
    b"\xff\n\xff",
    b"[" * 100_000,
    forged(properties=1),
    forged(properties={"delivery_info": 3}),
    forged(properties={"delivery_info": {"routing_key": [1]}}),
    forged(properties={"body_encoding": "base64"}),
    forged(properties={"body_encoding": "none"}),
    forged(headers=[1]),
    forged(headers={"__type__": "decimal", "__value__": "x"}),
    forged(headers={"__type__": "uuid", "__value__": 3}),
    forged(**{"content-encoding": 3}),
    forged(**{"content-type": ["text/plain"]}),
]

ODD_MESSAGES = [
    forged(headers=None),
    forged(properties={"priority": 1e400}),
    forged(properties={"priority": 10**400}),
    forged(properties={"priority": -3}),
    forged(properties={"priority": "high"}),
    forged(properties={"expiration": float("inf")}),
    forged(properties={"expiration": 10**400}),
    forged(properties={"delivery_info": {"consumer_tag": [1]}}),
    *(
        forged(headers={"eta": eta})
        for eta in (3, "soon", "-1", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
    ),
]


def test_what_only_an_attacker_sends_to_a_queue_stops_no_consumer(
    connect: Connect, prefix: str, coherer_rocketmq_url: str
) -> None:
    dead = f"%DLQ%{prefix}foreign"
    with (
        connect() as connection,
        closing(connection.SimpleQueue("foreign")) as queue,
        blocking.connect(coherer_rocketmq_url) as client,
        client.producer() as producer,
    ):
        assert isinstance(client, blocking.rocketmq.Client)
        queue.put("first")
        assert queue.get(timeout=10).payload == "first"
        for body in NO_MESSAGES + ODD_MESSAGES:
            producer.send(blocking.rocketmq.Message(f"{prefix}foreign", body, tag="queue"))
        queue.put("last")
        found = ""
        while found != "last":
            message = queue.get(timeout=10)
            found = message.payload
            message.ack()
        until(lambda: client.exists(dead))
        until(lambda: sum(end for _, end in client.offsets(dead).values()) == len(NO_MESSAGES))


def test_what_only_an_attacker_sends_to_an_exchange_stops_no_listener(
    connect: Connect, prefix: str, coherer_rocketmq_url: str
) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    queue = kombu.Queue("mine", exchange=exchange, auto_delete=True)
    with (
        connect() as connection,
        consuming(connection, queue, no_ack=True) as received,
        blocking.connect(coherer_rocketmq_url) as client,
        client.producer() as producer,
    ):
        for body in NO_MESSAGES + ODD_MESSAGES:
            producer.send(blocking.rocketmq.Message(f"{prefix}news", body))
        kombu.Producer(connection.channel(), exchange=exchange).publish("last")
        drain(connection, lambda: "last" in payloads(received))


def test_size_and_purge(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("full")) as queue:
        for number in range(5):
            queue.put(number)
        assert queue.qsize() == 5
        connection.default_channel.basic_get("full").ack()
        until(lambda: queue.qsize() == 4)
        assert queue.clear() == 4
        assert queue.qsize() == 0
        with pytest.raises(queue.Empty):
            queue.get_nowait()
        queue.put("later")
        assert queue.get(timeout=10).payload == "later"


def test_a_queue_without_consumers_can_be_purged(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("idle")) as queue:
        for number in range(3):
            queue.put(number)
    with connect() as connection, closing(connection.SimpleQueue("idle")) as queue:
        assert queue.clear() == 3
        queue.put("later")
        assert queue.get(timeout=10).payload == "later"


def test_a_deleted_queue_is_empty_when_it_is_declared_again(connect: Connect) -> None:
    with connect() as connection:
        with closing(connection.SimpleQueue("gone")) as queue:
            queue.put("old")
        connection.default_channel.queue_delete("gone")
        with pytest.raises(connection.channel_errors):
            connection.default_channel.queue_declare("gone", passive=True)
        with connect() as other, closing(other.SimpleQueue("gone")) as queue:
            queue.put("new")
            assert queue.get(timeout=10).payload == "new"


def topics_of(url: str, prefix: str) -> set[str]:
    """The topics and groups of a test, without its prefix."""
    with blocking.connect(url) as client:
        found = {*client.admin().topics.names(system=True), *client.admin().groups.names()}
    return {name.partition(prefix)[2] for name in found if prefix in name}


@pytest.mark.parametrize("kind", ["exclusive", "auto_delete"])
def test_an_automatic_queue_without_a_binding_leaves_nothing(
    connect: Connect, coherer_rocketmq_url: str, prefix: str, kind: str
) -> None:
    """Celery's `rpc://` reads its results from such a queue."""
    queue = kombu.Queue("replies", **{kind: True})
    with connect() as connection, connect() as other:
        with consuming(connection, queue, no_ack=True) as received:
            other.Producer().publish("done", routing_key="replies")
            drain(connection, lambda: received)
        assert "replies" in topics_of(coherer_rocketmq_url, prefix)
        connection.release()
        assert topics_of(coherer_rocketmq_url, prefix) == set()


def test_an_automatic_queue_stays_while_others_consume_it(connect: Connect) -> None:
    queue = kombu.Queue("shared", auto_delete=True)
    with (
        connect() as connection,
        connect() as other,
        consuming(other, queue, no_ack=True) as received,
    ):
        other.Producer().publish("first", routing_key="shared")
        drain(other, lambda: received)
        with consuming(connection, queue):
            connection.default_channel.basic_get("shared")
        connection.release()
        other.Producer().publish("second", routing_key="shared")
        drain(other, lambda: len(received) > 1)
        assert payloads(received) == ["first", "second"]


def test_a_queue_that_another_connection_deletes(connect: Connect) -> None:
    with connect() as connection, connect() as other:
        channel = connection.default_channel
        channel.queue_declare("shared")
        channel.queue_declare("shared", passive=True)
        other.default_channel.queue_delete("shared")
        for _ in range(2):
            with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
                channel.queue_declare("shared", passive=True)
        channel.queue_declare("shared")
        assert channel.queue_declare("shared", passive=True).queue == "shared"
        channel.queue_declare("own", auto_delete=True)
        assert channel.queue_declare("own", passive=True).queue == "own"


def test_a_topic_that_was_deleted_meanwhile_is_made_again(connect: Connect, prefix: str) -> None:
    with (
        embedded_node(auto_create_topics=False) as node,
        connect(node.rocketmq_url) as connection,
    ):
        publish = connection.Producer().publish
        publish("old", routing_key="gone")
        with blocking.connect(node.rocketmq_url) as client:
            client.admin().topics.delete(f"{prefix}gone")
        with pytest.raises(connection.channel_errors):
            connection.default_channel.queue_declare("gone", passive=True)
        publish("new", routing_key="gone")
        with closing(connection.SimpleQueue("gone")) as queue:
            assert queue.get(timeout=10).payload == "new"


def test_priorities_pass_a_long_backlog(connect: Connect) -> None:
    """A backlog that is longer than what a process prefetches does not delay what is urgent."""
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=10)
    with connect(prefetch=5, partitions=1) as connection:
        producer = kombu.Producer(connection.channel())
        for number in range(50):
            producer.publish(number, routing_key="urgent", declare=[queue], priority=0)
        with consuming(connection, queue, prefetch=1) as received:
            drain(connection, lambda: received)
            producer.publish("urgent", routing_key="urgent", priority=9)

            def urgent() -> bool:
                if not received[-1].acknowledged:  # nothing may have arrived since
                    received[-1].ack()
                return received[-1].payload == "urgent"

            drain(connection, urgent)
            assert len(received) < 20


def test_a_fanout_reaches_queues_of_other_connections(connect: Connect) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    durable = kombu.Queue("archive", exchange=exchange)
    with connect() as one, connect() as other, connect() as third:
        exchange(third.channel()).declare()
        durable(third.channel()).declare()  # nobody consumes it yet
        own = [kombu.Queue(name, exchange=exchange, auto_delete=True) for name in ("a", "b")]
        with consuming(one, own[0]) as here, consuming(other, own[1]) as there:
            kombu.Producer(third.channel(), exchange=exchange).publish("hello")
            drain(one, lambda: here)
            drain(other, lambda: there)
            assert payloads(here) == payloads(there) == ["hello"]
        with consuming(one, durable) as archived:
            drain(one, lambda: archived)
            assert payloads(archived) == ["hello"]
            archived[0].ack()


def test_replies_are_drained_one_by_one(connect: Connect) -> None:
    """`celery inspect` with destinations counts calls, and would wait for its timeout."""
    exchange = kombu.Exchange("replies", type="direct")
    queue = kombu.Queue("replies.1", exchange=exchange, routing_key="1", auto_delete=True)
    with (
        connect() as connection,
        connect() as worker,
        consuming(connection, queue, no_ack=True) as received,
    ):
        producer = kombu.Producer(worker.channel(), exchange=exchange)
        for number in range(5):
            producer.publish(number, routing_key="1", declare=[exchange])
        for number in range(5):
            connection.drain_events(timeout=30)
            assert len(received) == number + 1


def test_what_was_published_before_a_queue_was_bound_is_not_delivered(connect: Connect) -> None:
    exchange = kombu.Exchange("log", type="topic")
    with connect() as connection:
        producer = kombu.Producer(connection.channel(), exchange=exchange)
        producer.publish("before", routing_key="a.b", declare=[exchange])
        queues = [
            kombu.Queue("durable", exchange=exchange, routing_key="a.*"),
            kombu.Queue("transient", exchange=exchange, routing_key="#", auto_delete=True),
            kombu.Queue("other", exchange=exchange, routing_key="b.*"),
        ]
        with consuming(connection, *queues) as received:
            producer.publish("after", routing_key="a.b")
            drain(connection, lambda: len(received) == 2)
            assert payloads(received) == ["after", "after"]


def test_a_direct_exchange_knows_queues_that_another_process_has_bound(connect: Connect) -> None:
    exchange = kombu.Exchange("jobs", type="direct")
    with connect() as consumer, connect() as publisher:
        queue = kombu.Queue("left", exchange=exchange, routing_key="l")
        with consuming(consumer, queue) as received:
            producer = kombu.Producer(publisher.channel(), exchange=exchange)
            producer.publish("right", routing_key="r", declare=[exchange])
            producer.publish("left", routing_key="l")
            drain(consumer, lambda: received)
            assert payloads(received) == ["left"]


def test_hundreds_of_queues_in_one_process(connect: Connect) -> None:
    queues = [kombu.Queue(f"q{number}", routing_key=f"q{number}") for number in range(100)]
    with (
        connect(partitions=1) as connection,
        consuming(connection, *queues, no_ack=True) as received,
    ):
        producer = kombu.Producer(connection.channel())
        for queue in queues:
            producer.publish(queue.name, routing_key=queue.name)
        drain(connection, lambda: len(received) == len(queues))
        assert set(payloads(received)) == {queue.name for queue in queues}


def test_waiting_costs_no_processor_time(connect: Connect) -> None:
    """The session's node runs in this process, too, so that its share counts."""
    queue = kombu.Queue("quiet", routing_key="quiet")
    with connect() as connection, consuming(connection, queue):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1)  # joined
        before = time.process_time()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=2)
        assert time.process_time() - before < 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_connects_again(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("forked")) as queue:
        queue.put("parent")
        child = os.fork()
        if not child:
            try:
                connection.collect()
                with closing(connection.SimpleQueue("forked")) as again:
                    again.put("child")
                connection.release()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        found = {queue.get(timeout=10).payload for _ in range(2)}
        assert found == {"parent", "child"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_just_close_its_parents_connection(connect: Connect) -> None:
    with connect() as connection, closing(connection.SimpleQueue("forked")) as queue:
        queue.put("parent")
        queue.get(timeout=10)
        child = os.fork()
        if not child:
            try:
                connection.release()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        queue.put("still works")
        assert queue.get(timeout=10).payload == "still works"


def test_a_connection_that_is_not_closed_ends_with_its_last_reference(
    coherer_rocketmq_url: str,
) -> None:
    connection = kombu.Connection(coherer_rocketmq_url)
    connection.connect()
    link = connection.transport.link
    del connection
    gc.collect()
    until(lambda: not link.alive)


def test_the_class_can_be_named_instead_of_imported(coherer_rocketmq_url: str) -> None:
    with kombu.Connection(
        coherer_rocketmq_url, transport="coherer.integrations.kombu:RocketMQ"
    ) as connection:
        assert isinstance(connection.transport, RocketMQ)
        assert connection.connect()


def test_wrong_options_and_accounts_are_named(coherer_rocketmq_url: str) -> None:
    with pytest.raises(UsageError, match="partitions"):
        kombu.Connection(coherer_rocketmq_url, transport_options={"partitions": "many"}).connect()
    with pytest.raises(OperationalError, match=r"127\.0\.0\.1:9"):
        kombu.Connection("rocketmq://127.0.0.1:9").ensure_connection(max_retries=1)
