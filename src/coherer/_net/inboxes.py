"""How much of requests that are not whole may be kept, all together, and whose are read on.

A peer that announces a frame of 16 MiB and never sends its last byte costs 16 MiB for as long as it
likes, and a thousand such peers the memory. So there is one limit for all accepted connections:

* A connection is read from while what its request lacks fits beside all that is kept already. So
  when room is short the large requests wait first, and what a smaller one lacks fits nearly always.
* One whose request does not fit is not read from until there is room; who lacks least comes first.
* Whoever keeps no more than `limits.INBOX_SHARE_BYTES` (less, where very many keep something) is
  always read from: requests of everyday size wait for nobody.
* While anyone waits, once a second those that had room and brought less than
  `limits.INBOX_RATE_BYTES` are cut off, the slowest first, until the next one fits. Where all wait,
  those that lack most are cut off.

So at most the limit is kept, and one socket read of each connection; beyond twice the limit the
largest are cut off at once. Who sends is not cut off for those that do not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from coherer import limits
from coherer._common.logs import Log

_log = Log(logging.getLogger(__name__))

ROUND_S: Final = 1.0
"""How long who has room may be slow while others wait for it."""


class Inbox(Protocol):
    """A connection, by what has come of a request that is not whole."""

    peer: str

    def await_room(self, waits: bool, /) -> None:
        """Do not read from the peer, or read again."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


class _Part:
    """What is there of a request.

    Attributes:
        kept: bytes.
        lacking: bytes to come.
        grown: bytes that came in this round.
        seen: it was there when the round began.
    """

    __slots__ = ("grown", "kept", "lacking", "seen")

    def __init__(self) -> None:
        self.kept = self.lacking = self.grown = 0
        self.seen = False


class Inboxes:
    """The connections with requests that are not whole.

    Args:
        bytes_max: how much may be kept.

    Attributes:
        kept_bytes: how much is.
    """

    def __init__(self, bytes_max: int = limits.INBOXES_BYTES) -> None:
        self.kept_bytes = 0
        self._bytes_max = bytes_max
        self._parts: dict[Inbox, _Part] = {}
        self._waiting: dict[Inbox, _Part] = {}
        self._least_lacking = 0
        self._timer: asyncio.TimerHandle | None = None

    def keeps(self, inbox: Inbox, kept: int, lacking: int) -> None:
        """Hear what a connection keeps after a socket read.

        Args:
            inbox: which.
            kept: bytes of a request that is not whole; 0 for none.
            lacking: bytes that it lacks, as far as is known.
        """
        part = self._parts.get(inbox)
        if part is None:
            if not kept:
                return
            part = self._parts[inbox] = _Part()
        more = kept - part.kept
        self.kept_bytes += more
        # Where less is there than before, a request has become whole: that is quick enough.
        part.grown += more if more > 0 else limits.INBOX_RATE_BYTES
        part.kept, part.lacking = kept, lacking
        if not kept:
            del self._parts[inbox]
        elif self._fits(lacking) or kept <= self._share():
            pass
        elif self.kept_bytes > 2 * self._bytes_max:
            self._make_room()
        else:
            self._wait(inbox, part)
        if more < 0:
            self._wake()

    def gone(self, inbox: Inbox) -> None:
        """Forget a connection: it is closed."""
        if inbox in self._parts:
            self._forget(inbox)
            self._wake()

    def look(self) -> None:
        """Cut off who others wait for in vain; done once a round while anyone waits."""
        self._timer = None
        slow = [
            (part.grown, -part.kept, number, inbox)
            for number, (inbox, part) in enumerate(self._parts.items())
            if part.seen and part.grown < limits.INBOX_RATE_BYTES and inbox not in self._waiting
        ]
        self._cut(inbox for *_, inbox in sorted(slow))
        share = self._share()
        if all(part.kept <= share or inbox in self._waiting for inbox, part in self._parts.items()):
            self._cut(self._by_lack()[:0:-1])
        for part in self._parts.values():
            part.grown, part.seen = 0, True
        self._wake()
        self._start()

    def _fits(self, lacking: int) -> bool:
        return self.kept_bytes + lacking <= self._bytes_max

    def _share(self) -> int:
        return min(limits.INBOX_SHARE_BYTES, self._bytes_max // max(len(self._parts), 1))

    def _wait(self, inbox: Inbox, part: _Part) -> None:
        if not self._waiting or part.lacking < self._least_lacking:
            self._least_lacking = part.lacking
        self._waiting[inbox] = part
        inbox.await_room(True)
        self._start()

    def _start(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND_S, self.look)

    def _wake(self) -> None:
        """Read again from whom there is room for."""
        if not self._waiting or not self._fits(self._least_lacking):
            return
        ahead = 0
        for inbox in self._by_lack():
            self._least_lacking = self._waiting[inbox].lacking
            ahead += self._least_lacking
            if not self._fits(ahead):
                return
            del self._waiting[inbox]
            inbox.await_room(False)

    def _by_lack(self) -> list[Inbox]:
        return sorted(self._waiting, key=lambda inbox: self._waiting[inbox].lacking)

    def _make_room(self) -> None:
        """Far too much is kept, as by thousands of connections at once: the largest go."""
        parts = self._parts
        for inbox in sorted(parts, key=lambda one: (one in self._waiting, parts[one].kept))[::-1]:
            if self.kept_bytes <= self._bytes_max:
                return
            self._abort(inbox)

    def _cut(self, inboxes: Iterable[Inbox]) -> None:
        """Cut off one after the other until the first that waits fits."""
        for inbox in inboxes:
            if self._fits(self._least_lacking):
                return
            self._abort(inbox)

    def _abort(self, inbox: Inbox) -> None:
        kept = self._parts[inbox].kept
        _log.warning(
            "Closing the connection with %s: %d bytes of a request that does not become whole, "
            "while others wait for room for theirs",
            inbox.peer,
            kept,
            about=inbox.peer.rpartition(":")[0],
        )
        self._forget(inbox)
        inbox.abort()

    def _forget(self, inbox: Inbox) -> None:
        self.kept_bytes -= self._parts.pop(inbox).kept
        self._waiting.pop(inbox, None)
