"""Which queues a member of a group reads: pure functions, the same on every member (8.9).

Every member sorts the queues and the client ids alike and takes its part; nobody is asked. So all
members of a group, Java's among them, must use the same strategy.

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
"""(queues, client ids, own client id), the first two sorted (`sorted_for_allocation`), to own queues.

A client that is not among the ids gets nothing.
"""

VIRTUAL_NODES: Final = 10


def sorted_for_allocation(
    queues: Collection[Queue], clients: Collection[str]
) -> tuple[list[Queue], list[str]]:
    """Sort queues and client ids as Java does: text by its UTF-16 units.

    >>> sorted_for_allocation([Queue("b", "x", 1), Queue("b", "x", 0)], ["b", "a"])[1]
    ['a', 'b']
    """
    return sorted(queues, key=_queue_order), sorted(clients, key=_units)


def _queue_order(queue: Queue) -> tuple[bytes, bytes, int]:
    return _units(queue.topic), _units(queue.broker), queue.id


def _units(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _place(clients: Sequence[str], me: str) -> int | None:
    return clients.index(me) if me in clients else None


def average(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """AVG, Java's default: neighbouring queues, the first clients have one more."""
    place = _place(clients, me)
    if place is None:
        return []
    each, over = divmod(len(queues), len(clients))
    start = place * each + min(place, over)
    return list(queues[start : start + each + (place < over)])


def by_circle(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """AVG_BY_CIRCLE: every so many-th queue."""
    place = _place(clients, me)
    return [] if place is None else list(queues[place :: len(clients)])


def fixed(mine: Sequence[Queue]) -> Strategy:
    """CONFIG: these queues, whatever the others have."""

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        del queues
        return list(mine) if me in clients else []

    return allocate


def machine_room(rooms: Collection[str]) -> Strategy:
    """MACHINE_ROOM: of queues on brokers named `room@name` with a room of these."""

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        place = _place(clients, me)
        if place is None:
            return []
        near = [queue for queue in queues if _room_of(queue) in rooms]
        each, over = divmod(len(near), len(clients))
        mine = near[place * each : (place + 1) * each]
        return mine + ([near[place + each * len(clients)]] if place < over else [])

    return allocate


def _room_of(queue: Queue) -> str | None:
    parts = queue.broker.split("@")
    return parts[0] if len(parts) == 2 else None


def nearby(
    inner: Strategy, queue_room: Callable[[Queue], str], client_room: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: queues of my room among its clients; rooms without clients among all.

    Args:
        inner: how a room's queues are divided.
        queue_room: the room of a queue.
        client_room: the room of a client id.
    """

    def allocate(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
        if me not in clients:
            return []
        rooms: dict[str, list[Queue]] = {}
        for queue in queues:
            rooms.setdefault(_named(queue_room(queue)), []).append(queue)
        homes: dict[str, list[str]] = {}
        for client in clients:
            homes.setdefault(_named(client_room(client)), []).append(client)
        home = client_room(me)
        mine = inner(rooms.pop(home), homes[home], me) if home in rooms else []
        for room in sorted(rooms, key=_units):
            if room not in homes:
                mine += inner(rooms[room], clients, me)
        return mine

    return allocate


def _named(room: str) -> str:
    if not room:
        raise UsageError("A queue or a client has no machine room.")
    return room


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """CONSISTENT_HASH: few queues move when a client comes or goes.

    Args:
        virtual_nodes: points on the ring for each client; the same for all members.
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
    # Of two clients at one point Java's map keeps the later.
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
"""Java's name to the strategy, of those that need to know nothing more."""
