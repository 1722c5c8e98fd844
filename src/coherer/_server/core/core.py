"""The state that both protocols of a node share: one store, topics, groups, offsets and clocks.

The servers of a protocol register callbacks for messages that arrive over either protocol
(`on_arrival`), for changes of topics or permissions (`on_change`), and for deleted topics
(`on_removal`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._record.system_topics import SYSTEM_GROUPS
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import Group, GroupTable
from coherer._server.core.appending import Appender, Arrived, Flusher
from coherer._server.core.counters import Counters
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.core.disk import Disk
from coherer._server.core.foreign import ForeignRecords
from coherer._store import AppendResult, Draft, DraftBatch, Store
from coherer._store.files import needs_space, translate_os_errors
from coherer._store.topic_retention import TopicLimit
from coherer._wire.rocketmq import fastjson
from coherer.errors import StoreError, StoreFullError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
GROUP_IDLE_MS = 20 * 24 * 3_600_000
TO_GO_EVERY_MS = 1_000
"""How often it is looked up which files will be deleted in the next two minutes."""


class Core:
    """The protocol-independent core of a node.

    Args:
        store: the message store; the caller opens and closes it.
        now_ms: a monotonic clock, ms since 1970: for the age of messages.
        wall_ms: the time of day, for timestamps in messages; `now_ms` if not given.
        lease_ms: a monotonic clock for leases, timeouts and "last seen"; `now_ms` if not given.
            Tests move the clock of messages, and their clients keep their leases.
        disk_free_min: clients' sends are refused while less is free on the disk; see `Disk`.
        group_idle_ms: offsets of a group that has not read for this long are deleted.

    Attributes:
        sync_flush: whether messages are acknowledged and shown after fsync instead of after the
            write.
        leaving: the node is about to stop: masters and name servers remove it from producers'
            routes (`leave`).
        draining: sends are refused because the node is about to stop (`drain`).
        send_refused_ms: when a send was last refused for this reason, by the monotonic clock.
        foreign: reads records of system topics, which another program may have written.
        files: writes the files of `config/`; await `files.flush` before a change is acknowledged.
    """

    def __init__(
        self,
        store: Store,
        now_ms: Callable[[], int],
        *,
        wall_ms: Callable[[], int] | None = None,
        lease_ms: Callable[[], int] | None = None,
        disk_free_min: int | None = 0,
        group_idle_ms: int = GROUP_IDLE_MS,
    ) -> None:
        self.store = store
        self.foreign = ForeignRecords(store)
        self.files = DeferredSaver(self._write_file)
        self.now_ms = now_ms
        self.wall_ms = wall_ms or now_ms
        self.lease_ms = lease_ms or now_ms
        self.sync_flush = store.options.flush == "sync"
        self.leaving = self.draining = False
        self.disk = Disk(store.directory, disk_free_min, self.lease_ms)
        self.send_refused_ms = 0
        self.topics = self._load(TOPICS_FILE, _read_topics, TopicTable)
        self.groups = self._load(GROUPS_FILE, _read_groups, GroupTable)
        self.offsets = self._load(OFFSETS_FILE, OffsetTable.load, OffsetTable)
        loaded = self._saved_topics = self._taken_topics = frozenset(self.topics.names())
        store.know_topics(lambda name: name in loaded or self.topics.is_system(name))
        if not (self.sync_flush or store.options.replica):
            store.save_topics_first(self._is_unsaved)
        self.topics.watch(self._topics_changed)
        self.groups.watch(self._groups_changed)
        self.counters = Counters(self.lease_ms(), self.wall_ms)
        self.flusher = Flusher(store, self._disk_failed)
        self.appender = Appender(
            store, self.flusher, self._arrived, self.disk, self.counters.put, self._save_topics
        )
        self._group_idle_ms = group_idle_ms
        self._to_go, self._to_go_end = 0, -1
        self._to_go_timer = IntervalTimer(TO_GO_EVERY_MS, now_ms())
        self._correct_offsets()
        self._arrivals: list[Arrived] = [self.counters.stored]
        self._changes: list[Callable[[], None]] = []
        self._removals: list[Callable[[str], None]] = [self.counters.forget_topic]
        self._offset_removals: list[Callable[[str, Container[str] | None], None]] = []
        self._readers: list[Callable[[], Iterable[tuple[str, str]]]] = []
        self._named: set[str] = set()  # groups to add to the table with their saved offsets

    def corrected(self, name: str, loaded: bytes, content: bytes) -> None:
        """Write a file whose loaded content was corrected, before messages arrive."""
        self.files.mark_saved(name, loaded)
        if content == loaded:
            return
        try:
            # Not later: the old content would look valid, and be wrong, once the queues have grown.
            self.store.save_config(name, content)
        except StoreFullError as error:
            _log.warning("The corrected %s will be written later: %s", name, error, about=name)
        else:
            self.files.mark_saved(name, content)

    # -- callbacks

    def on_arrival(self, callback: Arrived) -> None:
        """Call `callback` with every stored batch."""
        self._arrivals.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when topics or permissions have changed."""
        self._changes.append(callback)

    def on_removal(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the name of a topic before its messages are deleted."""
        self._removals.append(callback)

    def on_offsets_removal(self, callback: Callable[[str, Container[str] | None], None]) -> None:
        """Call `callback` before offsets of a group are removed.

        Its arguments are the group and the topics; None stands for all topics.
        """
        self._offset_removals.append(callback)

    def on_idle_check(self, in_use: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Register a function that returns the (topic, group) pairs that are being read."""
        self._readers.append(in_use)

    # -- operations

    def name_group(self, name: str) -> None:
        """Add a group to the table once its committed offsets are saved."""
        # TubeMQ's consumers only name their group. RocketMQ's create it, where that is allowed.
        if name not in self.groups:
            self._named.add(name)

    def remove_offsets(self, group: str, topics: frozenset[str] | None = None) -> None:
        """Remove a group's offsets of these topics, or of all."""
        for callback in self._offset_removals:
            callback(group, topics)
        self.offsets.remove(group, topics)
        if any(self.offsets.of(group)):
            return
        self.counters.forget_groups({group})
        # A group without offsets is removed as well, unless its settings were changed.
        if group not in SYSTEM_GROUPS and self.groups.get(group) == Group(group_name=group):
            self.groups.remove(group, self.lease_ms())

    def changed(self) -> None:
        """Report that topics or permissions have changed."""
        for callback in self._changes:
            callback()

    def leave(self, *, leaving: bool = True) -> None:
        """Have name servers and masters route producers elsewhere, or no longer.

        Sends are still accepted.
        """
        self.leaving, self.draining = leaving, False
        self.send_refused_ms = 0
        self.topics.touch(self.lease_ms())  # name servers learn the changed permission
        self.changed()

    def drain(self) -> None:
        """Refuse sends over both protocols, after `leave`; consumers continue."""
        self.draining = True
        self.changed()

    def append_raw(self, offset: int, data: bytes, shown: Callable[[], None] | None = None) -> None:
        """Store a piece of a master's log and wake consumers that wait for its messages.

        Args:
            data: whole records and blanks.
            shown: called when readers can see the messages: with sync flush, when they are durable.

        Raises:
            UsageError: it does not start where the local log ends.
            DamagedStoreError: it does not consist of valid records.
            StoreError: the disk failed or is full; nothing was stored.
        """
        if self.disk.refusal is not None:
            raise self.disk.refusal
        drafts, appended = self.store.append_raw(offset, data)
        self.appender.announce(drafts, appended, shown)

    def remove_topic(self, name: str) -> None:
        """Delete a topic's messages and offsets, but not its entry in the table.

        Raises:
            StoreError: the disk failed.
        """
        for callback in self._removals:
            callback(name)
        self.store.delete_topic(name)
        self.offsets.remove_topic(name)
        self._mark_positions()  # a new topic of that name must not start with the old offsets
        _log.info("Topic %s removed", name, topic=name)

    async def save_positions(self) -> None:
        """Write the offsets of all groups; call it every few seconds.

        Raises:
            StoreError: the disk is full or failed; the next call writes them again.
        """
        self._mark_positions()
        await self.files.flush()

    def forget_idle(self) -> None:
        """Delete the offsets of idle groups; call it every minute or so."""
        now_ms = self.lease_ms()
        in_use = {pair for pairs in self._readers for pair in pairs()}
        self.offsets.forget_idle(now_ms, self._group_idle_ms, in_use)
        kept = {(group, topic) for topic, group, _ in self.offsets.items()}
        self.counters.keep_reads(kept)
        self.counters.keep_groups(
            {group.group_name for group in self.groups}
            | {group for group, _ in kept}
            | {group for _, group in in_use}
        )

    async def limit_size(self) -> None:
        """Delete old messages if the log is larger than its limit; call it often.

        Raises:
            StoreError: the disk failed.
        """
        if self.store.exceeds_size_limit:
            if self.store.can_delete(self.retention_ms()):
                with suppress(StoreFullError):  # deleting frees the space
                    await self.flusher.run(self.store.flush_queues)  # so that deleting is fast
            self.delete_expired()

    def clean(self) -> None:
        """Delete the offsets of idle groups, and expired messages.

        Raises:
            StoreError: the disk failed.
        """
        self.forget_idle()
        self.delete_expired()

    def delete_expired(self) -> None:
        """Delete expired messages; call it every minute or so.

        Raises:
            StoreError: the disk failed.
        """
        holds = self.store.holds
        try:
            deleted = self.store.delete_expired(self.retention_ms())
        except StoreFullError as error:  # entries must be written before a file may be deleted
            if not needs_space(error) or not self.disk.release():
                raise
            deleted = self.store.delete_expired(self.retention_ms())
        if deleted:
            _log.info("Deleted %d expired files of the log", deleted)
        if self.outgrows_retention:
            _log.warning(
                "%d bytes of old log files are not deleted, because they hold %s. The log grows "
                "beyond its retention until these are delivered.",
                holds.held_bytes,
                holds.held_by,
                about=holds.held_by,
            )

    @property
    def outgrows_retention(self) -> bool:
        """Whether waiting messages keep several expired log files: carrying does not keep up."""
        return self.store.holds.held_bytes > self.store.segment_bytes

    def retention_ms(self) -> int:
        """The time by which messages expire; setting the clock forward deletes no young ones."""
        return min(self.now_ms(), self.wall_ms())

    @property
    def next_to_go(self) -> int:
        """The log offset before which waiting messages must be stored again."""
        # It changes with the log, and slowly with the time; ten times a second three services ask.
        store = self.store
        if store.end_offset != self._to_go_end or self._to_go_timer.is_due(self.now_ms()):
            self._to_go_end = store.end_offset
            self._to_go = store.next_to_go(self.retention_ms())
        return min(self._to_go, store.durable_offset)

    def hide_expired(self, limits: Mapping[str, TopicLimit]) -> None:
        """Hide messages of topics that have their own limits; call it every few seconds.

        Raises:
            StoreError: the disk failed.
        """
        if limits:
            with translate_os_errors("read the consume queues"):
                self.store.topic_retention.apply(limits, self.retention_ms())

    async def close(self) -> None:
        """Store and answer submitted messages, after the servers of both protocols have closed.

        Afterwards call `save_positions` to write the offsets, then `files.close`.
        """
        await self.appender.close()
        self.flusher.close()

    # -- inside

    def _arrived(
        self, drafts: Sequence[Draft | DraftBatch], appended: Sequence[AppendResult]
    ) -> None:
        for callback in self._arrivals:
            callback(drafts, appended)

    @property
    def write_failed(self) -> bool:
        """Whether the disk has failed; sends are refused until a restart."""
        return self.disk.failed

    @write_failed.setter
    def write_failed(self, failed: bool) -> None:
        self.disk.failed = failed

    async def check_disk(self) -> None:
        """Measure the free space; call it every second."""
        await self.flusher.run(self.disk.check)

    def _disk_failed(self) -> None:
        self.write_failed = True
        self.changed()

    def _topics_changed(self) -> None:
        self._save_topics()
        self.changed()

    def _save_topics(self) -> None:
        self.files.save(TOPICS_FILE, self._take_topics, self._topics_saved)

    def _take_topics(self) -> bytes:
        self._taken_topics = frozenset(self.topics.names())
        return self.topics.dump()

    def _topics_saved(self, error: StoreError | None) -> None:
        if error is None:
            self._saved_topics = self._taken_topics
        self.appender.topics_saved(error)

    def _is_unsaved(self, topic: str) -> bool:
        return (
            topic in self.topics
            and topic not in self._saved_topics
            and not self.topics.is_system(topic)  # these exist without a file
        )

    def _groups_changed(self) -> None:
        self.files.save(GROUPS_FILE, self.groups.dump)

    def _correct_offsets(self) -> None:
        """Move offsets back that are past the end of their queue."""
        # A directory has such offsets if it was copied while a node used it, if an earlier version
        # or a Java broker lost power, or if the deletion of a topic was interrupted.
        loaded = self.offsets.dump()
        moved = self.offsets.correct(lambda topic, queue: self.store.queue_range(topic, queue)[1])
        if moved:
            _log.warning(
                "%d positions of groups were past the end of their queues and were moved there",
                moved,
            )
        self.corrected(OFFSETS_FILE, loaded, self.offsets.dump())

    def _write_file(self, name: str, content: bytes) -> None:
        try:
            self.store.save_config(name, content)
        except StoreFullError as error:
            if not needs_space(error) or not self.disk.release(len(content)):
                raise
            self.store.save_config(name, content)

    def _mark_positions(self) -> None:
        lasting = self.offsets.saved_groups()
        for name in sorted(self._named & lasting):
            self.groups.add(name, self.lease_ms())
        self._named = (self._named - lasting) & self.offsets.groups()
        self.files.save(OFFSETS_FILE, self.offsets.dump)

    def _load(self, name: str, load: Callable[[bytes], T], make: Callable[[], T]) -> T:
        found = self.store.read_config(name, load)
        return make() if found is None else found


def _read_topics(data: bytes) -> TopicTable:
    return TopicTable.load(data, fastjson.loads_unlimited)


def _read_groups(data: bytes) -> GroupTable:
    return GroupTable.load(data, fastjson.loads_unlimited)
