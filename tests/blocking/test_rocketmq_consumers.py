"""RocketMQ's consumers without asyncio, with our node."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import coherer.blocking
from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.names import Queue
from coherer.blocking import _portal
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.rocketmq import ReceivedBatch as RocketBatch
from coherer.blocking.rocketmq import ReceivedMessage as RocketReceived
from coherer.errors import UsageError
from coherer.message import Message
from coherer.testing.embedded import EmbeddedNode


@pytest.fixture
def client(coherer_rocketmq_url: str) -> Iterator[RocketClient]:
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as one:
        yield one


@pytest.fixture
def topic(coherer_node: EmbeddedNode) -> str:
    name = f"T{uuid.uuid4().hex[:10]}"
    coherer_node.create_topic(name)
    return name


def send(client: RocketClient, topic: str, *bodies: bytes) -> None:
    with client.producer(topic) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def group_of(topic: str) -> str:
    return topic.replace("T", "g", 1)


def test_a_loop_acknowledges_a_message_when_it_takes_the_next(
    client: RocketClient, topic: str
) -> None:
    send(client, topic, *[b"%d" % number for number in range(10)])
    with client.consumer(group_of(topic), topic, start="earliest") as consumer:
        consumer.wait_assigned(10_000)
        assert consumer.group == group_of(topic)
        assert topic in consumer.topics
        for message in consumer:
            assert isinstance(message, RocketReceived)
            if message.body == b"6":
                break
        batch = next(consumer.batches())
        assert batch.bodies() == [b"6", b"7", b"8", b"9"]
        [queue] = [queue for queue in consumer.assignment if queue.topic == topic]
        assert consumer.commit(batch)[queue] == consumer.progress[queue].offset == 10
        consumer.pause()
        assert queue in consumer.paused
        consumer.resume()
        assert consumer.receive(0) is None
    assert "closed" in repr(consumer)


def test_messages_are_retried_or_become_dead_letters(client: RocketClient, topic: str) -> None:
    send(client, topic, b"again", b"dead", b"fine")
    seen: list[tuple[bytes, int]] = []
    with client.consumer(group_of(topic), topic, start="earliest") as consumer:
        for batch in consumer.batches():
            for message in batch:
                seen.append((message.body, message.attempt))
                if message.body == b"dead":
                    message.dead_letter()
                elif message.body == b"again" and not message.attempt:
                    message.retry(later=1)
                else:
                    with pytest.raises(UsageError, match="not a delay level"):
                        message.retry(later=-7)
                    message.ack()
            if len(seen) == 4:
                break
    assert seen == [(b"again", 0), (b"dead", 0), (b"fine", 0), (b"again", 1)]
    [queue] = client.partitions(f"%DLQ%{group_of(topic)}")
    with client.reader(queue, 0) as reader:
        assert [batch.bodies() for batch in reader] == [[b"dead"]]


def test_handlers_run_in_threads(client: RocketClient, topic: str) -> None:
    send(client, topic, b"a", b"b", b"c")
    done, threads = threading.Event(), set[int]()
    seen: list[bytes] = []

    def handle(batch: RocketBatch) -> None:
        threads.add(threading.get_ident())
        for message in batch:
            if message.body == b"a" and not message.attempt:
                message.retry(later=1)
            else:
                seen.append(message.body)
                message.ack()
        if len(seen) == 3:
            done.set()

    options = {"start": "earliest", "batch_messages": 1}
    with client.consumer(group_of(topic), topic, **options) as consumer:
        working = threading.Thread(target=consumer.run, args=(handle,), kwargs={"workers": 2})
        working.start()
        assert done.wait(20)
        consumer.close()
        working.join(10)
    assert sorted(seen) == [b"a", b"b", b"c"]
    assert threading.get_ident() not in threads


def test_a_batch_that_is_retried_too_often_becomes_a_dead_letter(
    client: RocketClient, topic: str
) -> None:
    send(client, topic, b"a")
    with client.consumer(group_of(topic), topic, start="earliest", max_attempts=1) as consumer:
        batch = consumer.receive(10_000)
        assert batch is not None
        batch.retry()
        batch.ack()  # no effect any more
        [queue] = client.partitions(topic)
        assert consumer.commit()[queue] == 1
        assert consumer.receive(50) is None
        with pytest.raises(UsageError, match="acknowledged or retried before"):
            consumer.commit(batch)
    assert client.exists(f"%DLQ%{group_of(topic)}")


def test_seek(client: RocketClient, topic: str) -> None:
    send(client, topic, b"a", b"b", b"c")
    with client.consumer(group_of(topic), topic, start="earliest") as consumer:
        batch = consumer.receive(10_000)
        assert batch is not None
        assert batch.bodies() == [b"a", b"b", b"c"]
        [queue] = client.partitions(topic)
        consumer.seek(queue, 1)
        again = consumer.receive(10_000)
        assert again is not None
        assert again.bodies() == [b"b", b"c"]


def test_a_new_loop_continues_after_an_abandoned_one(client: RocketClient, topic: str) -> None:
    send(client, topic, b"dead", b"fine")
    with client.consumer(group_of(topic), topic, start="earliest") as consumer:
        next(iter(consumer)).dead_letter()
        assert next(iter(consumer)).body == b"fine"


def test_pulling(client: RocketClient, topic: str) -> None:
    send(client, topic, b"a", b"b", b"c")
    [queue] = client.partitions(topic)
    with client.pull_consumer(group_of(topic), start="earliest", auto_commit=False) as consumer:
        consumer.assign([queue])
        batch = consumer.poll(10_000)
        assert batch is not None
        assert [message.body for message in batch] == [b"a", b"b", b"c"]
        assert consumer.position(queue) == 3
        assert consumer.commit() == {queue: 3}
        assert consumer.committed(queue) == 3
        assert consumer.seek(queue, 1) == 1
        again = consumer.poll(10_000)
        assert again is not None
        assert again.offsets() == [1, 2]
        assert consumer.offset_of(queue, Edge.OLDEST) == 0
        assert consumer.queues(topic) == [queue] == [Queue(topic, "broker-a", 0)]
        assert consumer.poll(0) is None


def interrupted(future: Any) -> None:
    """Ctrl-C comes after the result, and before the call returns."""
    future.result()
    raise KeyboardInterrupt


def test_a_batch_that_comes_with_ctrl_c_is_received_again(
    client: RocketClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, topic, b"x")
    with client.consumer(f"g-{topic}", topic, start="earliest") as consumer:
        consumer.wait_assigned()
        with monkeypatch.context() as patch:
            patch.setattr(_portal, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive()
        batch = consumer.receive(20_000)
        assert batch is not None
        assert batch.bodies() == [b"x"]


def test_a_poll_that_is_interrupted_is_not_committed(
    client: RocketClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [*queues] = client.partitions(topic)
    with client.producer(topic) as producer:
        producer.send(Message(topic, b"x"), queue=queues[0])
    with client.pull_consumer(f"g-{topic}", start="earliest") as consumer:
        consumer.assign(queues[:1])
        with monkeypatch.context() as patch:
            patch.setattr(_portal, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(None)
        assert consumer.commit().get(queues[0], 0) == 0
        batch = consumer.poll(20_000)
        assert batch is not None
        assert batch.bodies() == [b"x"]
        assert consumer.commit()[queues[0]] == 1
