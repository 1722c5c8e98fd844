"""Searches for messages: by id, key, position or time.

RocketMQ's brokers find messages by id and by key. All other searches, and all searches over TubeMQ,
read the messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import MINYEAR, datetime
from functools import partial
from typing import Final

import msgspec

from coherer._administration.access import AnyPartition, Cluster, RocketCluster, TubeCluster
from coherer._common.places import place_of
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.admin import Message
from coherer.errors import RefusedError, UnavailableError, UsageError
from coherer.message import ReceivedMessage
from coherer.rocketmq import Queue, StoredMessage
from coherer.tubemq import Partition

CHUNK: Final = 256
"""The number of messages of a partition that are read at once."""

TUBE_CHUNK: Final = 28 * CHUNK
"""The same in offsets of Java's TubeMQ brokers: positions in an index of 28-byte entries."""

KEYED_MAX: Final = 64
"""The maximum number of messages that a search in a broker's index returns."""

SCAN_MAX: Final = 100_000
"""The default limit of the number of messages that a search reads."""

ABSENT_CODES: Final = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND, ResponseCode.NO_MESSAGE}
)
"""The codes with which brokers answer requests for a message that they do not have."""


class Search(msgspec.Struct, frozen=True):
    """The result of a search.

    Args:
        messages: the messages, sorted by partition and offset; by time of storing if found by key.
        complete: whether all messages were examined; otherwise the limit was reached, or there is a
            `problem`.
        scanned: the number of messages that were read; 0 if the broker searched.
        problem: which broker was not searched, and why; "" if all were.
    """

    messages: tuple[Message, ...]
    complete: bool
    scanned: int
    problem: str = ""


def found_of(message: ReceivedMessage, namespace: str = "") -> Message:
    """Convert a received message of either protocol."""
    rocket = message if isinstance(message, StoredMessage) else None
    return Message(
        topic=names.without_namespace(namespace, message.topic),
        broker=message.broker,
        partition=message.partition,
        offset=message.offset,
        id=message.id,
        unique_id=rocket.unique_id if rocket else "",
        tag=message.tag,
        keys=message.keys,
        time=message.time,
        born_ms=rocket.born_ms if rocket else None,
        stored_ms=rocket.stored_ms if rocket else None,
        attempt=rocket.attempt if rocket else None,
        flag=rocket.flag if rocket else None,
        body=message.body,
        properties=message.properties,
        stored_properties=rocket.stored_properties if rocket else None,
    )


# -- single messages


async def by_id(
    cluster: Cluster,
    message_id: str,
    *,
    topic: str | None = None,
    limit: int = SCAN_MAX,
    show: Callable[[int], object] = lambda _: None,
) -> Message | None:
    """Return a message by its id; None if no broker has it.

    Args:
        cluster: the cluster.
        message_id: over RocketMQ an offset message id (`id` of receipts) or the unique id that its
            sender generated; over TubeMQ the id that the broker generated.
        topic: its topic. Brokers cannot find unique ids and TubeMQ's ids without it.
        limit: over TubeMQ, about how many messages to read, the newest of each partition first.
        show: called with the number of messages that were read.

    Raises:
        UsageError: this search needs the topic.
        RefusedError: the topic does not exist, or the limit was reached.
        UnavailableError: a server does not answer, or a broker cannot be read and the others do not
            have the message.
    """
    if isinstance(cluster, TubeCluster):
        if topic is None:
            raise UsageError(
                "TubeMQ finds messages by reading their topic.",
                hint="Name the topic; on the command line, with --topic.",
            )
        found = await _by_tube_id(cluster, topic, message_id, limit, show)
        if found is None and (problem := await _unread(cluster, topic)):
            raise UnavailableError(f"{problem} It may have the message.", topic=topic)
        return found
    message = await by_offset_id(cluster, message_id)
    if message is None and topic is not None:
        full = names.with_namespace(cluster.namespace, topic)
        message = await cluster.admin.messages.by_unique_id(full, message_id)
    elif message is None:
        raise RefusedError(
            f"No broker has a message with the offset id {message_id}.",
            hint="If it is the unique id of a message, name the topic as well; on the command "
            "line, with --topic.",
        )
    return None if message is None else found_of(message, cluster.namespace)


