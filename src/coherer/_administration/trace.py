"""The trace of a message: its sender, its deliveries, and the groups that have consumed it.

It combines two sources:

* Message trace (docs/protocol/rocketmq.md, section 11): records that producers and consumers send
  to a topic if tracing is on. Brokers find them by the message's unique id.
* The offsets of the groups, and their dead letters. TubeMQ has only the offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from coherer._administration.access import Cluster, RocketCluster
from coherer._record.properties import number_in
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.admin import Message, Partition
from coherer.errors import RefusedError, UnavailableError
from coherer.rocketmq import StoredMessage

FIELD: Final = "\x01"
RECORD: Final = "\x02"

PUB_FIELDS: Final = 12
BEFORE_FIELDS: Final = 8
AFTER_FIELDS: Final = 5
AFTER_TIME: Final = 8
END_FIELDS: Final = 12
"""The minimum number of fields of a usable record."""

STATES: Final = {
    "0": "consumed",
    "1": "timed out",
    "2": "raised an exception",
    "3": "returned nothing",
    "4": "failed",
}
"""The results of a delivery, by their codes."""

StepKind = Literal["sent", "delivered", "ended", "transaction"]
State = Literal["consumed", "not yet", "filtered", "dead letter", "unknown"]


class Step(msgspec.Struct, frozen=True):
    """A record of message trace.

    Args:
        kind: the kind of event.
        time_ms: its time, by the clock of the client, ms since 1970; None if the record lacks it.
        group: the group of the producer or consumer; "" if the record lacks it.
        client: the address of the server that reported it, or of the broker it was sent to.
        took_ms: its duration.
        success: whether it succeeded.
        detail: the attempt, the result of a delivery, or the state of a transaction, in words.
        request_id: the id that the records of a delivery and of its end share.
    """

    kind: StepKind
    time_ms: int | None
    group: str
    client: str = ""
    took_ms: int | None = None
    success: bool | None = None
    detail: str = ""
    request_id: str = ""


class GroupProgress(msgspec.Struct, frozen=True):
    """Whether a group has consumed the message.

    Args:
        group: the group.
        state: `consumed`: its offset has passed the message; `not yet`: it has not, or a retry of
            the message is to be delivered; `filtered`: its offset has passed the message, which its
            filter excludes; `dead letter`: it has given up on the message; `unknown`. A retry that
            still waits for its delay looks like `consumed`.
        why: the reason for the state, in words; "" if it is obvious.
        retries: RocketMQ: the number of further deliveries.
        committed: the group's offset in the partition.
    """

    group: str
    state: State
    why: str = ""
    retries: int | None = None
    committed: int | None = None


class Trace(msgspec.Struct, frozen=True):
    """The trace of a message.

    Args:
        message: the message.
        steps: the records of message trace, in the order of their times.
        traced: whether there are records; None if the cluster has no trace topic, or TubeMQ.
        groups: the groups that read its topic.
    """

    message: Message
    steps: tuple[Step, ...]
    traced: bool | None
    groups: tuple[GroupProgress, ...]


async def trace(
    cluster: Cluster, message: Message, *, trace_topic: str = names.TRACE_TOPIC
) -> Trace:
    """The trace of a message.

    Args:
        cluster: the cluster.
        message: from `messages`.
        trace_topic: RocketMQ: the topic of the records.

    Raises:
        UnavailableError: a server does not answer.
    """
    steps = await _steps(cluster, message, trace_topic)
    if isinstance(cluster, RocketCluster):
        full = names.with_namespace(cluster.namespace, message.topic)
        readers = await cluster.admin.topics.groups(full)
        progress = await asyncio.gather(
            *(_rocket_progress(cluster, message, full, group) for group in readers)
        )
    else:
        readers = await cluster.admin.topics.groups(message.topic)
        found = await cluster.admin.groups.list(*readers) if readers else []
        progress = [
            _progress(message, group.name, _committed(group.partitions, message), None)
            for group in found
        ]
    return Trace(
        message=message,
        steps=tuple(steps or ()),
        traced=None if steps is None else bool(steps),
        groups=tuple(progress),
    )


# -- message trace


async def _steps(cluster: Cluster, message: Message, trace_topic: str) -> list[Step] | None:
    if not isinstance(cluster, RocketCluster):
        return None
    wanted = {message.unique_id, message.id} - {""}
    found: dict[str, StoredMessage] = {}
    for key in sorted(wanted):
        try:
            records = await cluster.admin.messages.find(trace_topic, key)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise
        found |= {one.id: one for one in records}
    steps = [
        step
        for one in found.values()
        for step in steps_of(one.body.decode(errors="replace"), wanted)
    ]
    return sorted(_timed(steps), key=lambda step: step.time_ms or 0)


def steps_of(body: str, wanted: set[str]) -> list[Step]:
    r"""The records in the body of a trace message that are about messages with the wanted ids.

    >>> body = "SubBefore\x015\x01null\x01readers\x01R1\x01ID\x010\x01k\x02"
    >>> steps_of(body, {"ID"})[0].group, steps_of(body, {"other"})
    ('readers', [])
    """
    steps: list[Step] = []
    for record in body.split(RECORD):
        fields = [field if field != "null" else "" for field in record.split(FIELD)]
        step = _step(fields, wanted)
        if step is not None:
            steps.append(step)
    return steps


def _step(fields: Sequence[str], wanted: set[str]) -> Step | None:
    match fields[0]:
        case "Pub" if len(fields) > PUB_FIELDS and not wanted.isdisjoint(fields[5].split(",")):
            success = fields[13] if len(fields) > PUB_FIELDS + 1 else fields[12]
            return Step(
                "sent",
                number_in(fields[1]),
                fields[3],
                fields[8],
                took_ms=number_in(fields[10]),
                success=success == "true",
            )
        case "SubBefore" if len(fields) >= BEFORE_FIELDS and fields[5] in wanted:
            attempt = number_in(fields[6])
            detail = f"attempt {attempt + 1}" if attempt is not None else ""
            return Step(
                "delivered", number_in(fields[1]), fields[3], detail=detail, request_id=fields[4]
            )
        case "SubAfter" if len(fields) > AFTER_FIELDS and fields[2] in wanted:
            timed = len(fields) > AFTER_TIME
            code = fields[6] if len(fields) > AFTER_FIELDS + 1 else ""
            return Step(
                "ended",
                number_in(fields[7]) if timed else None,
                fields[8] if timed else "",
                took_ms=number_in(fields[3]),
                success=fields[4] == "true",
                detail=STATES.get(code, ""),
                request_id=fields[1],
            )
        case "EndTransaction" if len(fields) > END_FIELDS and fields[5] in wanted:
            return Step(
                "transaction", number_in(fields[1]), fields[3], fields[8], detail=fields[11]
            )
        case _:
            return None


def _timed(steps: Sequence[Step]) -> list[Step]:
    """The steps; an end of a delivery without a time gets one from the delivery."""
    begun = {step.request_id: step for step in steps if step.kind == "delivered"}
    return [
        msgspec.structs.replace(
            step,
            time_ms=None if before.time_ms is None else before.time_ms + (step.took_ms or 0),
            group=step.group or before.group,
        )
        if step.kind == "ended"
        and step.time_ms is None
        and (before := begun.get(step.request_id)) is not None
        else step
        for step in steps
    ]


# -- offsets


async def _rocket_progress(
    cluster: RocketCluster, message: Message, full: str, group: str
) -> GroupProgress:
    if message.unique_id:
        try:
            dead = await _copies(cluster, names.dlq_topic(group), message.unique_id)
            tries = await _copies(cluster, names.retry_topic(group), message.unique_id)
        except UnavailableError as error:
            return GroupProgress(group, "unknown", str(error))
        if dead:
            when = "a dead letter of the group"
            return GroupProgress(group, "dead letter", when, len(tries))
    else:
        tries = []
    [state] = await cluster.admin.groups.list(group)
    place = msgspec.structs.replace(message, topic=full)
    committed = _committed(state.partitions, place)
    if state.model == "BROADCASTING":
        why = "its members broadcast, and keep their offsets themselves"
        return GroupProgress(group, "unknown", why, len(tries))
    if committed is None and state.silent:
        return GroupProgress(group, "unknown", state.no_lag or "", len(tries))
    found = _progress(message, group, committed, (state.subscriptions or {}).get(full))
    if tries and found.state == "consumed":
        last = tries[-1]
        place = msgspec.structs.replace(
            message,
            topic=names.retry_topic(group),
            broker=last.broker,
            partition=last.partition,
            offset=last.offset,
        )
        again = _committed(state.partitions, place)
        if last.offset is not None and (again is None or again <= last.offset):
            why = "it is to be delivered again"
            return GroupProgress(group, "not yet", why, len(tries), committed)
    return msgspec.structs.replace(found, retries=len(tries))


async def _copies(cluster: RocketCluster, topic: str, unique_id: str) -> list[StoredMessage]:
    try:
        return await cluster.admin.messages.all_by_unique_id(topic, unique_id, every_broker=True)
    except RefusedError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        raise


def _committed(partitions: Sequence[Partition], message: Message) -> int | None:
    """The committed offset in the partition of a message."""
    place = (message.topic, message.broker, message.partition)
    found = (one for one in partitions if (one.topic, str(one.broker), one.partition) == place)
    return next((one.committed for one in found), None)


def _progress(
    message: Message, group: str, committed: int | None, words: str | None
) -> GroupProgress:
    if committed is None:
        return GroupProgress(group, "unknown", "it has no offset in the partition")
    if message.offset is None:
        why = "the broker does not report the offset of the message"
        return GroupProgress(group, "unknown", why, committed=committed)
    if committed <= message.offset:
        return GroupProgress(group, "not yet", committed=committed)
    if words is None:
        why = "unless its filter excludes the message, which is not known"
        return GroupProgress(group, "consumed", why, committed=committed)
    accepted = _accepts(words, message)
    if accepted is None:
        why = f"unless its filter excludes the message: {words}"
        return GroupProgress(group, "consumed", why, committed=committed)
    if not accepted:
        return GroupProgress(group, "filtered", words, committed=committed)
    return GroupProgress(group, "consumed", committed=committed)


def _accepts(words: str, message: Message) -> bool | None:
    """Whether a filter accepts a message; None if its expression is not understood."""
    sql = words.removeprefix("SQL92 ")
    if sql == words:
        return words == "*" or message.tag in words.split(" || ")
    # Only SQL expressions need the parser and its library, lark.
    from coherer._wire.rocketmq.selector import SelectorError, compile_selector

    try:
        selector = compile_selector(sql)
    except SelectorError:
        return None
    return selector.matches(message.stored_properties or {})
