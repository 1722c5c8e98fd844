"""Dead letters of RocketMQ groups: their queues, pages of them, and single ones.

A broker stores a message that a group has given up on in the topic `%DLQ%<group>`, with one queue
on each broker (docs/protocol/rocketmq.md, section 6.8). TubeMQ has no dead letters.

`replay` sends them again, `export` writes them to files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import msgspec

from coherer._administration.access import Cluster, RocketCluster, rocketmq_only
from coherer._administration.messages import by_offset_id
from coherer._record import properties as text
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.admin import Partition
from coherer.errors import RefusedError, UnavailableError, UsageError
from coherer.rocketmq import Queue, StoredMessage

CHUNK: Final = 64
"""The number of messages of a queue that are read at once."""

PARALLEL: Final = 16
"""The number of groups that are asked for concurrently."""

SCAN_MAX: Final = 20_000
"""The maximum number of dead letters that a page with a filter examines."""

OWN_PROPERTIES: Final = frozenset({names.RETRY_REASON, names.REPLAY_OF})
"""The properties that Coherer adds; `DeadLetter` has fields for them."""


class DeadLetterPart(msgspec.Struct, frozen=True):
    """The dead letters of a group on one broker.

    Args:
        broker: its name.
        partition: the number of the queue, nearly always 0.
        min_offset: the offset of the oldest dead letter.
        max_offset: the offset of the next one.
        oldest_ms: the time of storing the oldest, ms since 1970; None without dead letters.
        newest_ms: the time of storing the newest; None without dead letters.
    """

    broker: str
    partition: int
    min_offset: int
    max_offset: int
    oldest_ms: int | None = None
    newest_ms: int | None = None

    @property
    def count(self) -> int:
        """The number of dead letters."""
        return self.max_offset - self.min_offset


class DeadLetterQueue(msgspec.Struct, frozen=True):
    """The dead letters of a group.

    Args:
        group: the group, without a namespace.
        topic: the topic that holds them.
        parts: one for each broker that has a master.
        left_out: the other brokers, of which only slaves are up. Their dead letters are not counted
            or read.
    """

    group: str
    topic: str
    parts: tuple[DeadLetterPart, ...]
    left_out: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of dead letters."""
        return sum(part.count for part in self.parts)

    @property
    def oldest_ms(self) -> int | None:
        """The time of storing the oldest, ms since 1970; None without dead letters."""
        times = [part.oldest_ms for part in self.parts if part.oldest_ms is not None]
        return min(times, default=None)

    @property
    def newest_ms(self) -> int | None:
        """The time of storing the newest, ms since 1970; None without dead letters."""
        times = [part.newest_ms for part in self.parts if part.newest_ms is not None]
        return max(times, default=None)


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter.

    Args:
        id: its offset message id, which no other stored message has.
        group: the group that has given up on it.
        topic: the topic it was sent to; "" if the broker did not record it.
        tag: the tag.
        keys: the keys.
        attempts: the number of deliveries to the group.
        reason: the reason that the consumer gave (`retry(reason=…)`); None without one.
        born_ms: the time of sending, by the sender's clock, ms since 1970.
        stored_ms: the time at which it became a dead letter, by the broker's clock.
        broker: the broker that has it.
        partition: the number of the queue of the dead-letter topic.
        offset: its offset in that queue.
        body: the payload.
        properties: the application's properties.
        unique_id: the id that its sender generated; "" without one.
        origin_id: the offset message id of the message that it is a copy of; "" if unknown.
        replay_of: the id of the dead letter that it was a replay of; None if it was not a replay.
        flag: the application's flag.
        stored_properties: all properties, as they are stored.
    """

    id: str
    group: str
    topic: str
    tag: str | None
    keys: tuple[str, ...]
    attempts: int
    reason: str | None
    born_ms: int
    stored_ms: int
    broker: str
    partition: int
    offset: int
    body: bytes
    properties: Mapping[str, str]
    unique_id: str
    origin_id: str
    replay_of: str | None
    flag: int
    stored_properties: Mapping[str, str]


class Page(msgspec.Struct, frozen=True):
    """Some dead letters.

    Args:
        letters: the dead letters, in the requested order.
        cursor: the argument for the next page; None at the end.
        scanned: the number of examined dead letters; with a filter, more than the page has.
    """

    letters: tuple[DeadLetter, ...]
    cursor: str | None
    scanned: int


class Filter(msgspec.Struct, frozen=True):
    """A filter of dead letters; a field that is None matches every dead letter.

    Args:
        ids: offset message ids or unique ids.
        topic: the topic they were sent to.
        tag: the tag.
        key: one of the keys.
        since_ms: they became dead letters at this time or later, ms since 1970.
        until_ms: they became dead letters before this time.
        reason: a part of the reason; case does not matter.

    >>> Filter(topic="orders").is_empty, Filter().is_empty
    (False, True)
    """

    ids: frozenset[str] | None = None
    topic: str | None = None
    tag: str | None = None
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    reason: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it matches every dead letter."""
        return self == Filter()

    def matches(self, letter: DeadLetter) -> bool:
        """Whether it matches a dead letter."""
        return (
            (self.ids is None or letter.id in self.ids or letter.unique_id in self.ids)
            and (self.topic is None or letter.topic == self.topic)
            and (self.tag is None or letter.tag == self.tag)
            and (self.key is None or self.key in letter.keys)
            and (self.since_ms is None or letter.stored_ms >= self.since_ms)
            and (self.until_ms is None or letter.stored_ms < self.until_ms)
            and (self.reason is None or self.reason.lower() in (letter.reason or "").lower())
        )


