"""What a member of a group and a listener to an exchange have in common.

A membership has at most one consumer at a time, and counts as one of its client's consumers for as
long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Unpack

from coherer import rocketmq
from coherer.integrations.kombu.session import Session


class Membership:
    """A consumer of this process, and the task that reads from it.

    Attributes:
        consumer: the consumer while this process is in the group.
        task: the task; None before the start and after `close`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.consumer: rocketmq.Consumer | None = None
        self._client: rocketmq.Client | None = None
        self.task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the task and leave the group."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.leave()

    async def leave(self) -> None:
        """Leave the group; a task that still runs may join it again."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.close()
        client, self._client = self._client, None
        if client is not None:
            self.session.release(client)

    def make(
        self,
        group: str,
        topics: rocketmq.Topics,
        **options: Unpack[rocketmq.ConsumerKeywords],
    ) -> rocketmq.Consumer:
        """Make a consumer, which is not started."""
        options["queue_messages"] = self.session.options.prefetch
        options["consume_ms"] = 0  # tasks may take as long as they like
        self._client = self.session.member_client()
        return self._client.consumer(group, topics, **options)
