from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter
from datetime import timedelta

import pytest

import coherer.blocking
from coherer._wire.tubemq import codes, methods
from coherer.blocking import forget, shared
from coherer.blocking.tubemq import Client
from coherer.errors import (
    ClosedError,
    DisconnectedError,
    ForkedError,
    RequestTimeoutError,
    UsageError,
)
from coherer.message import Message, Receipt
from tests.client.tube_clients import by_key
from tests.threads import loop_threads


@pytest.fixture
def client(url: str):
    with coherer.blocking.connect(url, timeout_ms=2_000) as client:
        yield client


def message(body: bytes = b"x", topic: str = "demo") -> Message:
    return Message(topic, body)


def test_send_and_receive(fake, client: Client) -> None:
    with client.producer("demo") as producer:
        receipts = [producer.send(message(b"%d" % n)) for n in range(6)]
        assert Counter(receipt.partition for receipt in receipts) == {0: 2, 1: 2, 2: 2}
        assert producer.topics == {"demo"}
        assert producer.in_flight == 0
    with client.consumer("readers", "demo", start="earliest") as consumer:
        bodies = []
        for received in consumer:
            bodies.append(received.body)
            if len(bodies) == 6:
                break
        assert sorted(bodies) == [b"%d" % n for n in range(6)]


def test_submit(fake, kit, client: Client) -> None:
    outcomes: list[object] = []
    with client.producer("demo", window=10) as producer:
        futures = [producer.submit(message(b"%d" % n)) for n in range(50)]
        producer.submit(message(), callback=outcomes.append)
        fake.topics["other"] = 1
        late = producer.submit(message(topic="other"))
        assert late.result(5).topic == "other"
        assert len({future.result(5).offset for future in futures}) > 10
        fake.script(methods.SEND_MESSAGE, kit.refuse(403))
        producer.submit(message(), callback=outcomes.append)
        producer.flush()
        producer.ready()
        with pytest.raises(UsageError):
            producer.submit(message(b"")).result(5)
        with pytest.raises(UsageError):
            producer.send(message(b""))
    assert [type(outcome) for outcome in outcomes] == [Receipt, codes.ForbiddenError]


