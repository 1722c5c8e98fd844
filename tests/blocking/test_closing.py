"""Threads whose client another thread, or a handler, closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

import coherer.blocking
from coherer.blocking import Client
from coherer.blocking._portal import Portal
from coherer.errors import ClosedError
from coherer.message import Message
from coherer.testing import EmbeddedNode, embedded_node

HOUR_MS = 3_600_000
GUARD_S = 60
"""A test that hangs fails after this time."""

numbers = count()


@pytest.fixture
def topic(coherer_node: EmbeddedNode) -> str:
    topic = f"closing-{next(numbers)}"
    coherer_node.create_topic(topic, 1)
    return topic


@pytest.fixture(params=["tubemq", "rocketmq"])
def client(coherer_node: EmbeddedNode, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = coherer_node.url if request.param == "tubemq" else coherer_node.rocketmq_url
    with coherer.blocking.connect(url) as client:
        yield client


@pytest.fixture
def consumer(client: Client, topic: str) -> Any:
    with client.producer(topic) as producer:
        producer.send(Message(topic, b"one"))
    consumer = client.consumer(f"{topic}-readers", topic, start="earliest")
    consumer.start()
    return consumer


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a thread that a hanging test leaves behind, and note what it returns or raises."""
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcomes


def test_a_handler_closes_the_client(client: Client, consumer: Any) -> None:
    thread, outcomes = in_thread(lambda: consumer.run(lambda _: client.close()))
    thread.join(GUARD_S)
    assert outcomes == [None]


@pytest.mark.parametrize("closed", ["client", "consumer"])
def test_a_coroutine_function_closes(client: Client, consumer: Any, closed: str) -> None:
    async def handle(_: object) -> None:
        (client if closed == "client" else consumer).close()

    thread, outcomes = in_thread(lambda: consumer.run(handle))
    thread.join(GUARD_S)
    assert outcomes == [None]
    client.close()
    with pytest.raises(ClosedError):
        client.partitions("any")


def test_a_callback_closes_the_client(client: Client, consumer: Any, topic: str) -> None:
    producer = client.producer(topic)
    producer.start()
    thread, outcomes = in_thread(consumer.receive)
    thread.join(GUARD_S)
    thread, outcomes = in_thread(consumer.receive)
    producer.submit(Message(topic, b"last"), callback=lambda _: client.close())
    thread.join(GUARD_S)
    assert len(outcomes) == 1
    client.close()  # waits until the callback's has ended
    with pytest.raises(ClosedError):
        producer.send(Message(topic, b"too late"))


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_two_threads_close_the_client(protocol: str) -> None:
    """The messages in flight get their receipts; both threads wait for that."""
    with embedded_node() as node:
        client = coherer.blocking.connect(node.url if protocol == "tubemq" else node.rocketmq_url)
        producer = client.producer("orders")
        producer.start()
        producer.publish("orders")
        with node.faults.delay_answer("send", 0.5):
            sent: Any = producer.submit(Message("orders", b"in flight"))
            other, _ = in_thread(client.close)
            client.close()
            assert sent.done()
            other.join(GUARD_S)
        assert sent.result().topic == "orders"


def test_run_returns_when_its_handler_has(client: Client, consumer: Any) -> None:
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def handle(_: object) -> None:
        begun.set()
        goes_on.wait(GUARD_S)
        done.set()

    running, outcomes = in_thread(lambda: (consumer.run(handle), done.is_set()))
    assert begun.wait(GUARD_S)
    closing, _ = in_thread(client.close)
    goes_on.set()
    closing.join(GUARD_S)
    running.join(GUARD_S)
    assert outcomes == [(None, True)]


def test_a_loop_ends_when_the_client_was_closed(client: Client, consumer: Any) -> None:
    seen = []
    for message in consumer:
        seen.append(message.body)
        client.close()
    assert seen == [b"one"]


def test_a_request_ends(coherer_node: EmbeddedNode, topic: str) -> None:
    client = coherer.blocking.rocketmq.connect(coherer_node.rocketmq_url)
    producer = client.producer()
    producer.start()
    requesting, outcomes = in_thread(
        lambda: producer.request(Message(topic, b"who?"), timeout_ms=HOUR_MS)
    )
    with client.pull_consumer(f"{topic}-watchers", topic, start="earliest") as watcher:
        assert watcher.poll(None) is not None  # the request is stored
    client.close()
    requesting.join(GUARD_S)
    assert [type(one) for one in outcomes] == [ClosedError]


class LateTopic(str):
    """A topic that a producer looks up after it was found open, and that then waits."""

    __slots__ = ("goes_on", "reached")

    def __hash__(self) -> int:
        self.reached.release()
        self.goes_on.wait(GUARD_S)
        return super().__hash__()


def test_senders_that_meet_the_end(client: Client, topic: str) -> None:
    with client.producer(topic) as producer:
        goes_on, reached = threading.Event(), threading.Semaphore(0)
        senders = []
        for _ in range(2):
            late = LateTopic(topic)
            late.goes_on, late.reached = goes_on, reached
            message = Message(late, b"late")
            senders.append(in_thread(lambda message=message: producer.send(message)))
        for _ in senders:
            assert reached.acquire(timeout=GUARD_S)
        client.close()
        goes_on.set()
        for thread, outcomes in senders:
            thread.join(GUARD_S)
            assert [type(one) for one in outcomes] == [ClosedError]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_handler_can_end_the_program(
    consumer: Any, client: Client, end: type[BaseException], kind: str
) -> None:
    """`run` raises what the handler has raised; the client can be used further, and closed."""

    def leave(batch: Any) -> None:
        del batch
        raise end

    async def leave_later(batch: Any) -> None:
        leave(batch)

    with pytest.raises(end):
        consumer.run(leave if kind == "function" else leave_later)
    assert next(iter(consumer)).body == b"one"
    client.close()


@pytest.mark.parametrize("end", [SystemExit, asyncio.CancelledError, ValueError])
def test_a_callback_breaks_nothing(client: Client, topic: str, end: type[BaseException]) -> None:
    """It runs in the client's thread: other threads wait for that, too."""

    def fail(outcome: object) -> None:
        del outcome
        raise end

    with client.producer(topic) as producer:
        producer.submit(Message(topic, b"1"), callback=fail)
        future = producer.submit(Message(topic, b"2"))
        assert isinstance(future, Future)
        future.add_done_callback(fail)
        assert producer.send(Message(topic, b"3")).topic == topic
        producer.flush()
        assert producer.in_flight == 0


def test_ctrl_c_in_one_send_holds_up_no_other(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Portal.post

    def interrupted(portal: Portal, work: Callable[[], object]) -> None:
        monkeypatch.setattr(Portal, "post", post)
        raise KeyboardInterrupt

    with client.producer(topic) as producer:
        monkeypatch.setattr(Portal, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.submit(Message(topic, b"1"))
        sending, outcomes = in_thread(lambda: producer.send(Message(topic, b"2")).topic)
        sending.join(GUARD_S)
        assert outcomes == [topic]
