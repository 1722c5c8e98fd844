"""The RocketMQ queue with a client that is a list."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from coherer._wire.rocketmq.names import Queue
from coherer.errors import UnavailableError
from coherer.spark import rocketmq
from coherer.spark.options import Access
from coherer.spark.rocketmq import RocketMQQueue


class ListClient:
    """Has four topics, and keeps the offsets that it is told."""

    def __init__(self) -> None:
        self.committed: list[tuple[str, Mapping[Queue, int]]] = []
        self.writable = [Queue("t", "broker-a", 0), Queue("t", "broker-a", 1)]
        self.topics = SimpleNamespace(
            list=self._topics, writable_queues=lambda topic: self.writable if topic == "t" else []
        )
        self.groups = SimpleNamespace(set_offsets=self._set_offsets)

    def admin(self) -> ListClient:
        return self

    def partitions(self, topic: str) -> list[Queue]:
        """A topic that is being made smaller, or has a broker that is only read."""
        return [*self.writable, Queue(topic, "broker-a", 2), Queue(topic, "broker-b", 0)]

    def _topics(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in ("%DLQ%g", "%RETRY%g", "a", "b")]

    def _set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        self.committed.append((group, offsets))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ListClient:
    client = ListClient()
    monkeypatch.setattr(rocketmq, "connect_rocketmq", lambda _url, **_options: client)
    return client


@pytest.fixture
def queue(client: ListClient) -> RocketMQQueue:
    return RocketMQQueue(Access(url="rocketmq://h:9876"))


def test_system_topics_are_excluded(queue: RocketMQQueue) -> None:
    assert queue.topics() == ["a", "b"]


def test_commit_sets_offsets_of_queues(client: ListClient, queue: RocketMQQueue) -> None:
    queue.commit("g", {"t": {"broker-a:0": 4, "broker-a:1": 5}})
    offsets = {Queue("t", "broker-a", 0): 4, Queue("t", "broker-a", 1): 5}
    assert client.committed == [("g", offsets)]


def test_rows_go_to_queues_that_accept_messages(client: ListClient, queue: RocketMQQueue) -> None:
    assert queue.places("t") == [("broker-a", 0), ("broker-a", 1)]
    client.writable = []
    with pytest.raises(UnavailableError, match="no writable queue"):
        queue.places("t")
