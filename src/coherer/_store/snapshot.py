"""The files of a node's or a Java broker's store, read while the store may be in use.

Nothing is locked, recovered or changed. A snapshot contains the messages that have an entry in a
consume queue. A running node writes the entries a few seconds after the messages, Java's broker at
once. Entries before the end of a queue do not change until retention deletes whole files.

This module finds queues and offsets with the classes of the store; `gathering` reads the records.

`config/identity.json` has the name of the broker. Java's broker has no such file, but at every
start it adds a topic with its name, one queue and the permission to inherit to
`config/topics.json`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.decoding import decoder
from coherer._record.system_topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from coherer._store.commit_log import CommitLog
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import ConsumeQueue, QueueDirectory
from coherer._store.files import ReadOnlyFiles, translate_os_errors
from coherer._store.marks import check_restored
from coherer._store.model import StoreOptions
from coherer._store.reading import offset_at_time
from coherer.errors import UsageError

LOG: Final = "commitlog"
QUEUES: Final = "consumequeue"
_OPTIONS: Final = StoreOptions()

_INHERIT: Final = 1
"""The permission that only templates have: `TBW102`, the cluster, and the broker."""


class _Identity(msgspec.Struct, rename="camel"):
    broker_name: str | None = None


class _Topic(msgspec.Struct, rename="camel"):
    perm: int = 0
    read_queue_nums: int = 0


class _Topics(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, _Topic] = {}


def is_store(directory: Path) -> bool:
    """Whether a directory holds a store."""
    return (directory / LOG).is_dir()


class StoreSnapshot:
    """The queues of a directory as they are now.

    Args:
        directory: the directory of a node, or Java's `storePathRootDir`.

    Raises:
        UsageError: the directory does not hold a store, or a restore into it has not finished.
        DamagedStoreError: the files of the log do not fit together.
        StoreError: it cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        if not is_store(directory):
            raise UsageError(
                f"There is no store in {directory}: it has no directory {LOG}.",
                hint="Name the directory of a node (--directory), or Java's storePathRootDir.",
            )
        check_restored(directory)
        self.directory = directory
        files = ReadOnlyFiles()
        with translate_os_errors(f"read {directory}"):
            self._log = CommitLog(files, directory / LOG, _OPTIONS.segment_bytes)
            if self._log.segments:
                self._log.commit(self._log.segments[-1].end, 0)
            self._queues = QueueDirectory(
                files, directory / QUEUES, _OPTIONS, lambda: _OPTIONS.open_files
            )
            self._queues.load(loaded=self._skip_deleted)
        self._config = ConfigFiles(files, directory / "config")
        found = self._config.read("topics.json", decoder(_Topics).decode)
        self._configured = {} if found is None else found.topic_config_table

    def _skip_deleted(self, queue: ConsumeQueue) -> None:
        begin = self._log.begin
        queue.min = queue.first_where(lambda _, at, size: size <= 0 or at >= begin)

    def broker_name(self) -> str | None:
        """The name of the broker that owns the directory; None if the files do not have it."""
        found = self._config.read("identity.json", decoder(_Identity).decode)
        if found is not None and found.broker_name is not None:
            return found.broker_name
        names = [
            name
            for name, topic in self._configured.items()
            if topic.perm & _INHERIT and topic.read_queue_nums == 1 and not is_system_topic(name)
        ]
        return names[0] if len(names) == 1 else None

    def topics(self) -> list[str]:
        """The topics with queues, except internal ones, retries and dead letters."""
        found = {topic for topic, _ in self._queues.queues}
        return sorted(
            topic
            for topic in found
            if not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists, perhaps without messages."""
        return topic in self._configured or bool(self._queues.numbers(topic))

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """By queue, the first offset whose record exists, and the end offset."""
        configured = self._configured.get(topic, _Topic()).read_queue_nums
        return dict.fromkeys(range(configured), (0, 0)) | {
            number: (queue.min, queue.max)
            for number in self._queues.numbers(topic)
            for queue in [self._queues.queues[topic, number]]
        }

    def offsets_since(self, topic: str, ms: int) -> dict[int, int]:
        """By queue, the offset of the first message stored at a time or later, or the end offset.

        Args:
            ms: the time, ms since 1970.

        Raises:
            StoreError: the files cannot be read.
        """
        with translate_os_errors(f"read {self.directory}"):
            return {
                number: offset_at_time(
                    self._log, self._queues.queues[topic, number], ms, nearest=False
                )
                for number in self._queues.numbers(topic)
            }

    def record_at(self, topic: str, number: int, offset: int) -> tuple[int, int]:
        """The position in the log and the size of an entry's record.

        For an entry without a record, those of the next record; after the last one, the end of the
        log and 0.

        Raises:
            StoreError: the files cannot be read.
        """
        queue = self._queues.queues[topic, number]
        with translate_os_errors(f"read {self.directory}"), suppress(FileNotFoundError):
            # Retention may delete a file meanwhile.
            entry = queue.entry(queue.after_blanks(offset))
            if entry is not None and entry[1] > 0:
                return entry[0], entry[1]
        return self._log.end, 0

    def first_from(self, topic: str, number: int, place: int) -> int:
        """The first entry of a queue whose record begins at `place` in the log or after it.

        Raises:
            StoreError: the files cannot be read.
        """
        queue = self._queues.queues[topic, number]
        with translate_os_errors(f"read {self.directory}"):
            return queue.first_where(lambda _, at, __: at >= place)

    def close(self) -> None:
        """Close the files."""
        self._queues.close()
        self._log.close()
