"""Remembers which queues are being rebuilt, until a checkpoint covers them.

A start finds out that a queue is damaged by its files: they differ from the inventory of the last
close, or one is missing. To rebuild the queue it cuts the files first, and reads the log, which can
take minutes. If it ends before that is done, the next start cannot see the damage: the inventory
counts only after a close, and a queue that was cut looks like one that is shorter. So what is to be
rebuilt is written down in `config/repairs.json`.

Invariants:

* The file is written before the first change, and also before the file `abort` exists: without that
  one the next start compares the inventory again. On a full disk it may be missing.
* It is removed after a checkpoint that covers everything that was rebuilt, and before topics can be
  deleted: their queues must not be rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from coherer._common.decoding import decoder
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import ConsumeQueue, QueueDirectory
from coherer.errors import DamagedStoreError, StoreFullError, UsageError

FILE: Final = "repairs.json"

_UNFINISHED: Final = "a start did not finish its repair"

Damaged = dict[ConsumeQueue, tuple[int, str]]
"""Damaged queues: the first wrong entry, and the reason."""


class Unfinished(msgspec.Struct, frozen=True):
    """The content of the file.

    Args:
        queues: the first entry to be rebuilt, by `topic/number`.
        index: whether the key index is to be rebuilt.
        everything: whether all queues are.
    """

    queues: dict[str, int] = {}
    index: bool = False
    everything: bool = False


def load(data: bytes) -> Unfinished:
    """Read the content of the file.

    Raises:
        msgspec.DecodeError: it is invalid.

    >>> load(b'{"queues":{"flights/0":20}}').queues
    {'flights/0': 20}
    """
    return decoder(Unfinished).decode(data)


def damaged_by(unfinished: Unfinished, queues: QueueDirectory, found: Damaged) -> Damaged:
    """Add the queues that the last start has not rebuilt to those that this one has found."""
    damaged = dict(found)
    for name, begin in unfinished.queues.items():
        topic, _, number = name.rpartition("/")
        with suppress(UsageError, ValueError):
            queue = queues.get(topic, int(number))
            first, reason = damaged.get(queue, (begin, _UNFINISHED))
            damaged[queue] = min(first, begin), reason
    return damaged


class Repairs:
    """Writes the file, and removes it.

    Attributes:
        unfinished: what is to be rebuilt.
    """

    def __init__(self, config: ConfigFiles) -> None:
        self._config = config
        self.unfinished = Unfinished()

    def load(self) -> Unfinished:
        """Read what the last start has left: everything if the file is invalid.

        Raises:
            StoreError: the disk failed.
        """
        try:
            self.unfinished = self._config.read(FILE, load) or self.unfinished
        except DamagedStoreError:
            self.unfinished = Unfinished(index=True, everything=True)
        return self.unfinished

    def begin(
        self,
        damaged: Mapping[ConsumeQueue, tuple[int, str]],
        *,
        index: bool = False,
        everything: bool = False,
    ) -> None:
        """Write down what is to be rebuilt.

        Raises:
            StoreError: the disk failed.
        """
        known = self.unfinished
        queues = dict(known.queues)
        for queue, (first, _) in damaged.items():
            name = f"{queue.topic}/{queue.queue_id}"
            queues[name] = min(first, queues.get(name, first))
        wanted = replace(
            known,
            queues=queues,
            index=index or known.index,
            everything=everything or known.everything,
        )
        if wanted != known:
            self.unfinished = wanted
            with suppress(StoreFullError):
                self._config.save(FILE, msgspec.json.encode(wanted))

    def end(self) -> None:
        """Note that a checkpoint covers everything that was rebuilt.

        Raises:
            StoreError: the disk failed.
        """
        if self.unfinished != Unfinished():
            self._config.remove(FILE)
            self.unfinished = Unfinished()
