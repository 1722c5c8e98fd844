"""Which queue the next message goes to (rocketmq 8.4).

Rules:

* Queues are taken in turn, from a random start, among those whose broker has a connection if there
  are any.
* A message that is sent again goes to another broker if there is one.
* With `Faults`, the first in turn whose broker is not to be avoided; when all are, one of the
  least bad broker's.
* Messages with one key go to one queue while the number of queues does not change: the remainder of
  the key's hash, as Java's selector by hash has it. Of a topic whose queues an administrator fixed,
  it does not change when a broker's master is away: its keys have to wait for it.

Pure: the caller tells the time.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from coherer._client.rocketmq.queue_selection import Faults
from coherer._record.properties import java_hash
from coherer._wire.rocketmq.names import Queue

Key = str | int
"""What orders messages."""


class Choice(Protocol):
    """A queue that may be chosen."""

    @property
    def queue(self) -> Queue:
        """The queue."""
        ...

    @property
    def open(self) -> bool:
        """Whether its broker has a connection."""
        ...


C = TypeVar("C", bound=Choice)


def hash_of(key: Key) -> int:
    """The hash of a key as Java has it: of text its characters', of a number itself folded.

    >>> hash_of("order-17") % 8, hash_of(17), hash_of(2**32 + 1)
    (5, 17, 0)
    """
    if isinstance(key, str):
        return abs(java_hash(key))
    folded = (key ^ (key >> 32)) & 0xFFFF_FFFF if key.bit_length() > 31 else key
    return abs(folded - 2**32 if folded >= 2**31 else folded)


class Selector(Generic[C]):
    """The queues of one topic.

    Args:
        choices: the queues that take messages, sorted.
        faults: which brokers to avoid; None when that is not wanted.
        counter: where to start; anywhere when None.
        queues: those that keys are spread over; the choices' when None.

    Attributes:
        queues: those that keys are spread over, whether they take messages now or not.
        stale: set it when connections came or went.
    """

    __slots__ = ("_by_queue", "_counter", "_faults", "_ready", "choices", "queues", "stale")

    def __init__(
        self,
        choices: Iterable[C],
        faults: Faults | None = None,
        counter: int | None = None,
        queues: Sequence[Queue] | None = None,
    ) -> None:
        self._faults = faults
        self._counter = secrets.randbits(31) if counter is None else counter
        self.renew(choices, queues)
        self._ready: Sequence[C] = self.choices

    def renew(self, choices: Iterable[C], queues: Sequence[Queue] | None = None) -> None:
        """Take over other queues."""
        self.choices: Sequence[C] = list(choices)
        self._by_queue = {choice.queue: choice for choice in self.choices}
        self.queues: Sequence[Queue] = list(self._by_queue) if queues is None else queues
        self.stale = True

    def next(self, now_ms: int = 0) -> C:
        """The queue for the next message. There has to be one."""
        if self.stale:
            self._judge()
        if self._faults is not None:
            return self._careful(self._faults, now_ms)
        self._counter = counter = self._counter + 1
        return self._ready[counter % len(self._ready)]

    def avoiding(self, broker: str, now_ms: int = 0) -> C:
        """The queue for a message that this broker did not take."""
        if self.stale:
            self._judge()
        for choices in (self._ready, self.choices):
            for _ in choices:
                self._counter += 1
                choice = choices[self._counter % len(choices)]
                if choice.queue.broker != broker:
                    return choice
        return self.next(now_ms)

    def of_key(self, key: Key) -> Queue:
        """The queue for messages of a key. There has to be one."""
        return self.queues[hash_of(key) % len(self.queues)]

    def exactly(self, queue: Queue) -> C | None:
        """This queue, if it takes messages now."""
        return self._by_queue.get(queue)

    def _judge(self) -> None:
        self.stale = False
        ready = [choice for choice in self.choices if choice.open]
        self._ready = ready or self.choices

    def _careful(self, faults: Faults, now_ms: int) -> C:
        self._counter += 1
        for step in range(len(self._ready)):
            choice = self._ready[(self._counter + step) % len(self._ready)]
            if faults.available(choice.queue.broker, now_ms):
                return choice
        broker = faults.least_bad(now_ms, self._counter, random.shuffle)
        those = [choice for choice in self._ready if choice.queue.broker == broker]
        return (those or self._ready)[self._counter % len(those or self._ready)]