EVERYTHING: Final = Filter()


# -- groups


async def groups(cluster: Cluster) -> list[str]:
    """Return the names of the groups that have or had dead letters, sorted, with one request.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: no name server answers.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    prefix = names.with_namespace(rocket.namespace, names.DLQ_PREFIX + "x")[:-1]
    topics = await rocket.admin.topics.names(system=True)
    return [topic[len(prefix) :] for topic in topics if topic.startswith(prefix)]


async def queues(cluster: Cluster) -> list[DeadLetterQueue]:
    """Return the dead letters of all groups that have or had some, sorted by name.

    This asks for the list of topics, and for the offsets of each dead-letter topic.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a server does not answer.
    """
    limit = asyncio.Semaphore(PARALLEL)

    async def look(group: str) -> DeadLetterQueue | None:
        async with limit:
            return await queue(cluster, group)

    found = await asyncio.gather(*map(look, await groups(cluster)))
    return [one for one in found if one is not None]


async def queue(cluster: Cluster, group: str) -> DeadLetterQueue | None:
    """A group's dead-letter queue, or None if it was never created.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a server does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    topic = topic_of(rocket, group)
    try:
        states = await rocket.admin.topics.partitions(topic)
    except RefusedError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise
    parts = [await _part(rocket, state) for state in states if state.max_offset is not None]
    left_out = sorted({state.broker for state in states if state.max_offset is None})
    return DeadLetterQueue(group, topic, tuple(parts), tuple(left_out))


