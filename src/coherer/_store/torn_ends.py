r"""Finds the ends of transactions that a power cut has torn.

A transaction is committed in one write: its messages, and then the mark that its half message is
done. Nearly all transactions have one message. The mark of a half batch says how many messages
belong to it (`MESSAGES`).

A torn write can have left any part of that. If it has left a message, the transaction is committed,
and what is missing is stored again (`coherer._server.rocketmq.broker.transactions`). So a mark does
not count if messages before it are missing: there is another one once they are stored.
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
    """

    def __init__(self) -> None:
        self.unmarked: deque[int] = deque(maxlen=_FOUND_MAX)
        self.void: deque[int] = deque(maxlen=_FOUND_MAX)
        self.is_open = False
        self._first = self._count = 0  # of the committed messages before this record

    def add(self, record: RecordSummary) -> None:
        """Note a record. Those that neither are committed nor follow one may be left out."""
        if record.sys_flag & ROLLED_BACK == COMMITTED:
            if not self.is_open:
                self._first, self._count, self.is_open = record.physical_offset, 0, True
            self._count += 1
            return
        if self.is_open and record.topic == _OP_TOPIC:
            expected = number_in(value_of(record.properties, MESSAGES))
            if self._count < (1 if expected is None else expected):
                self.void.append(record.physical_offset)
            elif self._count == (expected or 1):
                self.is_open = False
        self.interrupt()

    def interrupt(self) -> None:
        """Note damage, or the end of the log."""
        if self.is_open:
            self.unmarked.append(self._first)
        self.is_open = False
