"""Connections of a Spark process: reused, and closed after errors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from coherer.errors import DisconnectedError
from coherer.spark import connections
from coherer.spark.options import Access

if TYPE_CHECKING:
    from tests.conftest import Forked
    from tests.spark.queues import ListQueue

ACCESS = Access(url="list://x")


@pytest.fixture
def opened(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> Iterator[list[Access]]:
    found: list[Access] = []

    def open_list(access: Access) -> ListQueue:
        found.append(access)
        return list_queue

    monkeypatch.setitem(connections.OPENERS, "list", open_list)
    with forked():  # a process without connections
        yield found
    gc.unfreeze()


def test_tasks_reuse_a_connection(opened: list[Access]) -> None:
    with connections.shared_queue(ACCESS) as first:
        pass
    with connections.shared_queue(Access(url="list://x")) as second:
        assert second is first
    assert len(opened) == 1
    with connections.shared_queue(Access(url="list://x", user="u")):
        assert len(opened) == 2


def test_an_error_closes_the_connection(opened: list[Access], list_queue: ListQueue) -> None:
    with pytest.raises(DisconnectedError), connections.shared_queue(ACCESS):
        raise DisconnectedError("The broker is gone.")
    assert list_queue.closed
    with connections.shared_queue(ACCESS):
        assert len(opened) == 2


def test_stopping_early_keeps_the_connection(opened: list[Access], list_queue: ListQueue) -> None:
    def task() -> Iterator[int]:
        with connections.shared_queue(ACCESS):
            yield 1
            yield 2

    running = task()
    assert next(running) == 1
    del running
    gc.collect()
    assert not list_queue.closed
    with connections.shared_queue(ACCESS):
        assert len(opened) == 1


def test_a_child_process_opens_its_own_connection(opened: list[Access], forked) -> None:
    with connections.shared_queue(ACCESS):
        pass
    with forked(), connections.shared_queue(ACCESS):
        assert len(opened) == 2


def test_the_heap_is_frozen_for_the_first_two_tasks(
    opened: list[Access], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for _ in range(3):
        with connections.shared_queue(ACCESS):
            pass
    assert frozen == [1, 1]
