"""The status of a node: the page `/status`, which `coherer status` shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from coherer import _net as net
from coherer._common.consumer_problems import different_topics
from coherer._common.distribution import Distribution
from coherer._common.node_status import (
    DiskStatus,
    GroupLag,
    LimitStatus,
    ListenerStatus,
    NodeStatus,
    Rate,
    SilentMember,
    StatusWarning,
)
from coherer._common.version import __version__
from coherer._record import layout
from coherer._server.core.core import Core
from coherer._server.core.counters import GOT, PUT, PUT_BYTES
from coherer._server.node.counts import (
    all_groups,
    all_topics,
    is_users_group,
    is_users_topic,
)
from coherer._server.node.group_lag import Lag
from coherer._server.node.parts import NodeParts
from coherer._server.options.exposure import warnings
from coherer._server.options.siblings import SiblingState

NEAR_LIMIT: Final = 0.8
"""A warning is given if more than this share of a limit is in use."""

FREE_DISK: Final = 0.1
"""A warning is given if less than this share of the disk is free."""

LATE_MS: Final = 250
"""A warning is given if timers are later than this."""

LISTED_MAX: Final = 100
"""The most silent consumers and lags in a status."""

BUSY: Final = 0.8
"""A process that uses more of a core than this is busy itself."""

_LISTENERS: Final = {
    "master_port": "TubeMQ master",
    "broker_port": "TubeMQ broker",
    "master_tls_port": "TubeMQ master, TLS",
    "broker_tls_port": "TubeMQ broker, TLS",
    "namesrv_port": "RocketMQ name server",
    "rocketmq_port": "RocketMQ broker",
    "rocketmq_fast_port": "RocketMQ broker, all requests except pulls",
    "ha_port": "replication",
    "admin_port": "HTTP administration",
    "metrics_port": "metrics and health",
}
"""The ports of a node, and what they serve."""

_RATES: Final = {PUT: "messages in", PUT_BYTES: "bytes in", GOT: "messages out"}


def silent_members(node: NodeParts) -> Iterator[list[SilentMember]]:
    """Find the consumers that do not answer, in steps between which other work may run."""
    if node.rocketmq.broker is not None:
        for group in node.rocketmq.broker.calls.silent():
            yield [
                SilentMember(name, "RocketMQ", one.client_id, one.channel.peer, silent_ms)
                for name, one, silent_ms in group
            ]
    if node.tubemq.master is not None:
        yield [
            SilentMember(name, "TubeMQ", one.id, one.address or one.host, silent_ms)
            for name, one, silent_ms in node.tubemq.master.state.groups.silent(node.now_ms())
        ]


def _longest_silent(node: NodeParts) -> list[SilentMember]:
    found = [one for some in silent_members(node) for one in some]
    return sorted(found, key=lambda one: -one.silent_ms)[:LISTED_MAX]


def _oldest_lags(lags: Iterable[Lag]) -> Iterator[GroupLag]:
    """The lags of users' groups, with the oldest unread message first."""
    behind = sorted((one for one in lags if one.messages), key=lambda one: -(one.age_ms or 0))
    for one in behind:
        if is_users_topic(one.topic) and is_users_group(one.group):
            yield GroupLag(one.group, one.topic, one.messages, one.age_ms)


def status_of(node: NodeParts, lags: Iterable[Lag]) -> NodeStatus:
    """The status of a node."""
    core, reason, host = node.core, node.not_ready(), node.options.host
    rates: tuple[Rate, ...] = ()
    if core is not None:
        found = [(name, core.counters.totals.rates(total)) for total, name in _RATES.items()]
        rates = tuple(Rate(name, *values[:2]) for name, values in found)
    disk = _disk(core) if core is not None else None
    limits, lag_ms = _limits(node), _quantile_ms(node.load.loop_lag)
    ports, memory = node.ports(), net.memory()
    return NodeStatus(
        version=__version__,
        pid=os.getpid(),
        running_s=node.load.running_s,
        directory=str(node.options.directory.resolve()),
        ready=reason is None,
        reason=reason or "",
        listeners=tuple(
            ListenerStatus(name, f"{host}:{ports[one]}")
            for one, name in _LISTENERS.items()
            if one in ports
        ),
        topics=None if core is None else sum(map(is_users_topic, all_topics(node))),
        groups=None if core is None else sum(map(is_users_group, all_groups(node))),
        rates=rates,
        disk=disk,
        limits=limits,
        memory_bytes=memory.resident,
        mapped_bytes=memory.mapped,
        loop_lag_ms=lag_ms,
        warnings=tuple(_warnings(node, disk, limits, lag_ms, node.load.busy)),
        silent=tuple(_longest_silent(node)),
        lags=tuple(islice(_oldest_lags(lags), LISTED_MAX)),
    )


def _disk(core: Core) -> DiskStatus:
    store = core.store
    oldest = store.record_at(store.min_offset)
    return DiskStatus(
        log_bytes=store.end_offset - store.min_offset,
        log_limit_bytes=store.options.retention_bytes,
        not_synced_bytes=store.written_offset - store.durable_offset,
        oldest_ms=None if oldest is None else max(0, core.wall_ms() - layout.store_ms_of(oldest)),
        damaged_bytes=sum(one.end - one.begin for one in store.log.damage),
        free_bytes=core.disk.free,
        disk_bytes=core.disk.total,
        free_min_bytes=core.disk.free_min,
        problem=core.disk.problem or "",
    )


