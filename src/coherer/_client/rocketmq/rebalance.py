"""Which queues are ours, and what follows from a change (8.9). Pure.

Every member of a group works this out by itself from the same two lists, the topic's queues and the
group's members, so all come to the same result as long as they see the same lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from coherer._wire.rocketmq.allocate import Strategy, sorted_for_allocation
from coherer._wire.rocketmq.names import Queue

IDLE_MS: Final = 120_000
"""A queue that nothing was heard of for so long is given up; the next round takes it anew."""


class Change(msgspec.Struct, frozen=True):
    """What differs between the queues that we hold and those that are ours.

    Args:
        dropped: to give up, in order.
        added: to take, in order.
    """

    dropped: list[Queue]
    added: list[Queue]

    def __bool__(self) -> bool:
        return bool(self.dropped or self.added)


def share(
    strategy: Strategy, own_id: str, queues: Iterable[Queue], clients: Iterable[str]
) -> list[Queue]:
    """The queues of one topic that are ours.

    Args:
        strategy: one of `coherer._wire.rocketmq.allocate`, or your own.
        own_id: our client id.
        queues: of the topic.
        clients: ids of the group's members.

    >>> from coherer._wire.rocketmq.allocate import average
    >>> queues = [Queue("flights", "broker-a", number) for number in range(3)]
    >>> [queue.id for queue in share(average, "b", queues, ["c", "b"])]
    [0, 1]
    """
    every, members = sorted_for_allocation(set(queues), set(clients))
    if not every or own_id not in members:
        return []
    return strategy(every, members, own_id)


def change(held: Collection[Queue], ours: Iterable[Queue], idle: Collection[Queue] = ()) -> Change:
    """What to give up and what to take.

    Args:
        held: the queues of the topic that we hold.
        ours: those that are ours.
        idle: those that we hold and have not heard of for `IDLE_MS`: given up now.

    >>> a, b = Queue("flights", "broker-a", 0), Queue("flights", "broker-a", 1)
    >>> change([a], [b])
    Change(dropped=[Queue(...0)], added=[Queue(...1)])
    """
    wanted = set(ours)
    dropped = sorted(queue for queue in held if queue not in wanted or queue in idle)
    added = sorted(queue for queue in wanted if queue not in held)
    return Change(dropped, added)
