r"""Finds the ends of transactions that a power cut has torn.

A transaction is committed in one write: its messages, and then the mark that its half message is
done. Nearly all transactions have one message. The mark of a half batch says how many messages
belong to it (`MESSAGES`).

A torn write can have left any part of that, and a slave that becomes the master may have copied a
part. If a message is there, the transaction is committed, and what is missing is stored again
(`coherer._server.rocketmq.broker.transactions`). So a mark does not count if messages before it are
missing: there is another one once they are stored.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from coherer._record.layout import COMMITTED, ROLLED_BACK, RecordSummary
from coherer._record.properties import MESSAGES, number_in, value_of
from coherer._record.system_topics import OP_HALF_TOPIC

_OP_TOPIC: Final = OP_HALF_TOPIC.encode()
_FOUND_MAX: Final = 100_000


class TornEnds:
    """Goes through the records of a log in their order.

    Attributes:
        unmarked: for each torn end, the log offset of a committed message; the newest ones.
        void: the log offsets of marks that do not count, because messages before them are missing.
        is_open: whether the last record was a committed message.
        begin: the log offset of the first record. If it is a committed message, others of its half
            batch may be before it.
        since: earlier starts have found what was torn before this log offset.
    """

    def __init__(self) -> None:
        self.unmarked: deque[int] = deque(maxlen=_FOUND_MAX)
        self.void: deque[int] = deque(maxlen=_FOUND_MAX)
        self.is_open = False
        self.begin = self.since = 0
        self._first = self._count = 0  # of the committed messages before this record

    def add(self, record: RecordSummary) -> None:
        """Note a record. Those that neither are committed nor follow one may be left out."""
        place = record.physical_offset
        if record.sys_flag & ROLLED_BACK == COMMITTED:
            if not self.is_open:
                self._first, self._count, self.is_open = place, 0, True
            self._count += 1
            return
        if self.is_open and record.topic == _OP_TOPIC:
            expected = number_in(value_of(record.properties, MESSAGES)) or 1
            if self._count < expected and self._first != self.begin:
                if place >= self.since:
                    self.void.append(place)
            elif self._count <= expected:
                self.is_open = False
        self.interrupt(place)

    def interrupt(self, place: int) -> None:
        """Note damage or another record at a log offset, or the end of the log."""
        if self.is_open and place >= self.since:
            self.unmarked.append(self._first)
        self.is_open = False