def test_many_messages_from_many_threads(fake, client: Client) -> None:
    with client.producer("demo", window=100) as producer:

        def work(number: int) -> None:
            for n in range(50):
                producer.send(message(b"%d:%d" % (number, n)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        report = producer.send_many((message(b"many:%d" % n) for n in range(2_000)), receipts=True)
        for thread in threads:
            thread.join()
    assert (report.sent, len(report.receipts), report.failed) == (2_000, 2_000, [])
    assert sum(map(len, fake.logs.values())) == 2_200


def test_batches_commit_retry_and_ack(fake, client: Client) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, *[b"%d" % n for n in range(20)])
    with client.consumer("readers", ["demo"], start="earliest") as consumer:
        assert len(consumer.wait_assigned(2_000)) == len(consumer.assignment) == 1
        consumer.receive(2_000).retry()
        batch = consumer.receive(2_000)
        assert list(consumer.commit(batch).values()) == [5]
        consumer.receive(2_000).retry(later=timedelta(0))
        consumer.receive(2_000).ack()
        offsets = []
        for batch in consumer.batches():
            offsets.append(batch.offset)
            if len(offsets) == 2:
                break
        assert offsets == [10, 15]
        assert next(consumer.batches()).offset == 15  # the loop before left it
        assert next(iter(consumer.progress.values())).offset == 15
        consumer.pause()
        assert consumer.paused
        consumer.resume()
        assert "1 with a batch to be acknowledged" in repr(consumer)
        assert consumer.group == "readers"
        assert consumer.receive(0) is None
    assert fake.stored["readers", "demo", 0] == 15


def test_a_loop_ends_when_the_consumer_is_closed_elsewhere(fake, client: Client) -> None:
    consumer = client.consumer("readers", "demo")
    consumer.start()
    threading.Timer(0.05, consumer.close).start()
    assert list(consumer) == []
    with pytest.raises(ClosedError):
        consumer.receive()


def test_a_handler(fake, client: Client) -> None:
    fake.put("demo", 1, *[b"x"] * 12)
    seen: list[bytes] = []
    with client.consumer("readers", "demo", start="earliest") as consumer:

        def handle(batch) -> None:
            seen.extend(batch.bodies())
            if len(seen) == 12:
                consumer.close()

        consumer.run(handle)
    assert len(seen) == 12


def test_a_reader_and_what_there_is(fake, client: Client) -> None:
    fake.put("demo", 1, *[b"%d" % n for n in range(12)])
    assert [one.id for one in client.partitions("demo")] == [0, 1, 2]
    assert by_key(client.offsets("demo")) == {
        "1:demo:0": (0, 0),
        "1:demo:1": (0, 12),
        "1:demo:2": (0, 0),
    }
    partition = client.partitions("demo")[1]
    with client.reader(partition, 3, end=10) as reader:
        assert (reader.exact, reader.position, reader.end) == (True, 3, 10)
        bodies = [body for batch in reader for body in batch.bodies()]
        assert bodies == [b"%d" % n for n in range(3, 10)]
        assert reader.read() is None
        assert "Reader of 1:demo:1 at 10" in repr(reader)
    assert not fake.holders


def test_callbacks_may_not_wait(fake, client: Client) -> None:
    caught: list[BaseException] = []
    with client.producer("demo") as producer:

        def callback(outcome: object) -> None:
            try:
                producer.send(message())
            except UsageError as error:
                caught.append(error)

        producer.submit(message(), callback=callback)
        producer.flush()
    assert "callback" in str(caught[0])


def test_ways_to_close(fake, url: str) -> None:
    client = coherer.blocking.connect(url)
    producer = client.producer("demo")
    producer.start()
    consumer = client.consumer("readers", "demo")
    consumer.start()
    client.close()
    client.close()
    producer.close()
    consumer.close()
    assert len(fake.asked(methods.PRODUCER_CLOSE)) == 1
    assert len(fake.asked(methods.CONSUMER_CLOSE)) == 1
    with pytest.raises(ClosedError):
        producer.send(message())
    with pytest.raises(ClosedError):
        client.producer()


def test_a_fork(fake, client: Client, forked) -> None:
    with client.producer("demo") as producer, forked():
        with pytest.raises(ForkedError):
            producer.send(message())
        with pytest.raises(ForkedError):
            client.offsets("demo")


def test_errors_come_through(fake, kit, client: Client) -> None:
    with client.producer("demo", timeout_ms=1_000) as producer:
        fake.script(methods.SEND_MESSAGE, kit.hang_up)
        with pytest.raises(DisconnectedError, match="may or may not"):
            producer.send(message())
        fake.script(methods.SEND_MESSAGE, kit.silence)
        with pytest.raises(RequestTimeoutError):
            producer.send(message())


def test_a_client_that_everybody_shares(fake, url: str) -> None:
    first = shared(url, timeout_ms=1_000)
    assert shared(url, timeout_ms=1_000) is first
    assert shared(url, timeout_ms=1_001) is not first
    forget(url, timeout_ms=1_001)
    forget(url, timeout_ms=1_000)
    again = shared(url, timeout_ms=1_000)
    assert again is not first
    forget(url, timeout_ms=1_000)
    forget(url, timeout_ms=1_000)


def test_nonsense_is_refused_before_a_thread_begins() -> None:
    before = loop_threads()
    with pytest.raises(UsageError):
        coherer.blocking.connect("http://127.0.0.1")
    assert not loop_threads() - before


def test_a_program_that_forgets_to_close(fake, url: str) -> None:
    program = (
        "import coherer, coherer.blocking\n"
        f"client = coherer.blocking.connect({url!r})\n"
        "producer = client.producer('demo')\n"
        "producer.start()\n"
        "producer.submit(coherer.Message('demo', b'last words'))\n"
        "consumer = client.consumer('readers', 'demo')\n"
        "consumer.start()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=30)
    assert [data for log in fake.logs.values() for data, _, _ in log] == [b"last words"]
    assert fake.asked(methods.PRODUCER_CLOSE)
    assert fake.asked(methods.CONSUMER_CLOSE)


def test_nothing_is_left_behind(fake, url: str) -> None:
    before = loop_threads()
    for _ in range(3):
        with coherer.blocking.connect(url) as client, client.producer("demo") as producer:
            producer.send(message())
    assert not loop_threads() - before
    gone = weakref.ref(client)
    del client, producer
    gc.collect()
    assert gone() is None
