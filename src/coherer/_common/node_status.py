"""The status of a node, as it reports it to people and programs over HTTP (`/status`)."""

from __future__ import annotations

import msgspec


class ListenerStatus(msgspec.Struct, frozen=True):
    """A port that a node listens on.

    Args:
        name: the service on the port, such as `TubeMQ broker`.
        address: host and port.
    """

    name: str
    address: str


class Rate(msgspec.Struct, frozen=True):
    """A rate of traffic, per second.

    Args:
        name: what is counted, such as `messages in`.
        last_10_s: the average over the last ten seconds.
        last_minute: the average over the last minute.
    """

    name: str
    last_10_s: float
    last_minute: float


class LimitStatus(msgspec.Struct, frozen=True):
    """A limit and its current use.

    Args:
        name: what is limited.
        used: how much is in use.
        limit: the limit.
        unit: `bytes`, or empty for a count.
    """

    name: str
    used: int
    limit: int
    unit: str = ""


class DiskStatus(msgspec.Struct, frozen=True):
    """The store of a node.

    Args:
        log_bytes: the size of the log.
        log_limit_bytes: the size limit of the log; None if it is unlimited.
        not_synced_bytes: written but not synced; a power cut would lose them.
        oldest_ms: the age of the oldest message; None without messages.
        damaged_bytes: the size of damaged parts.
        free_bytes: the free space on the disk; None if it is unknown.
        disk_bytes: the size of the disk; None if it is unknown.
        free_min_bytes: sends are refused while less is free.
        problem: why messages cannot be stored; "" if they can.
    """

    log_bytes: int
    log_limit_bytes: int | None
    not_synced_bytes: int
    oldest_ms: int | None
    damaged_bytes: int
    free_bytes: int | None
    disk_bytes: int | None
    free_min_bytes: int = 0
    problem: str = ""


class StatusWarning(msgspec.Struct, frozen=True):
    """Something that an operator should look at.

    Args:
        text: what is wrong.
        action: what to do.
    """

    text: str
    action: str


class SilentMember(msgspec.Struct, frozen=True):
    """A consumer that does not answer, or whose heartbeats are late.

    Args:
        group: its group.
        protocol: `TubeMQ` or `RocketMQ`.
        member: its client id.
        address: where it is connected from.
        silent_ms: for how long it has not answered or sent a heartbeat.
    """

    group: str
    protocol: str
    member: str
    address: str
    silent_ms: int


class GroupLag(msgspec.Struct, frozen=True):
    """What a consumer group has not acknowledged in a topic.

    Args:
        group: the group.
        topic: the topic.
        messages: the number of messages.
        oldest_ms: the age of the oldest of them; 0 without messages, None if it is unknown.
    """

    group: str
    topic: str
    messages: int
    oldest_ms: int | None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node.

    Args:
        version: the version of Coherer.
        pid: the process id.
        running_s: seconds since the start.
        directory: the directory of its files.
        ready: whether it accepts requests.
        reason: why it does not; "" if it does.
        listeners: the open ports.
        topics: the number of topics; None in a node without a broker.
        groups: the number of groups; None in a node without a broker.
        rates: the traffic.
        disk: the store; None in a node without a broker.
        limits: the limits and their use.
        memory_bytes: the resident memory of the process; None if it is unknown.
        mapped_bytes: the part of it that is pages of mapped files, which the system can drop.
        loop_lag_ms: 99 % of timers ran at most this late since the start; None before the first
            timer.
        warnings: what an operator should look at.
        silent: consumers that do not answer, the longest silent ones first; at most 100.
        lags: unread messages of the groups, those with the oldest first; at most 100. Topics and
            groups that the system uses itself are not included.
    """

    version: str
    pid: int
    running_s: float
    directory: str
    ready: bool
    reason: str
    listeners: tuple[ListenerStatus, ...]
    topics: int | None
    groups: int | None
    rates: tuple[Rate, ...]
    disk: DiskStatus | None
    limits: tuple[LimitStatus, ...]
    memory_bytes: int | None
    loop_lag_ms: float | None
    warnings: tuple[StatusWarning, ...]
    silent: tuple[SilentMember, ...] = ()
    lags: tuple[GroupLag, ...] = ()
    mapped_bytes: int | None = None
