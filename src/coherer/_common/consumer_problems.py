"""Problems of the consumers of a group, in the same words in a node and in operators' tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from coherer._common.node_status import StatusWarning

Subscriber: TypeAlias = tuple[str, str | None, str]
"""The client id of a member, its address if it is known, and its topics and filters."""


def described(filters: Mapping[str, str]) -> str:
    """Topics and filters as text; equal texts filter alike.

    >>> described({"b": "*", "a": "x || y"}), described({})
    ('a (x || y), b', 'no topic')
    """
    words = (f"{topic} ({filters[topic]})" if filters[topic] != "*" else topic for topic in filters)
    return ", ".join(sorted(words)) or "no topic"


def silent_consumer(
    group: str, client_id: str, address: str | None, silent_ms: int | None
) -> StatusWarning:
    """A consumer that does not answer.

    Args:
        address: its address; None if it is unknown.
        silent_ms: how long it has been silent; None if that is unknown.

    >>> silent_consumer("billing", "app@7", "10.0.0.5:4711", 65_000).text
    'Consumer app@7 (10.0.0.5:4711) of group billing does not answer, for 65 s.'
    """
    since = "" if silent_ms is None else f", for {silent_ms // 1000} s"
    return StatusWarning(
        f"Consumer {_place(client_id, address)} of group {group} does not answer{since}.",
        "What it should read waits until it continues or is removed. Look at its process: it may "
        "be suspended, out of memory, or cut off. If you stop it, the other members take over.",
    )


def different_topics(group: str, one: Subscriber, other: Subscriber) -> StatusWarning:
    """A RocketMQ group whose members have different topics or filters.

    >>> different_topics("g", ("a@1", None, "t"), ("b@2", "10.0.0.6:1", "t, u")).text
    'Members of group g have different topics or filters: a@1 has t; b@2 (10.0.0.6:1) has t, u.'
    """
    sides = "; ".join(f"{_place(each[0], each[1])} has {each[2]}" for each in (one, other))
    return StatusWarning(
        f"Members of group {group} have different topics or filters: {sides}.",
        "A part of the messages is not read, because RocketMQ divides the queues of each topic "
        "among all members. Give all members the same topics, or each set of topics its own group.",
    )


def _place(client_id: str, address: str | None) -> str:
    return client_id if address is None else f"{client_id} ({address})"
