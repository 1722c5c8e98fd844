"""Replays dead letters: sends each of them again, once.

The guarantee: a dead letter that a replay has sent to a topic is not sent to that topic again, by a
second replay or by one after a crash.

The unique id of the message that a replay sends is computed from the dead letter's offset message
id and the target topic (`replay_id`). Before a dead letter is sent, every broker of the target
topic is asked whether it has a message with that id. So no progress has to be stored, and it does
not matter whether all dead letters or some are replayed, in which order, or from which machine. The
guarantee depends on three conditions:

* The brokers' index of messages is on (`messageIndexEnable`), which a replay checks. The index has
  caught up with the log, for which a replay waits. Masters are asked, because slaves may lag.
* The target topic still holds the message. A replay goes to the broker that has the dead letter, if
  the topic is on it, and to no other one while that is unavailable. As brokers delete the oldest
  files of a log first, the dead letter is deleted before its replay. This does not hold if the
  topic was deleted, or if it is only on other brokers, and one of these is not registered or keeps
  messages for a shorter time.
* Only one replay of a group runs at a time (`ReplayLock`).

A replayed message has the body, tag, keys, flag, time and application's properties of the dead
letter, and the property `cohererReplayOf` with the id of the dead letter. It is a new message: it
goes to all groups of the topic, and is delivered as often as other messages. If it becomes a dead
letter again, that is another dead letter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import Final, Literal

import msgspec

from coherer._administration.access import Cluster, RocketCluster, rocketmq_only
from coherer._administration.dead_letters import (
    EVERYTHING,
    OWN_PROPERTIES,
    DeadLetter,
    DeadLetterQueue,
    Filter,
    check_complete,
    queue,
    scan_queue,
)
from coherer._administration.replay_lock import LOCK_WAIT_S, ReplayLock
from coherer._common import machine
from coherer._record import properties as text
from coherer._record.ids import derived_id
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError
from coherer.rocketmq import Queue

WINDOW: Final = 16
"""The number of dead letters that are handled concurrently."""

INDEX_WAIT_S: Final = 30.0
PAUSE_S: Final = 0.1
_OTHER: Final = "another replay of these; if that failed or was killed, a minute at most"

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


async def replayed(cluster: Cluster, letters: Sequence[DeadLetter]) -> frozenset[str]:
    """Return the ids of the dead letters that a replay has sent to their original topics.

    Args:
        cluster: the cluster.
        letters: the dead letters, for example of a page.

    Raises:
        UsageError: it is a TubeMQ cluster.
        UnavailableError: a broker does not answer.
    """
    rocket = rocketmq_only(cluster, "dead letters")
    found = await asyncio.gather(*(_was_sent(rocket, one, one.topic) for one in letters))
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
    if found is None:
        return ReplayProgress(0)
    check_complete(found)
    if not found.count:
        return ReplayProgress(0)
    places = [Queue(found.topic, part.broker, part.partition) for part in found.parts]
    lock = ReplayLock(rocket, places)
    run = _Replay(rocket, to, ReplayProgress(found.count), show, None if dry_run else lock)
    if dry_run:
        await run.all_of(found, where)
        return run.progress
    async with lock.held(lock_wait_s, lambda: run.count(waiting=_OTHER)):
        run.count(waiting=None)
        await run.all_of(found, where)
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
        lock: ReplayLock | None,
    ) -> None:
        self.progress = progress
        self._cluster = cluster
        self._to = to
        self._show = show
        self._lock = lock
        self._turn = count()
        self._checked: set[tuple[str, str]] = set()
        self._indexed: set[str] = set()
        self._elsewhere: set[tuple[str, str]] = set()

    def count(self, **counts: int | str | None) -> None:
        """Change the progress, and show it."""
        self.progress = msgspec.structs.replace(self.progress, **counts)
        self._show(self.progress)

    async def all_of(self, found: DeadLetterQueue, where: Filter) -> None:
        """Replay the dead letters that match a filter."""
        waiting: list[DeadLetter] = []
        letters = scan_queue(self._cluster, found)
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
        for letter in letters:
            target = self._target(letter)
            if target and (letter.broker, target) not in self._checked:
                await self._check(letter.broker, target)
        outcomes = await _all(self._one(letter) for letter in letters)
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
        if self._lock is not None:
            await self._send(letter, target, self._lock)
        return "sent"

    async def _send(self, letter: DeadLetter, target: str, lock: ReplayLock) -> None:
        full = names.with_namespace(self._cluster.namespace, target)
        queues = await self._queues(letter.broker, full)
        chosen = queues[next(self._turn) % len(queues)]
        properties = {
            name: value
            for name, value in letter.stored_properties.items()
            if name in KEPT or not (name in text.RESERVED or name in OWN_PROPERTIES)
        }
        properties.pop(text.TUBE_MARK, None)
        properties[text.UNIQUE_KEY] = replay_id(letter, full)
        properties[names.REPLAY_OF] = letter.id
        lock.check()
        try:
            await self._cluster.admin.messages.store(
                chosen,
                letter.body,
                properties,
                born_ms=letter.born_ms,
                flag=letter.flag,
                lock=lock.of(chosen.broker),
            )
        except RefusedError:
            raise
        except BaseException:
            lock.unanswered = True
            raise

    async def _queues(self, broker: str, topic: str) -> list[Queue]:
        """The queues of a topic that may get the dead letters of a broker.

        Raises:
            UnavailableError: that broker has the topic, and accepts no messages now; or no broker
                accepts any.
        """
        everywhere = await self._cluster.admin.topics.writable_queues(topic)
        if queues := [one for one in everywhere if one.broker == broker]:
            return queues
        if (broker, topic) not in self._elsewhere:
            if topic in await self._cluster.admin.topics.configs(broker):
                raise UnavailableError(
                    f"Broker {broker} has the topic, and accepts no messages for it now.",
                    topic=topic,
                    hint="Replay its dead letters when it does. If they went to another broker, a "
                    "later replay might not find them there.",
                )
            self._elsewhere.add((broker, topic))
        if not everywhere:
            raise UnavailableError(
                "No broker accepts messages for the topic.",
                topic=topic,
                hint="`coherer topics list` shows whether it is writable.",
            )
        return everywhere

    async def _check(self, broker: str, target: str) -> None:
        """Check that the topic exists, and that its brokers and this one know what was sent.

        Raises:
            RefusedError: it does not exist.
            UnavailableError: the index is off or behind, or a broker does not answer.
        """
        full = names.with_namespace(self._cluster.namespace, target)
        try:
            queues = await self._cluster.admin.topics.writable_queues(full)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                error.hint = "Create it, or send to another topic (`to`; --to)."
            raise
        for name in sorted({broker, *(one.broker for one in queues)} - self._indexed):
            settings = await self._cluster.admin.brokers.config(name)
            if settings.get("messageIndexEnable", "true").lower() == "false":
                raise UnavailableError(
                    f"The index of broker {name} is off, so it is unknown which dead "
                    "letters have been sent. Nothing was sent to this topic.",
                    topic=target,
                    hint="Set messageIndexEnable=true at the broker.",
                )
            await self._wait_index(name, target)
            self._indexed.add(name)
        self._checked.add((broker, target))

    async def _wait_index(self, broker: str, target: str) -> None:
        """Wait until the index of a broker has every message that was stored before.

        Raises:
            UnavailableError: it does not catch up in time, or the broker does not answer.
        """
        deadline_s = machine.ticks_ns() / 1e9 + INDEX_WAIT_S
        wanted: int | None = None
        missing = "did not say how far its index goes"
        while True:
            # Java's broker does not say it in the second after its start.
            if (log := await self._log(broker)) is not None:
                end, indexed = log
                wanted = end if wanted is None else wanted
                if indexed >= wanted:
                    break
                missing = f"has an index that is {wanted - indexed:,} bytes behind its log"
            if machine.ticks_ns() / 1e9 >= deadline_s:
                raise UnavailableError(
                    f"Broker {broker} {missing}, so it is unknown which dead letters have been "
                    "sent.",
                    topic=target,
                    hint="Run the replay again when the broker is less busy. Nothing was sent to "
                    "this topic.",
                )
            self.count(waiting=f"the index of broker {broker}")
            await asyncio.sleep(PAUSE_S)
        self.count(waiting=None)

    async def _log(self, broker: str) -> tuple[int, int] | None:
        """The end of a broker's log, and how far its index goes; None if it does not say so."""
        for state in await self._cluster.admin.brokers.list():
            if state.name == broker and state.role == "master":
                with suppress(KeyError, ValueError):
                    end = int(state.reported["commitLogMaxOffset"])
                    return end, end - int(state.reported["dispatchBehindBytes"])
        return None


async def _was_sent(cluster: RocketCluster, letter: DeadLetter, target: str) -> bool:
    if not target:
        return False
    full = names.with_namespace(cluster.namespace, target)
    try:
        found = await cluster.admin.messages.all_by_unique_id(
            full, replay_id(letter, full), every_broker=True, broker=letter.broker
        )
    except RefusedError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return bool(found)


async def _all(work: Iterable[Coroutine[None, None, Outcome]]) -> list[Outcome | BaseException]:
    """The results or errors of all tasks.

    If the caller is cancelled, they run to their ends first: a send that is under way must not be
    stored after the lock was released.
    """
    tasks = [asyncio.create_task(one) for one in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        raise
    return await asyncio.gather(*tasks, return_exceptions=True)
