"""Finds members of a group whose topics or filters differ.

All members of a group must have the same topics and filters. Each member computes which queues it
reads from the list of all members, also of those that do not read the topic. If the subscriptions
differ, queues are assigned to members that never read them, and their messages wait. Brokers refuse
nothing: the last heartbeat of any member replaces the subscriptions of the whole group
(docs/protocol/rocketmq.md, section 3.7).

Each member compares itself with the next one in the order of client ids, and the last one with the
first. If each of these pairs is equal, all members are equal. So the check costs one request for
each member, and only when its neighbour has changed or differed the last time. It is
GET_CONSUMER_RUNNING_INFO (307), which brokers relay to the neighbour; Java's brokers and clients
know it, too. A neighbour that does not answer is not compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from coherer._client.engine.tasks import cancel
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._common.consumer_problems import described
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import SubscriptionData
from coherer._wire.rocketmq.names import RETRY_PREFIX
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))


def neighbour_of(own_id: str, members: Collection[str]) -> str | None:
    """The member that a member compares itself with; None if it has no other member.

    >>> neighbour_of("a", ["b", "a", "c"]), neighbour_of("c", ["b", "a", "c"])
    ('b', 'a')
    >>> neighbour_of("a", ["a"]), neighbour_of("a", ["b"])
    (None, None)
    """
    ring = sorted(set(members))
    if own_id not in ring or len(ring) == 1:
        return None
    return ring[(ring.index(own_id) + 1) % len(ring)]


def _described(subscriptions: Iterable[SubscriptionData]) -> str:
    """Topics and filters as text, without the group's retry topic."""
    return described(
        {one.topic: one.filter for one in subscriptions if not one.topic.startswith(RETRY_PREFIX)}
    )


class SubscriptionCheck:
    """Compares a member's subscriptions with those of its neighbour.

    Args:
        subscriptions: returns the member's subscriptions.

    Attributes:
        error: says how this member and its neighbour differ; None if they are equal or unknown.
    """

    def __init__(
        self, rpc: BrokerRpc, group: str, subscriptions: Callable[[], Iterable[SubscriptionData]]
    ) -> None:
        self.error: UsageError | None = None
        self._rpc = rpc
        self._group = group
        self._subscriptions = subscriptions
        self._compared: str | None = None
        self._task: asyncio.Task[None] | None = None

    def members_are(self, topic: str, members: Collection[str]) -> None:
        """Compare with the neighbour, if it is a new one or differed; does not wait.

        Args:
            topic: a topic of the group, to find a broker to which the members are connected.
            members: the client ids of the group's members.
        """
        neighbour = neighbour_of(self._rpc.instance.client_id, members)
        if neighbour is None:
            self.error = self._compared = None
            return
        known = neighbour == self._compared and self.error is None
        if not known and (self._task is None or self._task.done()):
            self._compared = neighbour
            comparing = self._compare(topic, neighbour)
            self._task = asyncio.create_task(comparing, name="compare subscriptions")

    async def close(self) -> None:
        """Stop comparing."""
        await cancel(self._task)

    async def _compare(self, topic: str, neighbour: str) -> None:
        try:
            others = _described(await self._rpc.subscriptions_of(self._group, neighbour, topic))
        except CohererError as error:
            self.error = self._compared = None
            _log.debug("Cannot compare subscriptions with %s: %s", neighbour, error)
            return
        own = _described(self._subscriptions())
        if own == others:
            self.error = None
            return
        self.error = UsageError(
            f"Members of group {self._group} subscribe to different topics or filters: "
            f"{self._rpc.instance.client_id} to {own:.500}; {neighbour} to {others:.500}. "
            "Some queues of these topics are not read.",
            hint="Give all members of a group the same topics and filters, or use one group for "
            "each set of topics.",
        )
        _log.error("%s", self.error, about=(self._group, neighbour), group=self._group)
