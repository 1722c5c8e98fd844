"""What a consumer hands out: batches and messages that know where they came from.

A message can be acknowledged or wanted again by itself (`ack`, `retry`); a batch is confirmed as a
whole by the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Final

from coherer._client.rocketmq.received import DEAD, ClaimedBatch, Later, View


class ConsumedMessage(View, frozen=True, eq=False, gc=False):
    """A message that a consumer has handed out; see `views` for what it is.

    Without `ack` or `retry` it is confirmed together with its batch, or when a loop asks for the
    message after it.
    """

    def ack(self) -> None:
        """Say that the message is dealt with. Doing so again changes nothing."""
        self.source.acknowledge(self.number)

    async def retry(self, *, later: Later = None) -> None:
        """Say that the message could not be dealt with: it comes again, with a higher `attempt`.

        It waits at the broker meanwhile; after too many attempts it goes to the dead letters. A
        consumer in order stops its queue instead, and reads on from this message. When no broker
        takes it back, this consumer delivers it again after some seconds.

        Args:
            later: when; brokers know some delays only (`_record.system_topics`) and take the next
                longer one. A number is one of those levels. None: the later the more often.

        Raises:
            UsageError: there is no such level.
        """
        await self.source.retry(self.number, later)

    async def dead_letter(self) -> None:
        """Say that the message will never be dealt with: it goes to the dead letters now."""
        await self.retry(later=DEAD)


_VIEW: Final[Callable[..., ConsumedMessage]] = ConsumedMessage


class ReceivedBatch(ClaimedBatch):
    """Messages of one queue that a consumer has handed out. See `MessageBatch`."""

    __slots__ = ()

    def __iter__(self) -> Iterator[ConsumedMessage]:
        return map(_VIEW, self.bodies(), repeat(self), count())
