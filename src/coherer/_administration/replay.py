"""Replays dead letters: sends each of them again, once.

The guarantee: a dead letter that a replay has sent to a topic is not sent to that topic again, by a
second replay or by one after a crash.

The unique id of the message that a replay sends is computed from the dead letter's offset message
id and the target topic (`replay_id`). Before a dead letter is sent, every broker of the target
topic is asked whether it has a message with that id. So no progress has to be stored, and it does
not matter whether all dead letters or some are replayed, in which order, or from which machine. The
guarantee depends on three conditions:

* The brokers' index of messages is on (`messageIndexEnable`), which a replay checks. The index has
  caught up with the log, for which a replay waits.
* The target topic still holds the message. A replay goes to the broker that has the dead letter, if
  the topic is on it. So both are unavailable at the same times; and as brokers delete the oldest
  files of a log first, the dead letter is deleted before its replay. This does not hold if the
  topic was deleted, or if it is only on other brokers, and one of these is unavailable or keeps
  messages for a shorter time.
* Only one replay of a group runs at a time. Like an orderly consumer, it locks the queues of the
  dead letters at their brokers, for the group `REPLAY_GROUP`. It releases the locks at the end; if
  it is killed, they expire after a minute.

A replayed message has the body, tag, keys, flag, time and application's properties of the dead
letter, and the property `cohererReplayOf` with the id of the dead letter. It is a new message: it
goes to all groups of the topic, and is delivered as often as other messages. If it becomes a dead
letter again, that is another dead letter.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import count
from typing import Final, Literal

import msgspec

from coherer._administration.access import Cluster, RocketCluster, rocketmq_only
from coherer._administration.dead_letters import (
    EVERYTHING,
    OWN_PROPERTIES,
    DeadLetter,
    Filter,
    queue,
    scan,
)
from coherer._record import properties as text
from coherer._record.ids import derived_id
from coherer._record.system_topics import SYSTEM_GROUP_PREFIX
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError
from coherer.rocketmq import Queue

REPLAY_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}COHERER_REPLAY"
"""The group that holds the locks of the dead letters."""

WINDOW: Final = 16
"""The number of dead letters that are handled concurrently."""

LOCK_RENEWAL_S: Final = 15.0
LOCK_WAIT_S: Final = 65.0
"""A little more than the lifetime of a lock."""

INDEX_WAIT_S: Final = 30.0
PAUSE_S: Final = 0.1

KEPT: Final = frozenset({text.TAGS, text.KEYS, text.TIME})
"""The reserved properties that applications set."""


class ReplayProgress(msgspec.Struct, frozen=True):
    """The progress of a replay.

    Args:
        total: the number of dead letters of the group.
        seen: those that were examined.
        sent: those that were sent; with `dry_run`, that would be.
        already: those that an earlier replay had sent.
        without_topic: those that were not sent, because their original topic is unknown.
        waiting: the reason for a pause; None while it works.
    """

    total: int
    seen: int = 0
    sent: int = 0
    already: int = 0
    without_topic: int = 0
    waiting: str | None = None


Outcome = Literal["sent", "already", "without topic"]
"""The result for one dead letter."""

Show = Callable[[ReplayProgress], object]


def replay_id(letter: DeadLetter, target: str) -> str:
    """The unique id of the message that a replay of a dead letter sends to a topic.

    `target` is the topic with its namespace, as the servers know it.
    """
    seed = sha256(f"coherer replay\n{letter.id}\n{target}".encode()).digest()
    return derived_id(seed, letter.stored_ms)


async def replayed(
    cluster: Cluster, letters: Sequence[DeadLetter], *, to: str | None = None
) -> frozenset[str]:
    """Return the ids of the dead letters that a replay has sent.

    Args:
        cluster: the cluster.
        letters: the dead letters, for example of a page.
        to: the topic they were sent to; None for the original topic of each.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a broker does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    found = await asyncio.gather(*(_was_sent(rocket, one, to or one.topic) for one in letters))
    return frozenset(one.id for one, sent in zip(letters, found, strict=True) if sent)