async def by_offset_id(cluster: RocketCluster, message_id: str) -> StoredMessage | None:
    """The message with an offset message id; None if none of the brokers has it.

    Unique ids have the same form. So only brokers of the cluster are asked: the address in a unique
    id is not that of a broker.
    """
    try:
        parts = decode_offset_id(message_id)
    except UsageError:
        return None
    brokers = await cluster.admin.brokers.list(runtime=False)
    broker = next((one for one in brokers if one.address == parts.server), None)
    if broker is None:
        return None
    try:
        message = await cluster.admin.messages.get(message_id)
    except RefusedError as error:
        if error.code in ABSENT_CODES:
            return None
        raise
    if message.id.upper() != message_id.upper():
        return None
    return msgspec.structs.replace(message, broker=broker.name)


async def at(
    cluster: Cluster, topic: str, partition: int, offset: int, *, broker: str | None = None
) -> Message | None:
    """Return the message at an offset; None if it was deleted or does not exist yet.

    Args:
        cluster: the cluster.
        topic: the topic.
        partition: the partition or queue.
        offset: the offset; with Java's TubeMQ brokers a position in the index.
        broker: the broker; may be None if only one has this partition.

    Raises:
        UsageError: there is no such partition, or several brokers have it.
        RefusedError: the topic does not exist.
        UnavailableError: a server does not answer, or a broker that may be meant cannot be read.
    """
    ends = await _offsets(cluster, topic)
    places = {place_of(one): one for one in ends}
    chosen = [
        one for (on, number), one in places.items() if number == partition and broker in {None, on}
    ]
    if (broker is None or not chosen) and (problem := await _unread(cluster, topic, broker)):
        hint = "" if broker else "Name the broker if it is another one."
        raise UnavailableError(problem, topic=topic, partition=partition, hint=hint)
    if len(chosen) != 1:
        known = ", ".join(sorted({on for on, _ in places}))
        fault = "Several brokers have" if chosen else "There is no"
        raise UsageError(
            f"{fault} partition {partition}.", topic=topic, hint=f"The brokers are: {known}."
        )
    low, high = ends[chosen[0]]
    if not low <= offset < high:
        return None
    async for message in _range(cluster, chosen[0], offset, high):
        exact = message.offset is None or message.offset == offset
        return found_of(message, _namespace(cluster)) if exact else None
    return None


