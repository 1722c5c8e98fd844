"""All consume queues of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from coherer._record.system_topics import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from coherer._store.disk import Handles
from coherer._store.files import Files
from coherer._store.queue import ENTRY_BYTES, ConsumeQueue
from coherer._store.waiting import Waiting
from coherer.errors import UsageError

Queues = dict[tuple[str, int], ConsumeQueue]


class QueueDirectory:
    """Finds and makes consume queues.

    Args:
        files: where they are.
        directory: the directory of the topics.
        open_files: tells how many of their files may be held open now.
        file_bytes: size of their files, unless there are files already.
        delays_ms: the delay of each queue of the schedule topic.

    Attributes:
        queues: those that were found or made, by topic and number.
        waiting: their entries that are not in files yet.
        handles: their open files.
        notes: what was found beside queues.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        open_files: Callable[[], int],
        file_bytes: int,
        delays_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        self._files = files
        self._directory = directory
        self.handles = Handles(files, open_files)
        self.waiting = Waiting()
        self._file_bytes = file_bytes
        self._delays_ms = delays_ms
        self.queues: Queues = {}
        self.notes: list[str] = []

    @property
    def file_bytes(self) -> int:
        """The size of the files of queues."""
        return self._file_bytes

    def load(
        self,
        file_bytes: int | None = None,
        loaded: Callable[[ConsumeQueue], None] = lambda _: None,
    ) -> None:
        """Find the queues that are there.

        Args:
            file_bytes: the size of their files, where that is known; else the files tell.
            loaded: called with each of them.
        """
        found: list[tuple[str, int]] = []
        for topic in self._files.names(self._directory):
            for name in self._files.names(self._directory / topic):
                try:
                    self.get(topic, int(name) if name.isdecimal() else -1)
                except UsageError:
                    self.notes.append(f"{topic}/{name} is not a queue")
                    continue
                found.append((topic, int(name)))
        if file_bytes is None:
            sizes = [queue.existing_size() for queue in self.queues.values()]
            file_bytes = max([size for size in sizes if size % ENTRY_BYTES == 0], default=0)
        self._file_bytes = file_bytes or self._file_bytes
        self.queues.clear()
        for topic, number in found:
            queue = self.get(topic, number)
            queue.load()
            loaded(queue)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Give a queue, made if it is missing.

        Raises:
            UsageError: the topic or the number cannot be one.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self._files, self.handles, self.waiting, self._directory, topic, queue_id,
                self._file_bytes,
            )  # fmt: skip
            if topic == SCHEDULE_TOPIC and queue_id < len(self._delays_ms):
                queue.delay_ms = self._delays_ms[queue_id]
            self.queues[topic, queue_id] = queue
        return queue

    def numbers(self, topic: str) -> list[int]:
        """Give the numbers of a topic's queues."""
        return sorted([number for name, number in self.queues if name == topic])

    def remove(self, topic: str) -> None:
        """Delete a topic's queues.

        Raises:
            OSError: a file could not be deleted.
        """
        for number in self.numbers(topic):
            self.queues.pop((topic, number)).remove()
        self._files.remove_tree(self._directory / topic)
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Close all files."""
        self.handles.close()
