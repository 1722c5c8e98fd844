"""How a consumer fares with one topic: what brokers are told who ask (307).

Figures are of the last minute. Pure: told the time; counted per batch.

>>> figures = Figures()
>>> figures.pulled(0, 30, took_ms=4)
>>> figures.consumed(1_000, ok=29, failed=1, took_ms=58)
>>> status = figures.status(2_000)
>>> status.pull_tps, status.pull_rt, status.consume_rt, status.consume_failed_msgs
(0.5, 4.0, 58.0, 1)
>>> figures.status(100_000).pull_tps
0.0
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from coherer._wire.rocketmq.bodies import ConsumeStatus

WINDOW_MS: Final = 60_000
BUCKET_MS: Final = 5_000


class _Bucket(msgspec.Struct, gc=False):
    """Sums of some seconds."""

    begin_ms: int
    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    batches: int = 0
    consume_ms: int = 0
    ok: int = 0
    failed: int = 0


class Figures:
    """Counts what is pulled and dealt with of one topic."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque(maxlen=WINDOW_MS // BUCKET_MS)

    def pulled(self, now_ms: int, count: int, took_ms: int) -> None:
        """A pull has brought so many messages."""
        bucket = self._bucket(now_ms)
        bucket.pulls += 1
        bucket.pull_ms += took_ms
        bucket.pulled += count

    def consumed(self, now_ms: int, *, ok: int, failed: int, took_ms: int) -> None:
        """A batch has been dealt with."""
        bucket = self._bucket(now_ms)
        bucket.batches += 1
        bucket.consume_ms += took_ms
        bucket.ok += ok
        bucket.failed += failed

    def status(self, now_ms: int) -> ConsumeStatus:
        """The figures of the last minute: rates per second, times in ms per pull and batch."""
        some = [one for one in self._buckets if one.begin_ms > now_ms - WINDOW_MS]
        seconds = WINDOW_MS / 1000
        return ConsumeStatus(
            pull_rt=_mean(sum(one.pull_ms for one in some), sum(one.pulls for one in some)),
            pull_tps=sum(one.pulled for one in some) / seconds,
            consume_rt=_mean(sum(one.consume_ms for one in some), sum(one.batches for one in some)),
            consume_ok_tps=sum(one.ok for one in some) / seconds,
            consume_failed_tps=sum(one.failed for one in some) / seconds,
            consume_failed_msgs=sum(one.failed for one in some),
        )

    def _bucket(self, now_ms: int) -> _Bucket:
        begin_ms = now_ms // BUCKET_MS * BUCKET_MS
        if not self._buckets or self._buckets[-1].begin_ms != begin_ms:
            self._buckets.append(_Bucket(begin_ms))
        return self._buckets[-1]


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0
