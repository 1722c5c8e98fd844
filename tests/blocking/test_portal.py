from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest

from coherer._client.engine.sender import Sink, Window
from coherer.blocking._portal import Portal, wait_for
from coherer.blocking.tubemq import Producer
from coherer.errors import ClosedError, ForkedError, UsageError
from coherer.message import Message

GUARD_S = 60
"""A test that hangs fails after this time."""


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


def test_results_and_errors_come_through(portal: Portal) -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    assert portal.call(lambda: add(1, 2)) == 3
    assert portal.do(lambda: threading.current_thread().name) == "coherer"
    with pytest.raises(ZeroDivisionError):
        portal.do(lambda: 1 // 0)


def test_many_threads(portal: Portal) -> None:
    results: list[int] = []

    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    threads = [threading.Thread(target=lambda: results.append(portal.call(one))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results) == 20


def test_an_interrupted_wait_cancels_the_work(portal: Portal) -> None:
    started, ended = threading.Event(), threading.Event()

    class InterruptedFuture:
        def __init__(self, future) -> None:
            self.future = future

        def result(self, timeout: float | None = None) -> None:
            started.wait()
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.future.cancel()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    loop = portal.do(asyncio.get_running_loop)
    future = InterruptedFuture(asyncio.run_coroutine_threadsafe(work(), loop))
    with pytest.raises(KeyboardInterrupt):
        wait_for(future)  # type: ignore[arg-type]
    assert ended.wait(5)


def test_a_closed_portal(portal: Portal) -> None:
    portal.close()
    portal.close()
    with pytest.raises(ClosedError):
        portal.do(lambda: 1)
    assert not portal.usable


def test_a_call_ends_when_another_thread_closes_the_portal(portal: Portal) -> None:
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(3600)

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.call, wait)
        begun.wait()
        portal.close()
        assert isinstance(call.exception(GUARD_S), ClosedError)


@pytest.mark.filterwarnings("error")
def test_a_call_that_meets_the_end_of_the_loop(portal: Portal) -> None:
    async def answer() -> int:
        return 42

    def work() -> Coroutine[None, None, int]:  # after the portal was found open
        with ThreadPoolExecutor(1) as threads:
            threads.submit(portal.close).result(GUARD_S)
        return answer()

    with pytest.raises(ClosedError):
        portal.call(work)


def test_two_threads_close_the_portal(portal: Portal) -> None:
    class Owned:
        async def close(self) -> None:
            both.wait()  # holds the loop until the other thread waits for it, too
            await asyncio.sleep(0)

    both = threading.Event()
    portal.own(Owned())
    with ThreadPoolExecutor(2) as threads:
        closing = [threads.submit(portal.close) for _ in range(2)]
        both.set()
        assert [one.exception(GUARD_S) for one in closing] == [None, None]


def refuse(*_: object) -> None:
    raise ClosedError("The client is closed.")


class EndedProducer:
    """A producer that was found open, and then its client was closed."""

    unclosed = False
    in_flight = 0

    def __init__(self) -> None:
        self._published = {"orders"}
        self._window = Window(1_000, 1_000_000)
        self._bulk = self._check_open = self.check
        self._post = refuse

    def check(self) -> None:
        pass

    def _metered(self, _: Message, sink: Sink) -> Sink:
        return sink


def call_paused(step: int, work: Callable[[], object], meanwhile: Callable[[], object]) -> bool:
    """Call `work`, and `meanwhile` before the line number `step` that it runs in the portal.

    Returns:
        Whether it runs so many lines.
    """
    steps, paused = count(), False
    module = Portal.call.__code__.co_filename

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal paused
        if frame.f_code.co_filename != module:
            return None
        if event == "line" and next(steps) == step:
            paused = True
            meanwhile()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return paused


def in_turn(threads: ThreadPoolExecutor, work: Callable[[], object]) -> None:
    threads.submit(work).result(GUARD_S)


def test_two_threads_that_find_the_loop_ended(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either fails the messages of both, whichever comes first."""
    monkeypatch.setattr(Portal, "post", refuse)
    paused, steps = True, count()
    with ThreadPoolExecutor(1) as threads:
        while paused:
            outcomes: list[object] = []
            inner: Any = EndedProducer()
            producer = Producer(portal, inner)
            message = Message("orders", b"1")
            submit = partial(producer.submit, message, callback=outcomes.append)
            other = partial(in_turn, threads, submit)
            paused = call_paused(next(steps), submit, other)
            assert [type(one) for one in outcomes] == [ClosedError] * (1 + paused)
    assert next(steps) > 10


def test_a_helper_of_the_loop_may_close_it(portal: Portal) -> None:
    closed = threading.Event()

    def close() -> None:
        portal.close()
        closed.set()

    with suppress(ClosedError):  # unless the helper returns before the loop ends
        portal.call(lambda: asyncio.to_thread(close))
    assert closed.wait(GUARD_S)
    portal.join()


def test_a_callback_may_not_wait(portal: Portal) -> None:
    with pytest.raises(UsageError, match="callback"):
        portal.do(lambda: portal.do(lambda: 1))


def test_a_fork_is_noticed(portal: Portal, forked) -> None:
    with forked():
        with pytest.raises(ForkedError, match="Connect again"):
            portal.check()
        portal.close()  # does nothing
    assert portal.do(lambda: 1) == 1
