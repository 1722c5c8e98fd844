"""The RocketMQ queue with a client that is a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import pytest

from coherer._client.engine.sender import SendReport
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, UnavailableError
from coherer.message import Message
from coherer.spark import rocketmq
from coherer.spark.options import Access
from coherer.spark.rocketmq import RocketMQQueue

MESSAGES = [Message("t", b"%d" % number) for number in range(10)]


class ListClient:
    """Accepts the messages that a test allows."""

    def __init__(self) -> None:
        self.window = 0
        self.taken: list[bytes] = []
        self.errors: list[CohererError | None] = []
        self.committed: list[tuple[str, Mapping[Queue, int]]] = []

    def producer(self, window: int, *, retry_lost: bool) -> ListClient:
        assert retry_lost, "the sink is at least once"
        self.window = window
        return self

    def start(self) -> None: ...

    def send_many(self, messages: Iterable[Message]) -> SendReport:
        failed: list[tuple[Message, CohererError]] = []
        for index, message in enumerate(messages):
            error = self.errors[index] if index < len(self.errors) else None
            if error is None:
                self.taken.append(message.body)
            else:
                failed.append((message, error))
        return SendReport(index + 1 - len(failed), failed)

    def admin(self) -> ListClient:
        return self

    def topics(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in ("%DLQ%g", "%RETRY%g", "a", "b")]

    def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        self.committed.append((group, offsets))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ListClient:
    client = ListClient()
    monkeypatch.setattr(rocketmq, "connect_rocketmq", lambda _url, **_options: client)
    return client


@pytest.fixture
def queue(client: ListClient) -> RocketMQQueue:
    return RocketMQQueue(Access(url="rocketmq://h:9876"))


def test_a_message_that_is_not_stored_fails_the_task(
    client: ListClient, queue: RocketMQQueue
) -> None:
    client.errors = [None, UnavailableError("No broker.")]
    with pytest.raises(UnavailableError, match=r"No broker\."):
        queue.send(MESSAGES, 7)
    assert len(client.taken) == len(MESSAGES) - 1
    assert client.window == 7


def test_system_topics_are_excluded(queue: RocketMQQueue) -> None:
    assert queue.topics() == ["a", "b"]


def test_commit_sets_offsets_of_queues(client: ListClient, queue: RocketMQQueue) -> None:
    queue.commit("g", {"t": {"broker-a:0": 4, "broker-a:1": 5}})
    offsets = {Queue("t", "broker-a", 0): 4, Queue("t", "broker-a", 1): 5}
    assert client.committed == [("g", offsets)]