def _limits(node: NodeParts) -> tuple[LimitStatus, ...]:
    budget = node.budget
    return (
        LimitStatus("connections", budget.connections.count, budget.limits.connections_max),
        LimitStatus(
            "unfinished requests",
            budget.unfinished.buffered_bytes,
            budget.limits.unfinished_bytes,
            "bytes",
        ),
        LimitStatus(
            "unsent answers",
            budget.writes.unsent_bytes,
            budget.limits.write_buffers_bytes,
            "bytes",
        ),
    )


def _warnings(
    node: NodeParts,
    disk: DiskStatus | None,
    limits: tuple[LimitStatus, ...],
    lag_ms: float | None,
    busy: float | None,
) -> Iterator[StatusWarning]:
    yield from _troubles(node)
    for limit in limits:
        if limit.used > NEAR_LIMIT * limit.limit:
            text = f"{limit.used / limit.limit:.0%} of the limit for {limit.name} is in use."
            yield StatusWarning(text, "Find the clients that use so much, or raise the limit.")
    yield from _divided(node)
    refused = node.budget.connections.refused
    if refused:
        yield StatusWarning(
            f"{refused} connections were refused since the start.",
            "Raise `connections_max`, or the number of files that the process may open.",
        )
    if disk is not None and disk.damaged_bytes:
        yield StatusWarning(
            f"{disk.damaged_bytes:,} bytes of the log are damaged; readers skip them.",
            "`coherer verify` shows where. Restore the files if there is a copy.",
        )
    if disk is not None and disk.free_bytes is not None and disk.disk_bytes:
        share = disk.free_bytes / disk.disk_bytes
        if share < FREE_DISK:
            yield StatusWarning(
                f"{share:.0%} of the disk is free.",
                "Lower `retention_hours`, set `retention_bytes`, or make the disk larger.",
            )
    yield from _outgrown(node.core)
    yield from _alone(node)
    if lag_ms is not None and lag_ms > LATE_MS:
        yield _late(lag_ms, busy)
    for text in warnings(node.options):
        what, _, action = text.partition(". ")
        yield StatusWarning(f"{what.removesuffix('.')}.", action)


def _outgrown(core: Core | None) -> Iterator[StatusWarning]:
    """Messages that keep expired files of the log."""
    if core is not None and core.outgrows_retention:
        holds = core.store.holds
        yield StatusWarning(
            f"{holds.held_bytes:,} bytes of expired log files are kept: they hold {holds.held_by}.",
            "The log shrinks once these are delivered. Watch the free space, or raise the "
            "retention.",
        )


def _alone(node: NodeParts) -> Iterator[StatusWarning]:
    """A master that waits for slaves, or a slave, without the other one."""
    replicator = node.rocketmq.replicator
    if replicator is None:
        return
    if replicator.slave is not None and replicator.slave.link is None:
        yield StatusWarning(
            "This slave does not copy the log of its master.",
            "Its log says why. Is the master up?",
        )
    waits = node.options.role == "SYNC_MASTER"
    if waits and replicator.master is not None and not replicator.master.slaves:
        yield StatusWarning(
            "No slave copies the log of this SYNC_MASTER: sends end with SLAVE_NOT_AVAILABLE.",
            "Start the slave, and look at its log.",
        )


def _divided(node: NodeParts) -> Iterator[StatusWarning]:
    """The RocketMQ groups whose members have different topics or filters."""
    if node.rocketmq.broker is None:
        return
    found = 0
    for group in node.rocketmq.broker.state.consumers.groups():
        pair = group.divided()
        if pair is not None and found < LISTED_MAX:
            found += 1
            one, other = ((each.client_id, each.channel.peer, each.topics) for each in pair)
            yield different_topics(group.name, one, other)


def _troubles(node: NodeParts) -> Iterator[StatusWarning]:
    reason = node.not_ready()
    if reason is not None:
        yield StatusWarning(f"The node is not ready. {reason}", "Look at its log.")
    if node.certificates.problem:
        text = f"New TLS files are not used. {node.certificates.problem}"
        yield StatusWarning(text, "Correct them; the node reads them again automatically.")
    yield from _restarted(node.siblings)


def _late(lag_ms: float, busy: float | None) -> StatusWarning:
    """The warning about late timers; its advice depends on the load of this process.

    >>> _late(400, 0.98).action
    'This process uses 98% of a core; spread topics over more brokers.'
    >>> _late(400, 0.1).action
    'This process uses only 10% of a core: other programs, or a slow disk, hold it up.'
    """
    text = f"Timers of the node run up to {lag_ms:,.0f} ms late."
    if busy is not None and busy >= BUSY:
        action = f"This process uses {busy:.0%} of a core; spread topics over more brokers."
    elif busy is None:
        action = "Look at the load of the machine."
    else:
        action = f"This process uses only {busy:.0%} of a core: other programs, or a slow disk, "
        action += "hold it up."
    return StatusWarning(text, action)


def _restarted(siblings: Iterable[SiblingState]) -> Iterator[StatusWarning]:
    """The brokers of `--brokers` that ended unexpectedly.

    >>> [one.text for one in _restarted([SiblingState(2, "broker-b", restarts=1, note="It hung.")])]
    ['Broker 2 was started again once. It hung.']
    """
    for one in siblings:
        if one.restarts:
            times = "once" if one.restarts == 1 else f"{one.restarts} times"
            text = f"Broker {one.broker_id} was started again {times}. {one.note}"
            yield StatusWarning(text.strip(), "Look at the log for the reason.")


def _quantile_ms(found: Distribution) -> float | None:
    """Return the limit that 99 % of the values do not exceed; None without values."""
    wanted, seen = sum(found.counts) * 0.99, 0
    for bound, count in zip(found.bounds, found.counts, strict=False):
        seen += count
        if seen and seen >= wanted:
            return bound * 1000
    return found.bounds[-1] * 1000 if sum(found.counts) else None
