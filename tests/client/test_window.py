from __future__ import annotations

import asyncio

import pytest

from coherer._client.engine.sender import Window


@pytest.mark.parametrize(("limit", "low"), [(1, 0), (2, 1), (8, 7), (800, 700)])
async def test_who_waits_is_woken_when_an_eighth_is_free(limit: int, low: int) -> None:
    window = Window(limit, 1000)
    window.used = limit
    assert window.full
    waiting = [asyncio.ensure_future(window.wait_for_space()) for _ in range(2)]
    await asyncio.sleep(0)
    while window.used > low:
        assert not any(one.done() for one in waiting)
        window.release(0)
    await asyncio.gather(*waiting)


async def test_no_waiting_while_there_is_room() -> None:
    window = Window(2, 1000)
    window.used = 1
    await window.wait_for_space()
    window.used = 0
    await window.wait_until_empty()


async def test_waiting_for_the_last() -> None:
    window = Window(5, 1000)
    window.used = 3
    waiting = [asyncio.ensure_future(window.wait_until_empty()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    window.release(0)
    window.release(0)
    await asyncio.sleep(0)
    assert not waiting[1].done()
    window.release(0)
    await waiting[1]


async def test_bytes_count_too() -> None:
    window = Window(100, 800)
    for _ in range(8):
        assert not window.full
        window.take(100)
    waiting = asyncio.ensure_future(window.wait_for_space())
    await asyncio.sleep(0)
    assert window.full
    window.release(100)
    await waiting
    assert (window.used, window.used_bytes) == (7, 700)
