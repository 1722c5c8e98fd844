"""Who is read on when requests that are not whole fill the memory, and who is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from coherer._net.limits import Inboxes

from coherer import limits

MIB = 1024 * 1024
LIMIT = 32 * MIB


class Peer:
    """A connection as the inboxes see it."""

    def __init__(self, inboxes: Inboxes, name: str = "peer") -> None:
        self.peer = name
        self.cut = False
        self.changed = asyncio.Event()
        self._waits = False
        self._inboxes = inboxes

    def waits(self) -> bool:
        return self._waits

    def await_room(self, waits: bool) -> None:
        self._waits = waits
        self.changed.set()

    def abort(self) -> None:
        self.cut = True

    def has(self, kept: int, size: int = 0) -> Peer:
        self._inboxes.keeps(self, kept, size - kept if size else 0)
        return self


@pytest.fixture
async def inboxes() -> Inboxes:
    return Inboxes(LIMIT)


@pytest.fixture
def peer(inboxes: Inboxes) -> Callable[[], Peer]:
    return lambda: Peer(inboxes)


async def test_large_requests_wait_for_room_and_smaller_ones_have_it(
    inboxes: Inboxes, peer: Callable[[], Peer]
) -> None:
    large = [peer().has(6 * MIB, 15 * MIB) for _ in range(4)]
    assert [one.waits() for one in large] == [False, False, False, True], "24 kept, 9 lack"
    assert not peer().has(MIB, 4 * MIB).waits()
    assert not peer().has(100, 15 * MIB).waits(), "small ones always read on"
    assert inboxes.kept_bytes == 25 * MIB + 100


async def test_room_goes_to_who_lacks_least(inboxes: Inboxes, peer: Callable[[], Peer]) -> None:
    holder = peer().has(28 * MIB, 29 * MIB)
    more, less, most = (peer().has(MIB, size * MIB) for size in (9, 6, 28))
    assert more.waits()
    assert less.waits()
    holder.has(0)
    assert [more.waits(), less.waits(), most.waits()] == [False, False, True]
    assert inboxes.kept_bytes == 3 * MIB
    inboxes.gone(more)
    inboxes.gone(less)
    assert not most.waits()
    inboxes.gone(most)
    inboxes.gone(most)
    assert inboxes.kept_bytes == 0


async def test_who_does_not_go_on_is_cut_off_for_others(
    inboxes: Inboxes, peer: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    stalled = [peer().has(15 * MIB - 1, 15 * MIB) for _ in range(2)]
    waiting = peer().has(MIB, 4 * MIB)
    assert waiting.waits()
    inboxes.look()
    assert not any(one.cut for one in stalled), "they have a whole round"
    stalled[0].has(15 * MIB - 1 + 1024, 16 * MIB)
    inboxes.look()
    assert [one.cut for one in stalled] == [False, True], "the slower one, and no more than needed"
    assert not waiting.waits()
    assert "15728639 bytes of a request that does not become whole" in caplog.text


async def test_who_goes_on_is_not_cut_off(inboxes: Inboxes, peer: Callable[[], Peer]) -> None:
    sending, renewing = peer().has(20 * MIB, 28 * MIB), peer().has(4 * MIB, 5 * MIB)
    waiting = peer().has(MIB, 15 * MIB)
    for done in range(1, 6):
        inboxes.look()
        sending.has(20 * MIB + done * limits.INBOX_RATE_BYTES, 28 * MIB)
        renewing.has(4 * MIB - done, 5 * MIB)  # another request than before
    assert not sending.cut
    assert not renewing.cut
    assert waiting.waits()


async def test_where_all_wait_those_that_lack_most_go(
    inboxes: Inboxes, peer: Callable[[], Peer]
) -> None:
    peers = [peer().has(2 * MIB, (20 + number) * MIB) for number in range(16)]
    assert peers[0].waits() is False, "32 kept: there was room until the last ones came"
    for one, size in zip(peers, range(20, 36), strict=True):
        one.has(2 * MIB, size * MIB)
    assert all(one.waits() for one in peers)
    inboxes.look()
    cut = [one.cut for one in peers]
    assert cut == [False] * 7 + [True] * 9, "14 kept, 18 lack"
    assert [one.waits() for one in peers[:2]] == [False, True]


async def test_many_small_ones_do_not_shut_out_a_large_one(inboxes: Inboxes) -> None:
    small = [Peer(inboxes).has(limits.INBOX_SHARE_BYTES) for _ in range(512)]
    large = Peer(inboxes).has(MIB, 2 * MIB)
    assert not any(one.waits() for one in small)
    assert large.waits()
    inboxes.look()
    inboxes.look()
    assert not large.waits()
    assert sum(one.cut for one in small) == 32


async def test_with_very_many_each_may_keep_less(inboxes: Inboxes) -> None:
    peers = [Peer(inboxes).has(LIMIT // 1024) for _ in range(2048)]
    assert not any(one.waits() for one in peers[:1024])
    assert all(one.waits() for one in peers[1025:])


async def test_beyond_twice_the_limit_the_largest_are_cut_off_at_once(
    inboxes: Inboxes, peer: Callable[[], Peer]
) -> None:
    honest = peer().has(MIB, 2 * MIB)
    flood = [peer().has(8 * MIB, 16 * MIB) for _ in range(8)]
    assert inboxes.kept_bytes <= LIMIT
    assert not honest.cut
    assert sum(one.cut for one in flood) == 5


async def test_rounds_are_made_while_anyone_waits(
    inboxes: Inboxes, peer: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._net.limits.ROUND_S", 0.001)
    peer().has(31 * MIB, 32 * MIB)
    waiting = peer().has(MIB, 15 * MIB)
    async with asyncio.timeout(10):
        while waiting.waits():
            waiting.changed.clear()
            await waiting.changed.wait()
