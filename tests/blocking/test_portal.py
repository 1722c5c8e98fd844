from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from coherer.blocking._portal import Portal, wait_for
from coherer.errors import ClosedError, ForkedError, UsageError


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


def test_a_callback_may_not_wait(portal: Portal) -> None:
    with pytest.raises(UsageError, match="callback"):
        portal.do(lambda: portal.do(lambda: 1))


def test_a_fork_is_noticed(portal: Portal, forked) -> None:
    with forked():
        with pytest.raises(ForkedError, match="Connect again"):
            portal.check()
        portal.close()  # does nothing
    assert portal.do(lambda: 1) == 1
