"""What becomes of a batch in the application's hands."""

from __future__ import annotations

from typing import Final, Protocol

from coherer._client.rocketmq.claimed import ClaimedBatch, Later, Watch
from coherer._client.rocketmq.process_queue import Package, ProcessQueue
from coherer._wire.rocketmq.messages import StoredMessage

AGAIN_MS: Final = 5_000
"""A message that no broker took back is delivered again after so long (8.13)."""


class Origin(Protocol):
    """The queue that a batch was taken from."""

    def ready(self) -> None:
        """Something can be taken from it."""
        ...

    def settled(self) -> None:
        """Something was dealt with."""
        ...

    def counted(self) -> None:
        """What is here of it may be more or less now."""
        ...

    def dealt_with(self, package: Package[ClaimedBatch], failed: int) -> None:
        """The application is done with a package; so many of its messages it wants again."""
        ...

    def later(
        self, pause_ms: int, process: ProcessQueue[ClaimedBatch], package: Package[ClaimedBatch]
    ) -> None:
        """Let a package be taken again after a pause, as another attempt."""
        ...

    def pause_ms(self, later: Later) -> int:
        """How long the queue rests after a failure, in order."""
        ...

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """Have a message delivered again later; whether it is out of our hands."""
        ...


class HeldClaim:
    """A batch of a queue in the application's hands. A `claimed.Claim`.

    Attributes:
        held: the queue.
        process: what was here of it when the batch was handed out.
        package: the batch, and what is open of it.
        over: whether the batch is not in the application's hands any more.
        seen: how many messages from its beginning are dealt with; a loop counts here.
        watch: told when all of it is dealt with.
    """

    __slots__ = ("_failures", "held", "over", "package", "process", "seen", "watch")

    def __init__(
        self,
        held: Origin,
        process: ProcessQueue[ClaimedBatch],
        package: Package[ClaimedBatch],
    ) -> None:
        self.held = held
        self.process = process
        self.package = package
        self.over = False
        self.seen = 0
        self.watch: Watch | None = None
        self._failures: set[int] = set()

    @property
    def valid(self) -> bool:
        """Whether the batch is still in the application's hands, and counts."""
        return not self.over and not self.process.dropped

    def count(self) -> None:
        """Note what a loop has dealt with."""
        if self.seen and self.valid:
            self.package.passed(self.seen)
            if self.package.done:
                self._done()

    def acknowledge(self, number: int) -> None:
        """The message of this place is dealt with."""
        if self.valid and self.package.acknowledge(number):
            if self.package.done:
                self._done()
            else:
                self.held.settled()

    def finish(self) -> None:
        """All of it is dealt with."""
        if self.valid:
            self.process.finish(self.package)
            self._done()

    def put_back(self) -> None:
        """What is open of it is to be taken again."""
        self.count()
        if self.valid:
            self._end()
            self.process.give_back(self.package)
            self.held.counted()
            self.held.ready()

    def suspend(self, pause_ms: int) -> None:
        """What is open of it is to be taken again after a pause, as another attempt."""
        self.count()
        if self.valid:
            package = self.package
            self._failures.update(package.batch.offsets())
            self._told()
            self._end()
            self.process.hold_back(package)
            self.held.later(pause_ms, self.process, package)

    async def retry(self, number: int, later: Later) -> None:
        """The message of this place is wanted again."""
        if not self.valid or number not in self.package.open_numbers:
            return
        message = self.package.batch.message(number)
        self._failures.add(message.offset or 0)
        if await self.held.send_back(message, later):
            self.acknowledge(number)
        elif self.process.orderly:
            self.suspend(self.held.pause_ms(later))
        elif self.valid:
            aside = self.process.set_aside(self.package, number)
            if aside is not None:
                self.held.later(AGAIN_MS, self.process, aside)
            if self.package.done:
                self._done()

    async def reject(self) -> None:
        """All that is open of it is wanted again."""
        for number in self.package.open_numbers if self.valid else ():
            await self.retry(number, None)

    def _done(self) -> None:
        self._told()
        self._end()
        self.held.settled()

    def _told(self) -> None:
        self.held.dealt_with(self.package, len(self._failures))
        watch, self.watch = self.watch, None
        if watch is not None:
            watch(self._failures)

    def _end(self) -> None:
        # Also breaks the circle of batch, claim and package, so that the bytes are freed at once.
        self.over = True
        if self.package.batch.claim is self:
            self.package.batch.claim = None
