"""Brokers with half messages, for tests of transactional sinks without a node."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from coherer.errors import CohererError, DisconnectedError
from coherer.rocketmq import HalfMessages, Queue, Verdict

QUEUES = (Queue("t", "a", 0), Queue("t", "a", 1), Queue("t", "b", 0))


def nothing(what: object) -> None:
    """No error."""


class DeathError(BaseException):
    """The process has died."""


class Cluster:
    """Brokers and a clock.

    Args:
        step: called before and after everything that can be interrupted.
        once: whether they carry out one commit of a half message, as Coherer's do.
        late_s: how late a commit of a dead process arrives.
    """

    def __init__(
        self, step: Callable[[str], None] = nothing, *, once: bool = False, late_s: float = 7
    ) -> None:
        self.step = step
        self.once = once
        self.late_s = late_s
        self.stored: dict[Queue, list[int]] = {queue: [7, 7] for queue in QUEUES}
        self.late: list[tuple[float, Queue, int]] = []
        self.now = 0.0
        self.rolled_back = 0

    def prepare(self, count: int, first: int = 100) -> HalfMessages:
        numbers = range(first, first + count)
        places = array("H", (number % len(QUEUES) for number in numbers))
        return HalfMessages("g", QUEUES, places, array("q", numbers), array("q", numbers))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes: some of what was on its way arrives."""
        self.step("sleep")
        self.now += seconds
        for at, queue, offset in self.late:
            if at <= self.now:
                self.carry_out(queue, offset)
        self.late = [one for one in self.late if one[0] > self.now]

    def carry_out(self, queue: Queue, offset: int) -> None:
        """Commit a half message."""
        if not (self.once and offset in self.stored[queue]):
            self.stored[queue].append(offset)

    def ends_once(self, halves: HalfMessages) -> bool:
        self.step("features")
        return self.once

    def ends(self, queues: Sequence[Queue]) -> list[int]:
        self.step("ends")
        return [len(self.stored[queue]) for queue in queues]

    def end(self, halves: HalfMessages, verdict: Verdict) -> list[tuple[int, CohererError]]:
        failed: list[tuple[int, CohererError]] = []
        for number, (place, offset) in enumerate(
            zip(halves.queue, halves.log_offsets, strict=True)
        ):
            if verdict is Verdict.ROLLBACK:
                self.rolled_back += 1
                continue
            queue = halves.queues[place]
            try:
                self.step("before")
                self.carry_out(queue, offset)
                self.step("after")
            except DisconnectedError as error:
                failed.append((number, error))
            except DeathError:
                # The next ones are in the system's buffers, or in the broker's.
                rest = zip(
                    halves.queue[number + 1 :], halves.log_offsets[number + 1 :], strict=True
                )
                at = self.now + self.late_s
                self.late += [(at, halves.queues[place], offset) for place, offset in rest]
                raise
        return failed

    def reach(self, queue: Queue, offset: int) -> None:
        """Java's brokers do nothing."""
        self.step("reach")

    def committed(self, queue: Queue, start: int, end: int) -> set[int]:
        self.step("look")
        return set(self.stored[queue][start:end])

    def seen(self) -> Counter[int]:
        return Counter(offset for stored in self.stored.values() for offset in stored[2:])
