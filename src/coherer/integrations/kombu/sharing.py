"""How the workers of a queue divide its partitions, so that few of them move.

A partition that moves while its tasks run costs repetitions: its new owner begins at the first task
that is not acknowledged. Java's default strategy moves most partitions when a client with a low id
joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from coherer.rocketmq import Queue


def few_moves(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """A strategy: even shares, by weights that depend on client and partition only.

    The pairs with the highest weights come first (rendezvous hashing), as long as the client has
    less than its share.

    >>> queues = [Queue("orders", "broker-a", number) for number in range(8)]
    >>> before = {me: few_moves(queues, "abd", me) for me in "abd"}
    >>> after = {me: few_moves(queues, "abcd", me) for me in "abcd"}
    >>> [len(own) for own in before.values()], [len(own) for own in after.values()]
    ([3, 2, 3], [2, 2, 2, 2])
    >>> sum(len({*before[me]} - {*after[me]}) for me in before)
    2
    """
    if me not in clients:
        return []
    each, larger_left = divmod(len(queues), len(clients))
    owners: dict[Queue, str] = {}
    shares: Counter[str] = Counter()
    pairs = ((_weight(client, queue), client, queue) for client in clients for queue in queues)
    for _, client, queue in sorted(pairs, reverse=True):
        if queue in owners or shares[client] > each:
            continue
        if shares[client] == each:
            if not larger_left:
                continue
            larger_left -= 1
        owners[queue] = client
        shares[client] += 1
    return [queue for queue in queues if owners[queue] == me]


def _weight(client: str, queue: Queue) -> bytes:
    return blake2b(f"{client} {queue.key}".encode(), digest_size=8).digest()