async def queue_of_existing(cluster: Cluster, group: str) -> DeadLetterQueue | None:
    """The group's dead-letter queue, or None. Raises if the group does not exist.

    Raises:
        UsageError: it is a TubeMQ cluster.
        RefusedError: the group does not exist and has no dead letters.
        UnavailableError: a server does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    found = await queue(rocket, group)
    if found is None:
        name = names.with_namespace(rocket.namespace, group)
        if name not in await rocket.admin.groups.names():
            raise RefusedError(
                f"There is no group {group}.",
                hint="`coherer dead-letters list` shows the groups that have dead letters.",
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
    return found


async def _part(cluster: RocketCluster, state: Partition) -> DeadLetterPart:
    low, high = max(state.min_offset or 0, 0), max(state.max_offset or 0, 0)
    high = max(low, high)
    oldest_ms = await cluster.admin.topics.oldest_ms(state.queue) if high > low else None
    newest_ms = state.newest_ms if high > low else None
    return DeadLetterPart(state.broker, state.partition, low, high, oldest_ms, newest_ms)


def topic_of(cluster: RocketCluster, group: str) -> str:
    """The topic of a group's dead letters, as the servers know it.

    Raises:
        UsageError: the name of the group is invalid.
    """
    names.check_group(group)
    return names.with_namespace(cluster.namespace, names.dlq_topic(group))


def check_complete(found: DeadLetterQueue) -> None:
    """Check that all dead letters of a group can be read.

    Raises:
        UnavailableError: a broker has no master.
    """
    if found.left_out:
        raise UnavailableError(
            f"No master of {', '.join(found.left_out)} is registered, so the dead letters there "
            "cannot be read.",
            topic=found.topic,
            hint="Start it, and run this again. Nothing was done.",
        )


# -- dead letters


async def page(
    cluster: Cluster,
    group: str,
    *,
    newest_first: bool = True,
    limit: int = 50,
    cursor: str | None = None,
    where: Filter = EVERYTHING,
) -> Page:
    """Some dead letters of a group.

    Args:
        cluster: the cluster.
        group: the group.
        newest_first: the order, by the time they became dead letters.
        limit: the maximum number.
        cursor: the `cursor` of the page before; None for the first page.
        where: the filter. A page with a filter examines at most `SCAN_MAX` dead letters, so it may
            have fewer than `limit` although more match.

    Raises:
        UsageError: it is a TubeMQ cluster, or the cursor is invalid.
        UnavailableError: a broker does not answer.
    """
    places = {} if cursor is None else _positions(cursor)
    found: list[DeadLetter] = []
    scanned = 0
    letters = scan(cluster, group, newest_first=newest_first, positions=places)
    try:
        async for letter in letters:
            if len(found) == limit or scanned == SCAN_MAX:
                return Page(tuple(found), _cursor(places), scanned)
            at = letter.offset if newest_first else letter.offset + 1
            places[letter.broker, letter.partition] = at
            scanned += 1
            if where.matches(letter):
                found.append(letter)
    finally:
        await letters.aclose()
    return Page(tuple(found), None, scanned)


Place = tuple[str, int]
"""Broker and queue."""


async def scan(
    cluster: Cluster,
    group: str,
    *,
    newest_first: bool = False,
    positions: Mapping[Place, int] | None = None,
) -> AsyncGenerator[DeadLetter]:
    """Iterate over the dead letters of a group that exist now, in the order they were stored.

    Those of brokers without a master are left out; see `DeadLetterQueue`.

    Args:
        cluster: the cluster.
        group: the group.
        newest_first: the order.
        positions: the offsets at which to continue some queues: of the next dead letter, or with
            `newest_first` the offset after it.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a broker does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    found = await queue(rocket, group)
    if found is None:
        return
    letters = scan_queue(rocket, found, newest_first=newest_first, positions=positions)
    try:
        async for letter in letters:
            yield letter
    finally:
        await letters.aclose()


async def scan_queue(
    cluster: RocketCluster,
    found: DeadLetterQueue,
    *,
    newest_first: bool = False,
    positions: Mapping[Place, int] | None = None,
) -> AsyncGenerator[DeadLetter]:
    """Iterate over the dead letters that a queue had when it was looked up; see `scan`."""
    begun = dict(positions or {})
    sources: list[AsyncGenerator[DeadLetter]] = []
    for part in found.parts:
        low, high = part.min_offset, part.max_offset
        at = begun.get((part.broker, part.partition))
        if at is not None:
            low, high = (low, min(at, high)) if newest_first else (max(at, low), high)
        place = Queue(found.topic, part.broker, part.partition)
        letters = _letters(cluster, found.group, place, low, high, newest_first=newest_first)
        sources.append(letters)
    async for letter in _merged(sources, newest_first=newest_first):
        yield letter


async def _merged(
    sources: Sequence[AsyncGenerator[DeadLetter]], *, newest_first: bool
) -> AsyncGenerator[DeadLetter]:
    """The dead letters of several sources in one order."""
    try:
        firsts = [(await anext(source, None), source) for source in sources]
        heads = [(letter, source) for letter, source in firsts if letter is not None]
        while heads:
            heads.sort(key=lambda head: (head[0].stored_ms, head[0].broker), reverse=newest_first)
            letter, source = heads.pop(0)
            yield letter
            if (following := await anext(source, None)) is not None:
                heads.append((following, source))
    finally:
        for source in sources:
            await source.aclose()


async def _letters(
    cluster: RocketCluster, group: str, place: Queue, low: int, high: int, *, newest_first: bool
) -> AsyncGenerator[DeadLetter]:
    """The dead letters of one queue with offsets from `low` to before `high`."""
    while low < high:
        begin, end = (
            (max(high - CHUNK, low), high) if newest_first else (low, min(low + CHUNK, high))
        )
        letters: list[DeadLetter] = []
        async with cluster.client.reader(place, begin, end=end) as reader:
            while (batch := await reader.read()) is not None:
                letters += [letter_of(cluster, group, message) for message in batch]
        for letter in reversed(letters) if newest_first else letters:
            yield letter
        low, high = (low, begin) if newest_first else (end, high)


