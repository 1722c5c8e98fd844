"""Memory for partly received requests: which connections wait, continue or are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coherer import _net as net
from coherer._net.limits import UnfinishedRequests

MIB = 1024 * 1024
LIMIT = 32 * MIB
LIMITS = net.ConnectionLimits(unfinished_bytes=LIMIT)


class Peer:
    """A connection as `UnfinishedRequests` sees it."""

    def __init__(self, requests: UnfinishedRequests, name: str = "peer") -> None:
        self.peer = name
        self.cut = False
        self.changed = asyncio.Event()
        self._waits = False
        self._requests = requests

    def waits(self) -> bool:
        return self._waits

    def pause_for_memory(self, paused: bool) -> None:
        self._waits = paused
        self.changed.set()

    def abort(self) -> None:
        self.cut = True

    def has(self, kept: int, size: int = 0) -> Peer:
        self._requests.update(self, kept, size - kept if size else 0)  # type: ignore[arg-type]
        return self


@pytest.fixture
async def requests() -> UnfinishedRequests:
    return UnfinishedRequests(LIMITS)


@pytest.fixture
def peer(requests: UnfinishedRequests) -> Callable[[], Peer]:
    return lambda: Peer(requests)


async def test_large_requests_wait_for_memory_and_smaller_ones_do_not(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    large = [peer().has(6 * MIB, 15 * MIB) for _ in range(4)]
    assert [one.waits() for one in large] == [False, False, False, True], "24 buffered, 9 missing"
    assert not peer().has(MIB, 4 * MIB).waits()
    assert not peer().has(100, 15 * MIB).waits(), "small ones are always read"
    assert requests.buffered_bytes == 25 * MIB + 100


async def test_free_memory_goes_to_the_request_that_lacks_least(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    holder = peer().has(28 * MIB, 29 * MIB)
    more, less, most = (peer().has(MIB, size * MIB) for size in (9, 6, 28))
    assert more.waits()
    assert less.waits()
    holder.has(0)
    assert [more.waits(), less.waits(), most.waits()] == [False, False, True]
    assert requests.buffered_bytes == 3 * MIB
    requests.discard(more)
    requests.discard(less)
    assert not most.waits()
    requests.discard(most)
    requests.discard(most)
    assert requests.buffered_bytes == 0


async def test_a_stalled_request_is_closed_if_others_wait(
    requests: UnfinishedRequests, peer: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    stalled = [peer().has(15 * MIB - 1, 15 * MIB) for _ in range(2)]
    waiting = peer().has(MIB, 4 * MIB)
    assert waiting.waits()
    requests.check()
    assert not any(one.cut for one in stalled), "they have a whole interval"
    stalled[0].has(15 * MIB - 1 + 1024, 16 * MIB)
    requests.check()
    assert [one.cut for one in stalled] == [False, True], "the slower one, and no more than needed"
    assert not waiting.waits()
    assert "15728639 bytes of a request and does not complete it" in caplog.text


async def test_a_progressing_request_is_not_closed(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    sending, renewing = peer().has(20 * MIB, 28 * MIB), peer().has(4 * MIB, 5 * MIB)
    waiting = peer().has(MIB, 15 * MIB)
    for done in range(1, 6):
        requests.check()
        sending.has(20 * MIB + done * LIMITS.unfinished_rate_bytes, 28 * MIB)
        renewing.has(4 * MIB - done, 5 * MIB)  # another request than before
    assert not sending.cut
    assert not renewing.cut
    assert waiting.waits()


async def test_if_all_wait_those_that_lack_most_are_closed(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    peers = [peer().has(2 * MIB, (20 + number) * MIB) for number in range(16)]
    assert peers[0].waits() is False, "32 buffered: there was memory until the last ones came"
    for one, size in zip(peers, range(20, 36), strict=True):
        one.has(2 * MIB, size * MIB)
    assert all(one.waits() for one in peers)
    requests.check()
    cut = [one.cut for one in peers]
    assert cut == [False] * 7 + [True] * 9, "14 buffered, 18 missing"
    assert [one.waits() for one in peers[:2]] == [False, True]


async def test_many_small_requests_do_not_block_a_large_one(requests: UnfinishedRequests) -> None:
    small = [Peer(requests).has(LIMITS.unfinished_request_bytes_min) for _ in range(512)]
    large = Peer(requests).has(MIB, 2 * MIB)
    assert not any(one.waits() for one in small)
    assert large.waits()
    requests.check()
    requests.check()
    assert not large.waits()
    assert sum(one.cut for one in small) == 32


async def test_with_very_many_requests_each_may_buffer_less(requests: UnfinishedRequests) -> None:
    peers = [Peer(requests).has(LIMIT // 1024) for _ in range(2048)]
    assert not any(one.waits() for one in peers[:1024])
    assert all(one.waits() for one in peers[1025:])


async def test_above_twice_the_limit_the_largest_are_closed_at_once(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    honest = peer().has(MIB, 2 * MIB)
    flood = [peer().has(8 * MIB, 16 * MIB) for _ in range(8)]
    assert requests.buffered_bytes <= LIMIT
    assert not honest.cut
    assert sum(one.cut for one in flood) == 5


async def test_checks_run_while_a_request_waits() -> None:
    limits = net.ConnectionLimits(unfinished_bytes=LIMIT, unfinished_check_ms=1)
    requests = UnfinishedRequests(limits)
    Peer(requests).has(31 * MIB, 32 * MIB)
    waiting = Peer(requests).has(MIB, 15 * MIB)
    async with asyncio.timeout(10):
        while waiting.waits():
            waiting.changed.clear()
            await waiting.changed.wait()