async def replay(
    cluster: Cluster,
    group: str,
    *,
    to: str | None = None,
    where: Filter = EVERYTHING,
    dry_run: bool = False,
    show: Show = lambda _: None,
    lock_wait_s: float = LOCK_WAIT_S,
) -> ReplayProgress:
    """Replay the dead letters of a group; the module describes the guarantee.

    The dead letters that exist at the start are sent, the oldest first, `WINDOW` of them
    concurrently, so that their order may change slightly. They are not deleted; `purge` does that.

    Args:
        cluster: the cluster.
        group: the group.
        to: the topic to send to; None for the original topic of each.
        where: the filter.
        dry_run: send nothing, only count.
        show: called with the progress.
        lock_wait_s: the longest wait for another replay of the group.

    Returns:
        The counts at the end.

    Raises:
        UsageError: it is a TubeMQ cluster, or the target cannot be sent to.
        RefusedError: a target topic does not exist, or a broker refuses a message.
        UnavailableError: a server does not answer, another replay runs, or the index is off. The
            next run does not send again what this one has sent.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    _check_target(to)
    found = await queue(rocket, group)
    if found is None or not found.count:
        return ReplayProgress(0)
    run = _Replay(rocket, to, ReplayProgress(found.count), show, dry_run=dry_run)
    places = [Queue(found.topic, part.broker, part.partition) for part in found.parts]
    async with _locked(rocket, places, run, 0 if dry_run else lock_wait_s, dry_run=dry_run):
        await run.wait_index()
        await run.all_of(group, where)
    return run.progress


def _check_target(to: str | None) -> None:
    if to is None:
        return
    names.check_topic(to)
    if names.is_system_topic(to) or to.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        raise UsageError("Messages cannot be sent to a system topic.", topic=to)


class _Replay:
    """One run of a replay."""

    def __init__(
        self,
        cluster: RocketCluster,
        to: str | None,
        progress: ReplayProgress,
        show: Show,
        *,
        dry_run: bool,
    ) -> None:
        self.progress = progress
        self.lost_lock = False
        self._cluster = cluster
        self._to = to
        self._show = show
        self._dry_run = dry_run
        self._turn = count()
        self._checked: set[str] = set()

    def count(self, **counts: int | str | None) -> None:
        """Change the progress, and show it."""
        self.progress = msgspec.structs.replace(self.progress, **counts)
        self._show(self.progress)

    async def wait_index(self) -> None:
        """Wait until the index has every message that was stored before the start.

        Raises:
            UnavailableError: it does not catch up in time.
        """
        deadline = time.monotonic() + INDEX_WAIT_S
        while True:
            delays = await self._cluster.admin.brokers.index_delay_bytes()
            behind = {broker: size for broker, size in delays.items() if size}
            if not behind:
                self.count(waiting=None)
                return
            broker, size = next(iter(behind.items()))
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"The index of broker {broker} is {size} bytes behind its log, so it is "
                    "unknown which dead letters have been sent.",
                    hint="Run the replay again when the broker is less busy. Nothing was sent.",
                )
            self.count(waiting=f"the index of broker {broker}")
            await asyncio.sleep(PAUSE_S)

    async def all_of(self, group: str, where: Filter) -> None:
        """Replay the dead letters that match a filter."""
        waiting: list[DeadLetter] = []
        letters = scan(self._cluster, group)
        try:
            async for letter in letters:
                if where.matches(letter):
                    waiting.append(letter)
                else:
                    self.count(seen=self.progress.seen + 1)
                if len(waiting) == WINDOW:
                    await self._window(waiting)
                    waiting = []
            await self._window(waiting)
        finally:
            await letters.aclose()

    async def _window(self, letters: Sequence[DeadLetter]) -> None:
        if self.lost_lock:
            raise UnavailableError(
                "The locks of the dead letters have passed to another replay.",
                hint="Is the connection slow? Run the replay again: nothing is sent twice.",
            )
        for target in {self._target(letter) for letter in letters} - self._checked - {""}:
            await self._check_index(target)
        outcomes = await asyncio.gather(*map(self._one, letters), return_exceptions=True)
        kinds = Counter(one for one in outcomes if not isinstance(one, BaseException))
        now = self.progress
        self.count(
            seen=now.seen + kinds.total(),
            sent=now.sent + kinds["sent"],
            already=now.already + kinds["already"],
            without_topic=now.without_topic + kinds["without topic"],
        )
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        if failures:
            if isinstance(failures[0], CohererError):
                failures[0].hint = (
                    f"{failures[0].hint} {self.progress.sent:,} dead letters were sent. Run the "
                    "replay again: nothing is sent twice."
                ).strip()
            raise failures[0]

    def _target(self, letter: DeadLetter) -> str:
        """The topic to send to; "" if it is unknown."""
        return self._to or letter.topic

    async def _one(self, letter: DeadLetter) -> Outcome:
        target = self._target(letter)
        if not target:
            return "without topic"
        if await _was_sent(self._cluster, letter, target):
            return "already"
        if not self._dry_run:
            await self._send(letter, target)
        return "sent"

    async def _send(self, letter: DeadLetter, target: str) -> None:
        full = names.with_namespace(self._cluster.namespace, target)
        everywhere = await self._cluster.admin.topics.writable_queues(full)
        queues = [one for one in everywhere if one.broker == letter.broker] or everywhere
        if not queues:
            raise UnavailableError("No broker accepts messages.", topic=target)
        properties = {
            name: value
            for name, value in letter.stored_properties.items()
            if name in KEPT or not (name in text.RESERVED or name in OWN_PROPERTIES)
        }
        properties.pop(text.TUBE_MARK, None)
        properties[text.UNIQUE_KEY] = replay_id(letter, full)
        properties[names.REPLAY_OF] = letter.id
        await self._cluster.admin.messages.store(
            queues[next(self._turn) % len(queues)],
            letter.body,
            properties,
            born_ms=letter.born_ms,
            flag=letter.flag,
        )

    async def _check_index(self, target: str) -> None:
        """Check that the topic exists, and that its brokers have an index.

        Raises:
            RefusedError: it does not exist.
            UnavailableError: the index is off.
        """
        full = names.with_namespace(self._cluster.namespace, target)
        try:
            queues = await self._cluster.admin.topics.writable_queues(full)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                error.hint = "Create it, or send to another topic (`to`; --to)."
            raise
        for broker in sorted({one.broker for one in queues}):
            settings = await self._cluster.admin.brokers.config(broker)
            if settings.get("messageIndexEnable", "true").lower() == "false":
                raise UnavailableError(
                    f"The index of broker {broker} is off, so it is unknown which dead "
                    "letters have been sent. Nothing was sent to this topic.",
                    topic=target,
                    hint="Set messageIndexEnable=true at the broker.",
                )
        self._checked.add(target)


async def _was_sent(cluster: RocketCluster, letter: DeadLetter, target: str) -> bool:
    if not target:
        return False
    full = names.with_namespace(cluster.namespace, target)
    try:
        found = await cluster.admin.messages.all_by_unique_id(
            full, replay_id(letter, full), every_broker=True
        )
    except RefusedError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return bool(found)


@asynccontextmanager
async def _locked(
    cluster: RocketCluster, places: Sequence[Queue], run: _Replay, wait_s: float, *, dry_run: bool
) -> AsyncGenerator[None]:
    """Hold the locks of the dead letters; a dry run needs none."""
    if dry_run:
        yield
        return
    deadline = time.monotonic() + wait_s
    while not await _lock(cluster, places):
        if time.monotonic() >= deadline:
            raise UnavailableError(
                "Another replay of these dead letters runs, or was killed in the last minute.",
                topic=places[0].topic,
                hint="Run it again later.",
            )
        run.count(waiting="another replay of these; if that was killed, a minute at most")
        await asyncio.sleep(min(PAUSE_S * 10, max(deadline - time.monotonic(), 0)))
    renewing = asyncio.create_task(_renew(cluster, places, run), name="renew locks")
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await cluster.admin.groups.unlock(REPLAY_GROUP, places)


async def _lock(cluster: RocketCluster, places: Sequence[Queue]) -> bool:
    """Acquire or renew all locks or none, so that two replays do not block each other."""
    owned = await cluster.admin.groups.lock(REPLAY_GROUP, places)
    if set(owned) >= set(places):
        return True
    if owned:
        await cluster.admin.groups.unlock(REPLAY_GROUP, owned)
    return False


async def _renew(cluster: RocketCluster, places: Sequence[Queue], run: _Replay) -> None:
    while True:
        await asyncio.sleep(LOCK_RENEWAL_S)
        try:
            run.lost_lock = not await _lock(cluster, places)
        except CohererError:
            continue  # a lock lasts for several renewals
        if run.lost_lock:
            return
