"""Pulls that wait for a message (2.6).

Java looks through them every five seconds, too; here every message that comes, by whichever door,
wakes those that want it, and `expire` ends those whose time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coherer.record.layout import ROLLED_BACK
from coherer.record.properties import decode
from coherer.rocketmq.command import Command
from coherer.rocketmq.headers import PullHeader
from coherer.server.rocketmq.broker.state import RocketState
from coherer.server.rocketmq.broker.subscribing import Wanted
from coherer.server.rocketmq.remoting import Channel
from coherer.store import Appended, Draft


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
        self._held: dict[tuple[str, int], list[Held]] = {}
        self._count = 0
        state.core.on_arrival(self.arrived)

    def __len__(self) -> int:
        return self._count

    def hold(self, held: Held) -> None:
        """Wait as long as the request says, or as long as this broker lets requests wait."""
        options, header = self._state.options, held.header
        wait_ms = header.suspend_ms if options.long_polling else options.short_polling_ms
        held.deadline_ms = self._state.now_ms() + wait_ms
        self._held.setdefault((header.topic, header.queue_id), []).append(held)
        self._count += 1

    def arrived(self, drafts: Sequence[Draft], appended: Sequence[Appended]) -> None:  # noqa: ARG002
        """Messages were stored: answer who waits for them."""
        if not self._held:
            return
        woken: dict[tuple[str, int], list[Draft]] = {}
        for draft in drafts:
            key = draft.topic, draft.queue_id
            if key in self._held and draft.sys_flag & ROLLED_BACK in (0, 8):
                woken.setdefault(key, []).append(draft)
        for key, new in woken.items():
            held = self._held[key]
            self._end(key, [one for one in held if any(map(one.wants, new))])

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is up."""
        for key, held in list(self._held.items()):
            late = [one for one in held if now_ms >= one.deadline_ms]
            if late:
                self._end(key, late)

    def gone(self, channel: Channel) -> None:
        """A connection has ended: its pulls wait for nothing."""
        for key, held in list(self._held.items()):
            self._forget(key, [one for one in held if one.channel is channel])

    def close(self) -> None:
        """Forget everything; the connections are about to end."""
        self._held.clear()
        self._count = 0

    def _end(self, key: tuple[str, int], ended: Sequence[Held]) -> None:
        self._forget(key, ended)
        for one in ended:
            if not one.channel.closed:
                self._again(one)

    def _forget(self, key: tuple[str, int], ended: Sequence[Held]) -> None:
        if not ended:
            return
        left = [one for one in self._held[key] if one not in ended]
        self._count -= len(ended)
        if left:
            self._held[key] = left
        else:
            del self._held[key]
