"""Functions of threads go on in steps."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from coherer._server.core import appending
from coherer._store import commit_log
from coherer.testing import simulate
from coherer.testing.simulation import Process
from tests.simulation.threads import pause, stepping

PAUSE_S = 0.5


def two_steps(log: list[str], name: str) -> None:
    for step in "12":
        pause()
        log.append(name + step)


async def in_thread(pool: ThreadPoolExecutor, log: list[str], name: str) -> None:
    await asyncio.get_running_loop().run_in_executor(pool, two_steps, log, name)


def test_the_loop_goes_on_between_two_steps() -> None:
    log: list[str] = []

    async def main() -> None:
        work = asyncio.create_task(in_thread(appending.ThreadPoolExecutor(1, "a"), log, "a"))
        while not work.done():
            await asyncio.sleep(PAUSE_S / 100)
            if log[-1:] != ["loop"]:
                log.append("loop")

    with stepping(PAUSE_S):
        simulate(main())
    assert log == ["loop", "a1", "loop", "a2", "loop"]


def test_a_pool_runs_one_function_after_the_other() -> None:
    log: list[str] = []

    async def main() -> None:
        pool = appending.ThreadPoolExecutor(1, "a")
        await asyncio.gather(*(in_thread(pool, log, name) for name in "abc"))

    with stepping(PAUSE_S):
        simulate(main())
    assert log == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_a_pool_that_is_shut_down_finishes() -> None:
    log: list[str] = []

    async def main() -> None:
        pool = appending.ThreadPoolExecutor(1, "a")
        work = [asyncio.create_task(in_thread(pool, log, name)) for name in "ab"]
        await asyncio.sleep(0)
        pool.shutdown()
        assert log == ["a1", "a2", "b1", "b2"]
        await asyncio.gather(*work)

    with stepping(PAUSE_S):
        simulate(main())


def test_who_needs_a_lock_lets_its_holder_go_on() -> None:
    log: list[str] = []

    async def main() -> None:
        lock = commit_log.threading.Lock()

        def hold() -> None:
            with lock:
                two_steps(log, "a")

        pool = appending.ThreadPoolExecutor(1, "a")
        work = asyncio.get_running_loop().run_in_executor(pool, hold)
        await asyncio.sleep(PAUSE_S)  # it has begun, and waits
        with lock:
            log.append("loop")
        await work

    with stepping(PAUSE_S):
        simulate(main())
    assert log == ["a1", "a2", "loop"]


def test_two_threads_that_wait_for_each_other_are_reported() -> None:
    async def main() -> None:
        lock, other = commit_log.threading.Lock(), commit_log.threading.Lock()

        def hold() -> None:
            with lock:
                pause()
                with other:
                    pass

        pool = appending.ThreadPoolExecutor(1, "a")
        work = asyncio.get_running_loop().run_in_executor(pool, hold)
        await asyncio.sleep(PAUSE_S)
        with other, lock:
            pass
        await work

    with stepping(PAUSE_S), pytest.raises(RuntimeError, match="wait for each other"):
        simulate(main())


def test_a_killed_program_takes_no_further_step() -> None:
    log: list[str] = []

    async def main() -> None:
        program = Process("node")
        program.start(in_thread(appending.ThreadPoolExecutor(1, "a"), log, "a"))
        while not log:  # noqa: ASYNC110 - a step is no event
            await asyncio.sleep(PAUSE_S / 100)
        program.kill()
        await asyncio.sleep(10 * PAUSE_S)

    with stepping(PAUSE_S):
        simulate(main())
    assert log == ["a1"]


def test_without_pauses_functions_run_in_one_step() -> None:
    log: list[str] = []

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await in_thread(pool, log, "a")

    with stepping(0):
        assert appending.ThreadPoolExecutor is ThreadPoolExecutor
        simulate(main())
    assert log == ["a1", "a2"]
