"""Bits that flip on a disk: in the record of a message, or in the entry of its queue.

Those that say in which queue a record is do not flip. Nothing verifies them, so nobody can know
that the newest offset of its own queue is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from coherer._record.layout import RECORD_BYTES_MIN, RecordSummary, examine, spans
from coherer._store.consume_queue import ENTRY_BYTES

ENTRIES: Final = 0.3
"""How often it is the entry."""
_QUEUE_ID: Final = range(12, 16)
_BODY: Final = re.compile(rb"[a-z]+-\d+")


class Bit(NamedTuple):
    """A bit of a file.

    Args:
        path: the file.
        at: the byte.
        mask: the bit of it.
        text: where it is, for a person.
    """

    path: Path
    at: int
    mask: int
    text: str


class Found(NamedTuple):
    """The record of a message in a file.

    Args:
        path: the file.
        begin: where it begins.
        summary: of the record.
        message: its message.
        topic: where it is stored.
        fixed: where in the record the topic is.
    """

    path: Path
    begin: int
    summary: RecordSummary
    message: str
    topic: str
    fixed: range

    def a_bit(self, chance: Random) -> Bit:
        """A bit of the record, or of the entry."""
        bit = 1 << chance.randrange(8)
        if chance.random() < ENTRIES and (entry := self._entry()) is not None:
            at = chance.randrange(ENTRY_BYTES)
            return Bit(entry[0], entry[1] + at, bit, f"byte {at} of the entry at {entry[1]}")
        size = self.summary.size
        at = chance.choice(
            [at for at in range(size) if at not in _QUEUE_ID and at not in self.fixed]
        )
        return Bit(self.path, self.begin + at, bit, f"byte {at} of {size} at {self.begin}")

    def _entry(self) -> tuple[Path, int] | None:
        """The entry of the message: its file, and where it begins."""
        queue = self.path.parents[1] / "consumequeue" / self.topic / str(self.summary.queue_id)
        at = self.summary.queue_offset * ENTRY_BYTES
        for path in sorted(queue.glob("*"), reverse=True):
            if int(path.name) <= at:
                begin = at - int(path.name)
                return (path, begin) if begin + ENTRY_BYTES <= path.stat().st_size else None
        return None


def records(directory: Path, messages: Collection[str]) -> Iterator[Found]:
    """The records of some messages in the log of a broker."""
    for path in sorted(directory.glob("commitlog/*")):
        data = memoryview(path.read_bytes())
        at = 0
        while len(data) - at >= RECORD_BYTES_MIN:
            record = examine(data, at)
            if isinstance(record, str):
                break
            parts = spans(data, at)
            body = _BODY.search(data[parts.body_begin : parts.body_end])
            message = body[0].decode() if body else ""
            if message in messages:
                fixed = range(parts.body_end - at, parts.topic_end - at)
                topic = record.topic.decode(errors="replace")
                yield Found(path, at, record, message, topic, fixed)
            at += record.size
