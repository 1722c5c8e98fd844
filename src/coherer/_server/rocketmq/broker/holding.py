"""Pulls that wait for a message (2.6).

Java looks through them every five seconds, too; here every message that comes, by whichever door,
wakes those that want it, and `expire` ends those whose time is up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from coherer import limits
from coherer._record.layout import ROLLED_BACK
from coherer._record.properties import decode
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.subscribing import Wanted
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Channel
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PullHeader

K = TypeVar("K")

OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
_FOR_EVER_MS: Final = 1 << 63


class Held:
    """A pull that waits.

    Attributes:
        channel: who asked.
        request: what is answered.
        header: the same, read.
        wanted: what it wants.
        deadline_ms: when it is answered at the latest.
    """

    __slots__ = ("channel", "deadline_ms", "header", "request", "wanted")

    def __init__(
        self, channel: Channel, request: Command, header: PullHeader, wanted: Wanted
    ) -> None:
        self.channel = channel
        self.request = request
        self.header = header
        self.wanted = wanted
        self.deadline_ms = 0

    @property
    def queue(self) -> tuple[str, int]:
        """Where it waits: topic and queue."""
        return self.header.topic, self.header.queue_id

    def is_late(self, now_ms: int) -> bool:
        """Whether its time is up."""
        return now_ms >= self.deadline_ms

    def wants(self, draft: Draft) -> bool:
        """Whether a new message is one for it."""
        if self.wanted.test is not None:
            return self.wanted.test(decode(draft.properties))
        return self.wanted.tags is None or draft.tag_code in self.wanted.tags


class Holding:
    """The pulls that wait, by queue.

    Args:
        state: the broker's.
        again: answers a pull, with what there is.
    """

    def __init__(self, state: RocketState, again: Callable[[Held], None]) -> None:
        self._state = state
        self._again = again
        self._held: dict[tuple[str, int], dict[Held, None]] = {}
        self._by_channel: dict[Channel, dict[Held, None]] = {}
        self._ended: deque[Held] = deque()  # they wait no longer, but for their answers
        self._count = 0
        state.core.on_arrival(self.arrived)

    def __len__(self) -> int:
        return self._count

    def hold(self, held: Held) -> None:
        """Wait as long as the request says, or as long as this broker lets requests wait.

        Raises:
            Refusal: too many wait already; Java's word for a full queue of requests (1.4).
        """
        if self._count >= limits.HELD_PULLS_MAX:
            raise Refusal(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        options, header = self._state.options, held.header
        wait_ms = (header.suspend_ms or 0) if options.long_polling else options.short_polling_ms
        held.deadline_ms = self._state.now_ms() + wait_ms
        self._held.setdefault(held.queue, {})[held] = None
        self._by_channel.setdefault(held.channel, {})[held] = None
        self._count += 1

    def arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        """Messages were stored: answer who waits for them."""
        if not self._held:
            return
        woken: dict[tuple[str, int], list[Draft]] = {}
        for draft in drafts:
            key = draft.topic, draft.queue_id
            if key in self._held and draft.sys_flag & ROLLED_BACK in (0, 8):
                each = draft.to_drafts() if isinstance(draft, DraftBatch) else (draft,)
                woken.setdefault(key, []).extend(each)
        for key, new in woken.items():
            self._end([one for one in self._held[key] if any(map(one.wants, new))])

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is up."""
        self._end([one for held in self._held.values() for one in held if one.is_late(now_ms)])

    def gone(self, channel: Channel) -> None:
        """A connection has ended: its pulls wait for nothing."""
        for one in [*self._by_channel.get(channel, ())]:
            self._forget(one)

    def close(self) -> None:
        """Answer everybody: the connections are about to end."""
        self.expire(_FOR_EVER_MS)
        self._answer(len(self._ended))

    def _end(self, ended: Sequence[Held]) -> None:
        for one in ended:
            self._forget(one)
        under_way = bool(self._ended)
        self._ended += ended
        if not under_way:
            self._turn()

    def _turn(self) -> None:
        """Answer some who wait no longer; then others have their turn."""
        self._answer(limits.HELD_PULLS_AT_ONCE)
        if self._ended:
            asyncio.get_running_loop().call_soon(self._turn)

    def _answer(self, count_max: int) -> None:
        for _ in range(min(len(self._ended), count_max)):
            one = self._ended.popleft()
            if not one.channel.closed:
                self._again(one)

    def _forget(self, one: Held) -> None:
        self._count -= 1
        _drop(self._held, one.queue, one)
        _drop(self._by_channel, one.channel, one)


def _drop(table: dict[K, dict[Held, None]], key: K, one: Held) -> None:
    held = table[key]
    del held[one]
    if not held:
        del table[key]
