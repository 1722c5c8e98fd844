"""Reads the node's own records in system topics, without trusting them.

Clients cannot write into these topics (`coherer._rules.common.origins`), but the log may have been
written by another program: an older version, a Java broker, a master that this node copied, or an
attacker with access to the directory. So every record that is read back is *foreign*. Invariant:
a bad record never stops the part of the node that reads it. The record is skipped, counted by
topic, and reported in one log line a minute.

A power cut can also tear an append in the middle and keep its end. A mark at the end of an append,
which says what was stored before it, is then wrong. So marks between the first torn place that a
start finds and the end of its log do not count, then and later (`newest`,
`coherer._store.power_cuts`).

Parsers get the record and return its meaning, or None if it is invalid. Errors that invalid numbers
and texts cause while parsing have the same meaning as None.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from coherer._common.logs import Log
from coherer._record.layout import Buffer, Record, decode, is_message, store_ms_of
from coherer._store import Draft, Store
from coherer._store.consume_queue import is_valid_queue
from coherer.errors import CohererError, DamagedStoreError, StoreError, UsageError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

_INVALID: Final = (CohererError, ValueError, OverflowError, struct.error)


def deliverable(draft: Draft | None) -> Draft:
    """Return a message that has waited.

    Raises:
        UsageError: its destination is missing or forbidden (`draft` is None).
    """
    if draft is None or not is_valid_queue(draft.topic, draft.queue_id):
        raise UsageError("It has no valid destination.")
    return draft


class Newest(NamedTuple, Generic[T]):
    """The last valid mark of a queue.

    Args:
        mark: its meaning; None if no mark is valid.
        offset: its log offset; 0 without one.
        is_last: False if a later mark is damaged, and not by a power cut. Messages may have been
            deleted because of what it said.
    """

    mark: T | None
    offset: int
    is_last: bool


class ForeignRecords:
    """Parses records of system topics.

    Attributes:
        bad: by topic, how many records were skipped.
    """

    def __init__(self, store: Store) -> None:
        self.bad: Counter[str] = Counter()
        self._cuts = store.recovery.cuts
        self._store = store

    def at(
        self,
        topic: str,
        offset: int,
        parse: Callable[[Record], T | None],
        place: tuple[int, int] | None = None,
    ) -> T | None:
        """Parse the record at a log offset; None if it is bad.

        Args:
            topic: the system topic whose queue names the offset.
            place: the queue and the offset in it of the entry that names it, if they are known.
        """
        view = self._store.record_at(offset)
        if view is None:
            self.pass_over(topic, offset, "It is missing or damaged.")
            return None
        if place is not None and not _is_at(view, topic, place):
            text = "It is another message: the entry of queue {} at offset {} is damaged."
            self.pass_over(topic, offset, text.format(*place))
            return None
        return self._parse(topic, offset, view, parse)

    def stored_ms(self, topic: str, offset: int, place: tuple[int, int]) -> int | None:
        """When the record at a log offset was stored; None if it is not the message of `place`."""
        view = self._store.record_at(offset)
        return None if view is None or not _is_at(view, topic, place) else store_ms_of(view)

    def newest(self, topic: str, queue: int, parse: Callable[[Record], T | None]) -> Newest[T]:
        """Parse the last valid mark of a queue."""
        is_last = True
        first, end = self._store.queue_range(topic, queue)
        for number in range(end - 1, first - 1, -1):
            offset = self._store.place_of(topic, queue, number)
            if offset is not None and self.refers_to_torn(offset):
                continue
            found = None if offset is None else self.at(topic, offset, parse, (queue, number))
            if offset is not None and found is not None:
                return Newest(found, offset, is_last)
            is_last = is_last and offset is None and bool(self._cuts)
        return Newest(None, 0, is_last)

    def refers_to_torn(self, offset: int) -> bool:
        """Whether a record at a log offset may tell of one that a power cut has torn."""
        return any(cut.tears(offset) for cut in self._cuts)

    def follows_torn(self, offset: int) -> bool:
        """Whether a power cut has torn a record that belongs directly before a log offset."""
        cuts = self._cuts
        if any(piece.end == offset for cut in cuts for piece in cut.torn):
            return True
        return any(offset in cut.void for cut in cuts)

    def each(
        self, topic: str, views: Iterable[Buffer], parse: Callable[[Record], T | None]
    ) -> list[T]:
        """Parse records that were read from a queue of a system topic, without the bad ones."""
        found = (self._parse(topic, -1, view, parse) for view in views)
        return [one for one in found if one is not None]

    def pass_over(self, topic: str, offset: int, why: str) -> None:
        """Count and report a bad record; `why` is a sentence."""
        self.bad[topic] += 1
        _log.error(
            "The record of %s at log offset %d is skipped: %s",
            topic,
            offset,
            why[:200],
            about=topic,
            topic=topic,
        )

    def _parse(
        self, topic: str, offset: int, view: Buffer, parse: Callable[[Record], T | None]
    ) -> T | None:
        try:
            record = decode(view, check_crc=False)
        except CohererError as error:
            self.pass_over(topic, offset, str(error))
            return None
        return self.parse(topic, record, parse)

    def parse(self, topic: str, record: Record, parse: Callable[[Record], T | None]) -> T | None:
        """Parse a record; None if it is bad.

        Raises:
            StoreError: the parser could not read another record. That says nothing about this one.
        """
        try:
            found = parse(record)
        except _INVALID as error:
            if isinstance(error, StoreError) and not isinstance(error, DamagedStoreError):
                raise
            self.pass_over(topic, record.physical_offset, str(error) or type(error).__name__)
            return None
        if found is None:
            self.pass_over(topic, record.physical_offset, "Its content is invalid.")
        return found


def _is_at(view: Buffer, topic: str, place: tuple[int, int]) -> bool:
    """Whether a record is the message of a queue at an offset."""
    return is_message(view, 0, len(view), bytes((len(topic),)) + topic.encode(), *place)
