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
        self.closed = False
        self.changed = asyncio.Event()
        self.paused = False
        self._requests = requests

    def pause_for_memory(self, paused: bool) -> None:
        self.paused = paused
        self.changed.set()

    def abort(self) -> None:
        self.closed = True

    def buffers(self, buffered: int, size: int = 0) -> Peer:
        self._requests.update(self, buffered, size - buffered if size else 0)  # type: ignore[arg-type]
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
    large = [peer().buffers(6 * MIB, 15 * MIB) for _ in range(4)]
    assert [one.paused for one in large] == [False, False, False, True], "24 buffered, 9 missing"
    assert not peer().buffers(MIB, 4 * MIB).paused
    assert not peer().buffers(100, 15 * MIB).paused, "small ones are always read"
    assert requests.buffered_bytes == 25 * MIB + 100


async def test_free_memory_goes_to_the_request_that_lacks_least(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    holder = peer().buffers(28 * MIB, 29 * MIB)
    more, less, most = (peer().buffers(MIB, size * MIB) for size in (9, 6, 28))
    assert more.paused
    assert less.paused
    holder.buffers(0)
    assert [more.paused, less.paused, most.paused] == [False, False, True]
    assert requests.buffered_bytes == 3 * MIB
    requests.discard(more)
    requests.discard(less)
    assert not most.paused
    requests.discard(most)
    requests.discard(most)
    assert requests.buffered_bytes == 0


async def test_a_stalled_request_is_closed_if_others_wait(
    requests: UnfinishedRequests, peer: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    stalled = [peer().buffers(15 * MIB - 1, 15 * MIB) for _ in range(2)]
    waiting = peer().buffers(MIB, 4 * MIB)
    assert waiting.paused
    requests.check()
    assert not any(one.closed for one in stalled), "they have a full interval"
    stalled[0].buffers(15 * MIB - 1 + 1024, 16 * MIB)
    requests.check()
    assert [one.closed for one in stalled] == [False, True], (
        "the slower one, and no more than needed"
    )
    assert not waiting.paused
    assert "15728639 bytes of a request and does not complete it" in caplog.text


async def test_a_progressing_request_is_not_closed(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    sending, renewing = peer().buffers(20 * MIB, 28 * MIB), peer().buffers(4 * MIB, 5 * MIB)
    waiting = peer().buffers(MIB, 15 * MIB)
    for done in range(1, 6):
        requests.check()
        sending.buffers(20 * MIB + done * LIMITS.unfinished_rate_bytes, 28 * MIB)
        renewing.buffers(4 * MIB - done, 5 * MIB)  # another request than before
    assert not sending.closed
    assert not renewing.closed
    assert waiting.paused


async def test_if_all_wait_those_that_lack_most_are_closed(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    peers = [peer().buffers(2 * MIB, (20 + number) * MIB) for number in range(16)]
    assert peers[0].paused is False, "32 buffered: there was memory until the last ones came"
    for one, size in zip(peers, range(20, 36), strict=True):
        one.buffers(2 * MIB, size * MIB)
    assert all(one.paused for one in peers)
    requests.check()
    closed = [one.closed for one in peers]
    assert closed == [False] * 7 + [True] * 9, "14 buffered, 18 missing"
    assert [one.paused for one in peers[:2]] == [False, True]


async def test_many_small_requests_do_not_block_a_large_one(requests: UnfinishedRequests) -> None:
    small = [Peer(requests).buffers(LIMITS.unfinished_request_bytes_min) for _ in range(512)]
    large = Peer(requests).buffers(MIB, 2 * MIB)
    assert not any(one.paused for one in small)
    assert large.paused
    requests.check()
    requests.check()
    assert not large.paused
    assert sum(one.closed for one in small) == 32


async def test_with_very_many_requests_each_may_buffer_less(requests: UnfinishedRequests) -> None:
    peers = [Peer(requests).buffers(LIMIT // 1024) for _ in range(2048)]
    assert not any(one.paused for one in peers[:1024])
    assert all(one.paused for one in peers[1025:])


async def test_above_twice_the_limit_the_largest_are_closed_at_once(
    requests: UnfinishedRequests, peer: Callable[[], Peer]
) -> None:
    honest = peer().buffers(MIB, 2 * MIB)
    flood = [peer().buffers(8 * MIB, 16 * MIB) for _ in range(8)]
    assert requests.buffered_bytes <= LIMIT
    assert not honest.closed
    assert sum(one.closed for one in flood) == 5


async def test_checks_run_while_a_request_waits() -> None:
    limits = net.ConnectionLimits(unfinished_bytes=LIMIT, unfinished_check_ms=1)
    requests = UnfinishedRequests(limits)
    Peer(requests).buffers(31 * MIB, 32 * MIB)
    waiting = Peer(requests).buffers(MIB, 15 * MIB)
    async with asyncio.timeout(10):
        while waiting.paused:
            waiting.changed.clear()
            await waiting.changed.wait()
