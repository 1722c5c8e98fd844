from __future__ import annotations

import asyncio
from types import SimpleNamespace

from coherer._client.tubemq.inbox import Inbox


def package(size_bytes: int = 10) -> SimpleNamespace:
    return SimpleNamespace(size_bytes=size_bytes)


async def test_oldest_first() -> None:
    inbox, (a, b, c) = Inbox(100), (package(), package(), package())
    inbox.put("a", a)
    inbox.put("b", b)
    inbox.put("c", c, first=True)
    assert len(inbox) == 3
    assert [inbox.take() for _ in range(4)] == [("c", c), ("a", a), ("b", b), None]


async def test_paused_partitions_wait_aside() -> None:
    inbox, (a, b) = Inbox(100), (package(), package())
    inbox.put("a", a)
    inbox.put("b", b)
    inbox.pause(frozenset({"a"}))
    assert [inbox.take(), inbox.take()] == [("b", b), None]
    inbox.pause(frozenset())
    assert inbox.take() == ("a", a)


async def test_dropped_packages() -> None:
    inbox = Inbox(100)
    inbox.put("a", package())
    assert inbox.drop("a")
    assert not inbox.drop("a")
    assert inbox.take() is None


def waits(inbox: Inbox) -> bool:
    coroutine = inbox.room()
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    coroutine.close()
    return True


async def test_room() -> None:
    inbox = Inbox(100)
    inbox.put("a", package(99))
    assert not waits(inbox)
    inbox.put("b", package(1))
    assert waits(inbox)
    inbox.pause(frozenset({"a"}))  # what waits aside must not starve the others
    assert not waits(inbox)
    inbox.pause(frozenset())
    assert waits(inbox)
    inbox.take()
    assert not waits(inbox)


async def test_takers_are_woken() -> None:
    inbox = Inbox(100)
    takers = [asyncio.ensure_future(inbox.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    takers[0].cancel()
    await asyncio.sleep(0)
    inbox.put("a", package())
    await asyncio.gather(*takers[1:])
