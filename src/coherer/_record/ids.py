"""Ids of messages: by their place in the log, and by the client that made them.

An *offset id* is the store's address and the record's place in its log, in upper-case hex. A
*unique id* is made by the client before it sends: address, process, time since the month began,
and a counter. (protocol page, 5.6 and 5.8)
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from itertools import islice
from typing import NamedTuple

from coherer.errors import UsageError

_PLACE = struct.Struct(">iq")
_UNIQUE = struct.Struct(">HIiH")
_CLAMP_MS = -1_000_000


class OffsetId(NamedTuple):
    """The parts of an offset id: address (4 or 16 bytes), port, and offset in the log."""

    address: bytes
    port: int
    physical_offset: int


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Make the id of a record from its store's host (address and port, 8 or 20 bytes).

    >>> encode_offset_id(bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), 4096)
    '0A00000100002A9F0000000000001000'
    """
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    r"""Take an offset id apart.

    Raises:
        UsageError: it is not one.

    >>> decode_offset_id("7F000001000051AF0000000000000F46")
    OffsetId(address=b'\x7f\x00\x00\x01', port=20911, physical_offset=3910)
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in (32, 56) or len(data) * 2 != len(text):
        raise UsageError(f"{text!r} is not an offset id: 32 or 56 hex digits are.")
    port, offset = _PLACE.unpack(data[-12:])
    return OffsetId(data[:-12], port, offset)


def unique_id(address: bytes, process: int, loader: int, month_ms: int, counter: int) -> str:
    """Make a client's unique id from its parts.

    >>> unique_id(bytes([10, 0, 0, 9]), 4242, 0x12345678, 1257600123, 5)
    '0A0000091092123456784AF5747B0005'
    """
    if _CLAMP_MS <= month_ms < 0:
        month_ms = 0
    tail = _UNIQUE.pack(process & 0xFFFF, loader & 0xFFFFFFFF, month_ms, counter & 0xFFFF)
    return (address + tail).hex().upper()


class UniqueIdGenerator:
    """Makes the unique ids of one client.

    Args:
        address: the client's IP address, 4 or 16 bytes.
        loader: stands for Java's class loader; any number that tells apart clients of one process.

    >>> ids = UniqueIdGenerator(bytes([10, 0, 0, 9]), loader=1)
    >>> len(ids.next()), ids.next() == ids.next(), len(set(ids.take(100)))
    (32, False, 100)
    """

    def __init__(self, address: bytes, loader: int = 0) -> None:
        self._address = address
        self._loader = loader
        self._counter = itertools.count(1)
        self._month_ms = 0
        self._month_ends_ms = 0
        self._now_ms = -1
        self._ahead_ms = 0  # so far has the clock been set back
        self._head = ""  # everything before the counter, for the present millisecond

    # Threads may share this without a lock: no two of them get the same count, and a head that is
    # late by a moment is as good as another.

    def next(self) -> str:
        """Give an id that this client has not given before."""
        now_ms = time.time_ns() // 1_000_000
        head = self._head if now_ms == self._now_ms else self._head_at(now_ms)
        return f"{head}{next(self._counter) & 0xFFFF:04X}"

    def take(self, count: int) -> list[str]:
        """Give so many ids that this client has not given before, 65,536 at most."""
        now_ms = time.time_ns() // 1_000_000
        head = self._head if now_ms == self._now_ms else self._head_at(now_ms)
        return [f"{head}{n & 0xFFFF:04X}" for n in islice(self._counter, count)]

    def _head_at(self, now_ms: int) -> str:
        if now_ms < self._now_ms:  # go on from there, so that no id is given twice
            self._ahead_ms += self._now_ms - now_ms + 1
        told_ms = now_ms + self._ahead_ms
        if told_ms >= self._month_ends_ms:
            self._month_ms, self._month_ends_ms = _month_around(told_ms)
        since_ms = told_ms - self._month_ms
        head = unique_id(self._address, os.getpid(), self._loader, since_ms, 0)[:-4]
        self._head = head
        self._now_ms = now_ms
        return head


def _month_around(now_ms: int) -> tuple[int, int]:
    here = time.localtime(now_ms / 1000)
    begin = time.mktime((here.tm_year, here.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((here.tm_year, here.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begin * 1000), int(end * 1000)