async def get(cluster: Cluster, group: str, message_id: str) -> DeadLetter | None:
    """One dead letter of a group; None if the group has no such dead letter.

    Args:
        cluster: the cluster.
        group: the group.
        message_id: the `id` of a dead letter, or the unique id that the sender of the message
            generated. Of several with the same unique id, the newest is returned.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a broker does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    topic = topic_of(rocket, group)
    message = await by_offset_id(rocket, message_id)
    if message is None or message.topic != topic:
        message = await _by_unique_id(rocket, topic, message_id)
    if message is not None:
        return letter_of(rocket, group, message)
    if not _looks_like_offset_id(message_id):
        return None
    # The broker's address may have changed since it stored the message.
    where = Filter(ids=frozenset({message_id.upper()}))
    found = await page(rocket, group, limit=1, where=where)
    while not found.letters and found.cursor is not None:
        found = await page(rocket, group, limit=1, where=where, cursor=found.cursor)
    return next(iter(found.letters), None)


async def checked(cluster: Cluster, group: str, where: Filter) -> Filter:
    """The filter, with its ids as they are stored. A wrong one would match nothing.

    Raises:
        UsageError: it is a TubeMQ cluster.
        RefusedError: the group has no dead letter with one of the ids.
        UnavailableError: a broker does not answer, or has no master.
    """
    if where.ids is None:
        return where
    if (known := await queue(cluster, group)) is not None:
        check_complete(known)
    ids: set[str] = set()
    for one in sorted(where.ids):
        letter = await get(cluster, group, one)
        if letter is None:
            raise RefusedError(
                f"{group} has no dead letter {one}.",
                hint="`coherer dead-letters list` shows their ids. Nothing was done.",
            )
        ids.add(one if one == letter.unique_id else letter.id)
    return msgspec.structs.replace(where, ids=frozenset(ids))


def _looks_like_offset_id(text: str) -> bool:
    try:
        decode_offset_id(text)
    except UsageError:
        return False
    return True


async def _by_unique_id(cluster: RocketCluster, topic: str, unique_id: str) -> StoredMessage | None:
    try:
        found = await cluster.admin.messages.all_by_unique_id(topic, unique_id)
    except RefusedError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise
    return found[-1] if found else None


def letter_of(cluster: RocketCluster, group: str, message: StoredMessage) -> DeadLetter:
    """Convert a message of a dead-letter topic."""
    stored = message.stored_properties
    return DeadLetter(
        id=message.id,
        group=group,
        topic=names.without_namespace(cluster.namespace, stored.get(text.RETRY_TOPIC, "")),
        tag=message.tag,
        keys=message.keys,
        attempts=message.attempt,
        reason=stored.get(names.RETRY_REASON),
        born_ms=message.born_ms,
        stored_ms=message.stored_ms,
        broker=message.broker,
        partition=message.partition,
        offset=message.offset or 0,
        body=message.body,
        properties={
            name: value for name, value in message.properties.items() if name not in OWN_PROPERTIES
        },
        unique_id=message.unique_id,
        origin_id=stored.get("ORIGIN_MESSAGE_ID", ""),
        replay_of=stored.get(names.REPLAY_OF),
        flag=message.flag,
        stored_properties=stored,
    )


# -- deleting


async def purge(cluster: Cluster, group: str) -> int:
    """Delete all dead letters of a group; returns their number.

    The dead-letter topic is deleted on all brokers and name servers, including dead letters that
    arrive meanwhile. The next dead letter creates it again. A later replay does not mistake new
    dead letters for old ones: their ids differ.

    RocketMQ cannot delete single messages.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a server does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    found = await queue(rocket, group)
    if found is None:
        return 0
    await rocket.admin.topics.delete(found.topic)
    return found.count


# -- cursors


def _cursor(positions: Mapping[Place, int]) -> str:
    return msgspec.json.encode([(*place, at) for place, at in positions.items()]).decode()


def _positions(cursor: str) -> dict[Place, int]:
    """The positions in a cursor.

    >>> _positions(_cursor({("a", 0): 7}))
    {('a', 0): 7}
    """
    try:
        rows = msgspec.json.decode(cursor, type=list[tuple[str, int, int]])
    except msgspec.DecodeError as error:
        raise UsageError("The cursor is invalid.", hint="Start without a cursor.") from error
    return {(broker, number): at for broker, number, at in rows}
