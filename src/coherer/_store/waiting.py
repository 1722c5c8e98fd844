"""Entries of consume queues that are in memory and not yet in the queues' files.

A batch of sends may touch a thousand queues with one entry each. Writing each entry at once would
cost a call of the system, and often an open and a close, for 20 bytes. So new entries stay in
memory, in the queue (`ConsumeQueue.take`), where readers see them at once. Another thread writes
them to the files (`PendingEntries.write`), one write per queue, before the checkpoint vouches for them.
A crash loses nothing: recovery makes the entries again from the log.

Rules:

* `guard` is held while entries are added to a queue, while written ones are removed from it, and
  while a batch becomes visible. No file of a queue is touched under it.
* `writing` is held by whoever writes entries, changes files of queues or takes `dirty`. So one
  thread at a time does that, and what it has written is in `dirty` before others look.
* A queue is in `queues` exactly when it has entries in memory that no running `write` has taken.
* About `limits.QUEUE_ENTRIES_WAITING` entries wait at most. Then the writer thread writes them
  itself (`make_room`), or takes no more messages if it cannot.

Locks are taken in this order: `writing`, `HandleCache.guard`, `guard`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from coherer import limits
from coherer._store.files import UnsyncedFiles

if TYPE_CHECKING:
    from coherer._store.consume_queue import ConsumeQueue


class PendingEntries:
    """The queues of a store that have entries in memory.

    Attributes:
        guard: see the rules of the module.
        writing: see there.
        queues: those with entries that nobody writes yet.
        count: how many entries are in memory.
        dirty: what was written to files of queues since it was taken (`take_unsynced`).
    """

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.writing = threading.RLock()
        self.queues: list[ConsumeQueue] = []
        self.count = 0
        self.dirty = UnsyncedFiles()

    @property
    def many(self) -> bool:
        """Whether so many wait that they should be written before the interval is over."""
        return self.count >= limits.QUEUE_ENTRIES_WAITING // 2

    def make_room(self) -> None:
        """Write the entries if too many wait.

        Raises:
            OSError: some could not be written: take no more.
        """
        if self.count >= limits.QUEUE_ENTRIES_WAITING:
            self.write()

    def write(self, mark: Callable[[], None] | None = None) -> None:
        """Write the entries that wait; those of batches that come meanwhile may stay.

        Args:
            mark: called under `guard`: all entries that were added before it are written.

        Raises:
            OSError: some could not be written; they stay in memory for the next time.
        """
        with self.writing:
            with self.guard:
                if mark is not None:
                    mark()
                queues, self.queues = self.queues, []
            written = 0
            try:
                for queue in queues:
                    queue.write()
                    written += 1
            finally:
                if written < len(queues):
                    with self.guard:
                        self.queues = queues[written:] + self.queues

    def take_unsynced(self) -> UnsyncedFiles:
        """Give what must be synced for what was written, and begin a new list."""
        with self.writing:
            dirty, self.dirty = self.dirty, UnsyncedFiles()
        return dirty

    def restore_unsynced(self, dirty: UnsyncedFiles) -> None:
        """Note that a sync of this failed: it is part of the next one."""
        with self.writing:
            self.dirty.merge(dirty)
