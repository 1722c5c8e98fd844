"""What a member of a group holds, and what it still has to tell the master.

Theory: the master keeps a copy of every member's partitions and, when it balances, sends one
instruction (event) at a time in the answer to a heartbeat: give these up, or take those. The
member does it and says so in a later heartbeat, together with the full list of what it holds; the
master then sends the next. An instruction is sent once only, so:

* An acknowledgement is repeated with each heartbeat until one gets through. (Java tells once; if
  that is lost, the whole group waits for ten rounds of balance.)
* The full list goes with each acknowledgement, at every `REPORT_EVERY`-th heartbeat, and whenever
  it changed without an instruction, so that a partition lost to a broken broker is given out
  again soon. (Java waits for the sixth heartbeat.)

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from coherer._wire.tubemq.names import Partition

REPORT_EVERY: Final = 6
"""Heartbeats from one full report to the next when nothing changes."""

CONNECT: Final = 1
DISCONNECT: Final = 2
ONLY_CONNECT: Final = 10
ONLY_DISCONNECT: Final = 20

DONE: Final = 2
"""The status of an instruction in its acknowledgement."""


class Event(msgspec.Struct, frozen=True):
    """An instruction of the master.

    Args:
        id: number of the round of balance.
        kind: one of the operation codes above; others are not for us.
        partitions: what it is about.
    """

    id: int
    kind: int
    partitions: tuple[Partition, ...] = ()

    @property
    def takes(self) -> bool:
        """Whether it tells us to take partitions."""
        return self.kind in {CONNECT, ONLY_CONNECT}

    @property
    def gives_up(self) -> bool:
        """Whether it tells us to give partitions up."""
        return self.kind in {DISCONNECT, ONLY_DISCONNECT}


class Beat(msgspec.Struct, frozen=True):
    """What one heartbeat has to say.

    Args:
        report: the partitions held, or None when this heartbeat does not tell them.
        event: an instruction that has been carried out, or None.
    """

    report: tuple[Partition, ...] | None
    event: Event | None


class Assignment:
    """Keeps the partitions of one member.

    >>> assignment = Assignment()
    >>> assignment.beat()
    Beat(report=None, event=None)
    >>> assignment.finished(Event(id=1, kind=ONLY_CONNECT))
    >>> assignment.beat().report
    ()
    """

    def __init__(self) -> None:
        self._held: dict[str, Partition] = {}
        self._reported: frozenset[str] = frozenset()
        self._beats = 0  # since the last report
        self._done: Event | None = None

    @property
    def held(self) -> tuple[Partition, ...]:
        """The partitions, in the order in which they were taken."""
        return tuple(self._held.values())

    @property
    def settled(self) -> bool:
        """Whether the master has been told everything."""
        return self._done is None and self._reported == self._held.keys()

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def missing(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Those of `partitions` that are not held."""
        return [partition for partition in partitions if partition.key not in self._held]

    def hold(self, partition: Partition) -> None:
        """The partition's broker accepted us."""
        self._held[partition.key] = partition

    def drop(self, key: str) -> None:
        """The partition was given up, or lost."""
        self._held.pop(key, None)

    def finished(self, event: Event) -> None:
        """An instruction has been carried out, as far as it could be."""
        self._done = event

    def beat(self) -> Beat:
        """What the next heartbeat says. It counts only once `accepted` is called."""
        due = self._beats + 1 >= REPORT_EVERY
        if self.settled and not due:
            return Beat(None, None)
        return Beat(self.held, self._done)

    def accepted(self, beat: Beat) -> None:
        """The master took this heartbeat."""
        self._beats += 1
        if beat.event is self._done:
            self._done = None
        if beat.report is not None:
            self._beats = 0
            self._reported = frozenset(partition.key for partition in beat.report)

    def registered(self) -> None:
        """The master took a registration, which told what is held and began everything anew."""
        self._beats = 0
        self._done = None
        self._reported = frozenset(self._held)
