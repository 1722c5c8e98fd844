"""The options of the transport, which every program that shares a queue must agree on."""

from __future__ import annotations

import msgspec


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the transport: kombu's `transport_options`, Celery's `broker_transport_options`.

    The options of `coherer.rocketmq.connect`, `timeout_ms` for example, may stand beside them.

    Args:
        name_prefix: a prefix of the names of all topics and groups. Everybody must have the same.
        partitions: the partitions of new topics. At most so many processes share a queue.
        prefetch: how many unsettled messages of a partition this process holds at most.
        priority_steps: the priorities that have topics of their own, for every queue; a message
            goes to the highest step that does not exceed its priority. Without them, queues with
            `max_priority` have (0, 3, 6, 9), and others none.
        commit_ms: the interval of storing acknowledgements: after a crash, what was acknowledged
            in the last interval is delivered again.
        timers: whether the broker waits for a task's ETA; otherwise the worker does.
        handover_ms: how long a worker that gives a partition up to another one may finish the
            tasks that it has from it, before the other begins; longer ones run twice.
        dead_letters: whether rejected messages become dead letters; otherwise they are dropped.
    """

    name_prefix: str = ""
    partitions: int = 8
    prefetch: int = 1_000
    priority_steps: tuple[int, ...] = ()
    commit_ms: int = 200
    timers: bool = True
    handover_ms: int = 10_000
    dead_letters: bool = True
