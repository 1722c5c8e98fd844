"""What both doors of a node share: one store, one set of topics, groups and positions, one clock.

A door is told what concerns it: messages that arrive by whichever door (`on_arrival`), changes of
topics or rights (`on_change`), topics that are removed (`on_removal`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from coherer._common.logs import Log
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.appending import Appender, Arrived
from coherer._server.core.flusher import Flusher
from coherer._server.core.saving import Saver
from coherer._store import AppendResult, Draft, DraftBatch, Store
from coherer._wire.rocketmq import fastjson

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
GROUP_IDLE_MS = 20 * 24 * 3_600_000


class Core:
    """The parts of a node that know no protocol meet here.

    Args:
        store: where messages are kept; the caller opens and closes it.
        now_ms: a clock that is not set, ms since 1970: for leases, timeouts and "seen since".
        wall_ms: the time of day, which people and messages go by; `now_ms` unless given.
        sync_flush: acknowledge a send after its bytes are on the disk, not when they are written.
        group_idle_ms: positions of a group that did not read for so long are forgotten.

    Attributes:
        topics: the topics and their file.
        groups: the consumer groups that were seen.
        offsets: how far each of them is.
        write_failed: the disk failed, so that nothing can be promised any more.
        flusher: the thread that waits for the disk.
        appender: where sends go.
        files: writes the files of `config/`; who acknowledges a change waits for `files.saved`.
    """

    def __init__(
        self,
        store: Store,
        now_ms: Callable[[], int],
        *,
        wall_ms: Callable[[], int] | None = None,
        sync_flush: bool = False,
        group_idle_ms: int = GROUP_IDLE_MS,
    ) -> None:
        self.store = store
        self.files = Saver(self._write_file)
        self.now_ms = now_ms
        self.wall_ms = wall_ms or now_ms
        self.sync_flush = sync_flush
        self.write_failed = False
        self.topics = self._load(TOPICS_FILE, _read_topics, TopicTable)
        self.groups = self._load(GROUPS_FILE, _read_groups, GroupTable)
        self.offsets = self._load(OFFSETS_FILE, OffsetTable.load, OffsetTable)
        self.topics.watch(self._topics_changed)
        self.groups.watch(self._groups_changed)
        self.flusher = Flusher(store, self._disk_failed)
        self.appender = Appender(store, self.flusher, self._arrived, sync_flush=sync_flush)
        self._group_idle_ms = group_idle_ms
        self.files.has(OFFSETS_FILE, self.offsets.dump())
        self._arrivals: list[Arrived] = []
        self._changes: list[Callable[[], None]] = []
        self._removals: list[Callable[[str], None]] = []
        self._readers: list[Callable[[], Iterable[tuple[str, str]]]] = []
        self._named: set[str] = set()  # groups that may have to be added to the table

    # -- who wants to be told

    def on_arrival(self, told: Arrived) -> None:
        """Have `told` called with every batch that was stored."""
        self._arrivals.append(told)

    def on_change(self, told: Callable[[], None]) -> None:
        """Have `told` called when topics or rights have changed."""
        self._changes.append(told)

    def on_removal(self, told: Callable[[str], None]) -> None:
        """Have `told` called with the name of a topic before its messages are deleted."""
        self._removals.append(told)

    def on_idle_check(self, in_use: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Have `in_use` asked which (topic, group) pairs are being read."""
        self._readers.append(in_use)

    # -- what happens

    def name_group(self, name: str) -> None:
        """Have a group that nobody makes in the table, once it has positions that last.

        TubeMQ's consumers only name theirs. RocketMQ's make them, where that is allowed.
        """
        if name not in self.groups:
            self._named.add(name)

    def changed(self) -> None:
        """Topics or rights are not what they were."""
        for told in self._changes:
            told()

    def append_raw(self, offset: int, data: bytes) -> None:
        """Store a piece of a master's log; who waits for its messages is told.

        Raises:
            UsageError: it does not follow what is here.
            DamagedStoreError: it is no piece of such a log.
            StoreError: the disk failed, or is full; nothing was stored.
        """
        drafts, appended = self.store.append_raw(offset, data)
        if drafts:
            self._arrived(drafts, appended)

    def remove_topic(self, name: str) -> None:
        """Delete a topic's messages and positions; who reads it is told. The table is not touched.

        Raises:
            StoreError: the disk failed.
        """
        for told in self._removals:
            told(name)
        self.store.delete_topic(name)
        self.offsets.remove_topic(name)
        self._mark_positions()  # a new topic of that name does not begin with them
        _log.info("Topic %s is removed", name)

    async def save_positions(self) -> None:
        """Write the positions of all groups: call it every few seconds.

        Raises:
            StoreError: the disk has no room or failed; they are written the next time.
        """
        self._mark_positions()
        await self.files.saved()

    def clean(self) -> None:
        """Delete old messages, forget groups that rest: call it every minute or so.

        Raises:
            StoreError: the disk failed.
        """
        now_ms = self.now_ms()
        in_use = {pair for pairs in self._readers for pair in pairs()}
        self.offsets.forget_idle(now_ms, self._group_idle_ms, in_use)
        # A clock that was set forward must not delete what is young.
        deleted = self.store.delete_expired(min(now_ms, self.wall_ms()))
        if deleted:
            _log.info("%d old files of the log deleted", deleted)

    async def close(self) -> None:
        """Store and answer what was submitted. The doors are closed.

        What is still to be written, the positions of groups too, `save_positions` writes; then
        `files.close` ends that.
        """
        await self.appender.close()
        self.flusher.close()

    # -- inside

    def _arrived(
        self, drafts: Sequence[Draft | DraftBatch], appended: Sequence[AppendResult]
    ) -> None:
        for told in self._arrivals:
            told(drafts, appended)

    def _disk_failed(self) -> None:
        self.write_failed = True
        self.changed()

    def _topics_changed(self) -> None:
        self.files.save(TOPICS_FILE, self.topics.dump)
        self.changed()

    def _groups_changed(self) -> None:
        self.files.save(GROUPS_FILE, self.groups.dump)

    def _write_file(self, name: str, content: bytes) -> None:
        self.store.save_config(name, content)

    def _mark_positions(self) -> None:
        lasting = self.offsets.lasting_groups()
        for name in sorted(self._named & lasting):
            self.groups.add(name, self.now_ms())
        self._named = (self._named - lasting) & self.offsets.groups()
        self.files.save(OFFSETS_FILE, self.offsets.dump)

    def _load(self, name: str, load: Callable[[bytes], T], make: Callable[[], T]) -> T:
        found = self.store.read_config(name, load)
        return make() if found is None else found


def _read_topics(data: bytes) -> TopicTable:
    return TopicTable.load(data, fastjson.load_whole)


def _read_groups(data: bytes) -> GroupTable:
    return GroupTable.load(data, fastjson.load_whole)