async def _by_tube_id(
    cluster: TubeCluster, topic: str, message_id: str, limit: int, show: Callable[[int], object]
) -> Message | None:
    read = 0
    left = await _offsets(cluster, topic)
    chunk = min(TUBE_CHUNK, max(TUBE_CHUNK // CHUNK * limit // max(len(left), 1), 1))
    while left := {one: ends for one, ends in left.items() if ends[0] < ends[1]}:
        if read >= limit:
            raise RefusedError(
                f"The message {message_id} is not among the {read:,} newest ones; older ones were "
                "not read.",
                hint="Search by time: `coherer messages search TOPIC --from TIME`.",
                topic=topic,
            )
        for partition, (low, high) in left.items():
            begin = max(high - chunk, low)
            async for message in _range(cluster, partition, begin, high):
                read += 1
                if message.id == message_id:
                    return found_of(message)
            show(read)
            left[partition] = low, begin
    return None


# -- several messages


async def by_key(
    cluster: Cluster,
    topic: str,
    key: str,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    limit: int = 64,
) -> Search:
    """Return messages with a key, from the index of RocketMQ's brokers.

    Args:
        cluster: the cluster.
        topic: the topic.
        key: one of the keys.
        begin: only messages stored at this time or later.
        end: only messages stored before this time.
        limit: the maximum number per broker; brokers return at most 64.

    Raises:
        UsageError: it is a TubeMQ cluster.
        RefusedError: the topic does not exist.
        UnavailableError: a broker does not answer, and the others have no such message.
    """
    if isinstance(cluster, TubeCluster):
        raise UsageError(
            "TubeMQ has no index of keys.",
            hint="If the node also serves RocketMQ, search over its rocketmq:// URL, also for "
            "messages that came over TubeMQ. Otherwise search by tag or by time.",
        )
    full = names.with_namespace(cluster.namespace, topic)
    last = end
    if end is not None and end.year > MINYEAR:  # brokers include the last time
        last = end - datetime.resolution
    wanted = partial(cluster.admin.messages.find, full, key, begin=begin, end=last, limit=limit)
    problem = ""
    try:
        found = await wanted(every_broker=True)
    except UnavailableError as error:
        found, problem = await wanted(), str(error)
    messages = tuple(found_of(one, cluster.namespace) for one in found)
    return Search(messages, not problem and len(messages) < min(limit, KEYED_MAX), 0, problem)


async def search(
    cluster: Cluster,
    topic: str,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
    broker: str | None = None,
    partition: int | None = None,
    begin_offset: int | None = None,
    matches: Callable[[Message], bool] = lambda _: True,
    limit: int = 64,
    scan_max: int = SCAN_MAX,
    show: Callable[[int], object] = lambda _: None,
) -> Search:
    """Search for messages of a topic by reading it.

    Over TubeMQ a broker that the master knows to be down is left out; see `Search.problem`.

    Args:
        cluster: the cluster.
        topic: the topic.
        begin: only messages stored at this time or later. Java's TubeMQ brokers do not record when
            they stored a message; there the message time counts.
        end: only messages stored before this time.
        broker: only messages of this broker.
        partition: only messages of this partition.
        begin_offset: only messages from this offset on.
        matches: returns whether a message is wanted.
        limit: the maximum number of messages to find.
        scan_max: the maximum number of messages to read.
        show: called with the number of messages that were read.

    Raises:
        RefusedError: the topic does not exist.
        UnavailableError: a server does not answer.
        UsageError: a Java TubeMQ broker cannot search by time, because the messages have none.
    """
    ends = await _offsets(cluster, topic)
    since = {} if begin is None else await _offsets_since(cluster, topic, begin)
    before = {} if end is None else await _offsets_since(cluster, topic, end)
    found: list[Message] = []
    read = 0
    for place, (low, high) in ends.items():
        on, number = place_of(place)
        if broker not in {None, on} or partition not in {None, number}:
            continue
        first = max(low, since.get(place, low), begin_offset or 0)
        async for message in _range(cluster, place, first, min(high, before.get(place, high))):
            if len(found) == limit or read == scan_max:
                return Search(tuple(found), complete=False, scanned=read)
            read += 1
            one = found_of(message, _namespace(cluster))
            if matches(one):
                found.append(one)
            if not read % CHUNK:
                show(read)
    problem = await _unread(cluster, topic, broker)
    return Search(tuple(found), complete=not problem, scanned=read, problem=problem)


async def _unread(cluster: Cluster, topic: str, broker: str | None = None) -> str:
    """Which brokers TubeMQ's `offsets` leaves out, in words; "" without any.

    Args:
        broker: only this one counts.
    """
    if not isinstance(cluster, TubeCluster):
        return ""
    away = [str(one.id) for one in await cluster.client.unreadable_brokers(topic)]
    names = ", ".join(one for one in away if broker in {None, one})
    return f"Broker {names} is down, or does not accept consumers." if names else ""


def _namespace(cluster: Cluster) -> str:
    return cluster.namespace if isinstance(cluster, RocketCluster) else ""


async def _offsets(cluster: Cluster, topic: str) -> dict[AnyPartition, tuple[int, int]]:
    found = await cluster.client.offsets(topic)
    return dict(found.items())


async def _offsets_since(cluster: Cluster, topic: str, time: datetime) -> dict[AnyPartition, int]:
    found = await cluster.client.offsets_since(topic, time)
    return dict(found.items())


async def _range(
    cluster: Cluster, partition: AnyPartition, begin: int, end: int
) -> AsyncGenerator[ReceivedMessage]:
    """The messages of a partition with offsets from `begin` to before `end`."""
    if begin >= end:
        return
    if isinstance(cluster, RocketCluster) and isinstance(partition, Queue):
        async with cluster.client.reader(partition, begin, end=end) as reader:
            while (batch := await reader.read()) is not None:
                for message in batch:
                    yield message
    elif isinstance(cluster, TubeCluster) and isinstance(partition, Partition):
        async with cluster.client.reader(partition, begin, end=end) as tube_reader:
            while (tube_batch := await tube_reader.read()) is not None:
                for one in tube_batch:
                    yield one
