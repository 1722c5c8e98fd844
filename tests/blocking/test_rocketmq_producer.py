"""RocketMQ's producer, transactions and administration without asyncio, with our node."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import coherer.blocking
from coherer._client.rocketmq.transactions import Verdict
from coherer._wire.rocketmq.messages import SendReceipt
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.errors import ClosedError, CohererError, RefusedError, UsageError
from coherer.message import Message


@pytest.fixture
def client(coherer_rocketmq_url: str) -> Iterator[RocketClient]:
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as one:
        yield one


@pytest.fixture
def topic(client: RocketClient) -> str:
    name = f"P{uuid.uuid4().hex[:10]}"
    client.admin().topics.create(name, 2, wait_ms=5_000)
    return name


def stored(client: RocketClient, topic: str) -> list[bytes]:
    bodies: list[bytes] = []
    for queue in client.partitions(topic):
        with client.reader(queue, 0) as reader:
            for batch in reader:
                bodies += batch.bodies()
    return bodies


def test_every_way_of_sending(client: RocketClient, topic: str) -> None:
    outcomes: list = []
    with client.producer(topic, group="writers") as producer:
        assert (producer.group, producer.topics) == ("writers", {topic})
        receipt = producer.send(Message(topic, b"one", tag="a"))
        assert isinstance(receipt, SendReceipt)
        assert receipt.status == "SEND_OK"
        queue = client.partitions(topic)[1]
        assert producer.send(Message(topic, b"two"), queue=queue).partition == 1
        keyed = [producer.send(Message(topic, b"three"), order_by="k") for _ in range(2)]
        assert len({one.partition for one in keyed}) == 1
        assert producer.submit(Message(topic, b"four")).result(10).topic == topic
        producer.submit(Message(topic, b"five"), callback=outcomes.append)
        producer.flush()
        [batch] = producer.send_batch([Message(topic, b"six"), Message(topic, b"seven")])
        assert len(batch.id.split(",")) == 2
        producer.send_oneway(Message(topic, b"eight"))
        report = producer.send_many(Message(topic, b"many") for _ in range(1_000))
        assert (report.sent, report.failed) == (1_000, [])
        producer.ready()
        assert producer.in_flight == 0
    assert [type(outcome) for outcome in outcomes] == [SendReceipt]
    found = stored(client, topic)
    assert found.count(b"many") == 1_000
    words = {b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"many"}
    assert set(found) == words
    assert sum(high - low for low, high in client.offsets(topic).values()) == len(found)


def test_many_threads(client: RocketClient, topic: str) -> None:
    with client.producer(topic, window=10) as producer, ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda n: producer.send(Message(topic, b"%d" % n)), range(400)))
    assert len({(one.partition, one.offset) for one in receipts}) == 400
    assert sorted(stored(client, topic)) == sorted(b"%d" % n for n in range(400))


def test_errors_come_to_the_caller(client: RocketClient, topic: str) -> None:
    producer = client.producer(topic)
    producer.start()
    with pytest.raises(UsageError):
        producer.send(Message(topic, b""))
    with pytest.raises(UsageError):
        producer.send(Message(topic, b"x"), delay_level=-1)
    with pytest.raises(UsageError):
        producer.submit(Message(topic, b"")).result(10)
    failed: list = []
    producer.submit(Message(topic, b""), callback=failed.append)
    producer.flush()
    producer.close()
    assert isinstance(failed[0], CohererError)
    with pytest.raises(ClosedError):
        producer.send(Message(topic, b"x"))


def test_a_transaction(client: RocketClient, topic: str) -> None:
    with client.producer(topic, group="banks", check=lambda _: Verdict.UNKNOWN) as producer:
        with producer.transaction(Message(topic, b"kept")) as transaction:
            assert stored(client, topic) == []
            assert transaction.receipt is not None
            assert transaction.receipt.unique_id == transaction.id
        assert transaction.verdict is Verdict.COMMIT
        assert transaction.message.body == b"kept"
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"x")) as left:
            _ = 1 / 0
        assert left.verdict is Verdict.UNKNOWN
        thrown = producer.transaction(Message(topic, b"thrown"))
        thrown.begin()
        thrown.rollback()
        with pytest.raises(UsageError):
            thrown.commit()
        open_end = producer.transaction(Message(topic, b"open"))
        open_end.begin()
        open_end.leave()
    assert stored(client, topic) == [b"kept"]


def test_a_request_and_its_reply(client: RocketClient, topic: str) -> None:
    def answer() -> None:
        with (
            client.producer() as replier,
            client.consumer(f"r{topic}", topic, start="earliest") as consumer,
        ):
            batch = consumer.receive(10_000)
            assert batch is not None
            for message in batch:
                replier.reply(message, b"re:" + message.body)
            consumer.commit(batch)

    thread = threading.Thread(target=answer)
    thread.start()
    with client.producer(topic) as producer:
        reply = producer.request(Message(topic, b"ping"), timeout_ms=10_000)
    thread.join()
    assert reply.body == b"re:ping"


def test_administration(client: RocketClient, topic: str) -> None:
    admin = client.admin()
    assert client.exists(topic)
    assert not client.exists(f"no{topic}")
    with client.producer(topic) as producer:
        receipt = producer.send(Message(topic, b"x", keys=("k",)))
    assert admin.messages.get(receipt.id).body == b"x"
    assert [one.body for one in admin.messages.find(topic, "k")] == [b"x"]
    admin.groups.set_offsets("somebody", dict.fromkeys(client.partitions(topic), 0))
    admin.groups.create("somebody")
    [group] = admin.groups.list("somebody")
    assert topic in group.topics
    admin.topics.delete(topic)
    with pytest.raises(RefusedError):
        admin.topics.partitions(topic)
