"""Strategies that divide queues among the members of a group.

See docs/protocol/rocketmq.md, section 8.9.

They are pure functions. Every member sorts queues and client ids in the same way and takes its
share without asking anyone, so all members of a group, Java's included, must use the same strategy.

>>> queues = [Queue("orders", "broker-a", n) for n in range(8)]
>>> [[queue.id for queue in average(queues, ["a", "b", "c"], me)] for me in "abc"]
[[0, 1, 2], [3, 4, 5], [6, 7]]
>>> [[queue.id for queue in by_circle(queues, ["a", "b", "c"], me)] for me in "abc"]
[[0, 3, 6], [1, 4, 7], [2, 5]]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final, TypeAlias

from coherer._wire.rocketmq.names import Queue
from coherer.errors import UsageError

Strategy: TypeAlias = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]
"""Takes queues, client ids and the own client id, and returns the own queues.

Queues and ids are sorted as by `sorted_for_allocation`. A client whose id is missing gets nothing.
"""

VIRTUAL_NODES: Final = 10


def sorted_for_allocation(
    queues: Collection[Queue], clients: Collection[str]
) -> tuple[list[Queue], list[str]]:
    """Sort queues and client ids as Java does: text by its UTF-16 code units.

    >>> sorted_for_allocation([Queue("b", "x", 1), Queue("b", "x", 0)], ["b", "a"])[1]
    ['a', 'b']
    """
    return sorted(queues, key=_queue_order), sorted(clients, key=_units)


def _queue_order(queue: Queue) -> tuple[bytes, bytes, int]:
    return _units(queue.topic), _units(queue.broker), queue.id


def _units(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _index(clients: Sequence[str], me: str) -> int | None:
    return clients.index(me) if me in clients else None


def average(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """AVG, Java's default: consecutive queues; the first clients get one more."""
    index = _index(clients, me)
    if index is None:
        return []
    each, over = divmod(len(queues), len(clients))
    start = index * each + min(index, over)
    return list(queues[start : start + each + (index < over)])


def by_circle(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """AVG_BY_CIRCLE: queues in turn, like dealt cards."""
    index = _index(clients, me)
    return [] if index is None else list(queues[index :: len(clients)])


def fixed(own: Sequence[Queue]) -> Strategy:
    """CONFIG: always these queues."""

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        del queues
        return list(own) if me in clients else []

    return allocate


def machine_room(rooms: Collection[str]) -> Strategy:
    """MACHINE_ROOM: only queues on brokers named `room@name` in one of these machine rooms."""

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        index = _index(clients, me)
        if index is None:
            return []
        near = [queue for queue in queues if _room_of(queue) in rooms]
        each, over = divmod(len(near), len(clients))
        own = near[index * each : (index + 1) * each]
        return own + ([near[index + each * len(clients)]] if index < over else [])

    return allocate


def _room_of(queue: Queue) -> str | None:
    parts = queue.broker.split("@")
    return parts[0] if len(parts) == 2 else None


def nearby(
    inner: Strategy, queue_room: Callable[[Queue], str], client_room: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: each machine room's clients share its queues, all share the others.

    Args:
        inner: the strategy that divides a machine room's queues.
        queue_room: returns the machine room of a queue.
        client_room: returns the machine room of a client id.
    """

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        if me not in clients:
            return []
        rooms: dict[str, list[Queue]] = {}
        for queue in queues:
            rooms.setdefault(_checked_room(queue_room(queue)), []).append(queue)
        homes: dict[str, list[str]] = {}
        for client in clients:
            homes.setdefault(_checked_room(client_room(client)), []).append(client)
        home = client_room(me)
        own = inner(rooms.pop(home), homes[home], me) if home in rooms else []
        for room in sorted(rooms, key=_units):
            if room not in homes:
                own += inner(rooms[room], clients, me)
        return own

    return allocate


def _checked_room(room: str) -> str:
    if not room:
        raise UsageError("A queue or a client has no machine room.")
    return room


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """CONSISTENT_HASH: few queues move when a client joins or leaves.

    Args:
        virtual_nodes: points on the ring for each client; equal for all members.
    """
    if virtual_nodes < 1:
        raise UsageError(f"A client has at least one point on the ring, not {virtual_nodes}.")

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        if me not in clients:
            return []
        ring = _ring(tuple(clients), virtual_nodes)
        points = [point for point, _ in ring]
        owners = [ring[bisect_left(points, _hash(_key(queue))) % len(ring)][1] for queue in queues]
        return [queue for queue, owner in zip(queues, owners, strict=True) if owner == me]

    return allocate


@lru_cache(maxsize=16)
def _ring(clients: tuple[str, ...], virtual_nodes: int) -> tuple[tuple[int, str], ...]:
    # If two clients have the same point, Java's map keeps the later one.
    points = {
        _hash(f"{client}-{number}"): client for client in clients for number in range(virtual_nodes)
    }
    return tuple(sorted(points.items()))


def _key(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.id}]"


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""Strategies without parameters, by Java's name."""
