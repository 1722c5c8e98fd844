"""Message ids: offset ids and unique ids (docs/protocol/rocketmq.md, sections 5.6 and 5.8).

An *offset id* is the address of the store and the log offset of the record, in upper-case hex. A
*unique id* is created by the client before it sends: address, process, time since the start of the
month, and a counter.
"""

from __future__ import annotations

import itertools
import struct
import time
from datetime import datetime
from ipaddress import ip_address
from itertools import islice
from typing import NamedTuple

from coherer._common import machine
from coherer._common.moments import moment
from coherer.errors import UsageError

_PLACE = struct.Struct(">iq")
_UNIQUE = struct.Struct(">HIIH")
_CLAMP_MS = -1_000_000
_ZONES_MS = 14 * 3_600_000


class OffsetId(NamedTuple):
    """The parts of an offset id: address (4 or 16 bytes), port, and offset in the log."""

    address: bytes
    port: int
    physical_offset: int

    @property
    def server(self) -> str:
        """The address of the broker.

        >>> OffsetId(bytes([10, 0, 0, 9]), 10911, 0).server, OffsetId(bytes(16), 10911, 0).server
        ('10.0.0.9:10911', '[::]:10911')
        """
        host = ip_address(self.address)
        return f"{host}:{self.port}" if host.version == 4 else f"[{host}]:{self.port}"


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Encode the id of a record of a store host (address and port, 8 or 20 bytes).

    >>> encode_offset_id(bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), 4096)
    '0A00000100002A9F0000000000001000'
    """
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    r"""Decode an offset id.

    Raises:
        UsageError: it is not an offset id.

    >>> decode_offset_id("7F000001000051AF0000000000000F46")
    OffsetId(address=b'\x7f\x00\x00\x01', port=20911, physical_offset=3910)
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in (32, 56) or len(data) * 2 != len(text):
        raise UsageError(f"{text!r} is not an offset id: it must have 32 or 56 hex digits.")
    port, offset = _PLACE.unpack(data[-12:])
    return OffsetId(data[:-12], port, offset)


def unique_id(address: bytes, process: int, loader: int, month_ms: int, counter: int) -> str:
    """Encode a unique id.

    >>> unique_id(bytes([10, 0, 0, 9]), 4242, 0x12345678, 1257600123, 5)
    '0A0000091092123456784AF5747B0005'
    """
    if _CLAMP_MS <= month_ms < 0:
        month_ms = 0
    # From the 25th day of a month on, the time needs all 32 bits. Java writes the same bits as a
    # negative int, and its tools read them without a sign.
    month_ms &= 0xFFFFFFFF
    tail = _UNIQUE.pack(process & 0xFFFF, loader & 0xFFFFFFFF, month_ms, counter & 0xFFFF)
    return (address + tail).hex().upper()


def derived_id(seed: bytes, time_ms: int) -> str:
    """A unique id that depends only on its arguments, and looks like that of a client.

    Java's tools read the time in an id, in their own time zone, to search the index from there on.
    So that every program derives the same id, it counts from the beginning of the month in UTC,
    and is early enough for every time zone.

    Args:
        seed: identifies the message: at least 12 bytes that are spread evenly, such as a digest.
        time_ms: since 1970, before the message was stored.

    >>> derived_id(b"0123456789ab", 1_700_000_000_000)
    '3031323334353637383944B655006162'
    """
    month = moment(time_ms).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since_ms = max(time_ms - int(month.timestamp() * 1000) - _ZONES_MS, 0)
    process, loader, counter = (
        int.from_bytes(seed[at:end]) for at, end in ((4, 6), (6, 10), (10, 12))
    )
    return unique_id(seed[:4], process, loader, since_ms, counter)


class UniqueIdGenerator:
    """Generates the unique ids of one client.

    Args:
        address: the client's IP address, 4 or 16 bytes.
        loader: Java's hash of a class loader; any number that differs between clients of a process.

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
        self._ahead_ms = 0  # how far the clock has been set back
        self._head = ""  # everything before the counter, for the current millisecond

    # Threads may share this without a lock: no two of them get the same count, and a head that is
    # a moment late is still valid.

    def next(self) -> str:
        """Return a new id."""
        now_ms = machine.wall_ns() // 1_000_000
        head = self._head if now_ms == self._now_ms else self._head_at(now_ms)
        return f"{head}{next(self._counter) & 0xFFFF:04X}"

    def take(self, count: int) -> list[str]:
        """Return `count` new ids, at most 65,536."""
        now_ms = machine.wall_ns() // 1_000_000
        head = self._head if now_ms == self._now_ms else self._head_at(now_ms)
        return [f"{head}{n & 0xFFFF:04X}" for n in islice(self._counter, count)]

    def _head_at(self, now_ms: int) -> str:
        if now_ms < self._now_ms:  # continue from the last time, so that no id repeats
            self._ahead_ms += self._now_ms - now_ms + 1
        time_ms = now_ms + self._ahead_ms
        if time_ms >= self._month_ends_ms:
            self._month_ms, self._month_ends_ms = _month_around(time_ms)
        since_ms = time_ms - self._month_ms
        head = unique_id(self._address, machine.process_id(), self._loader, since_ms, 0)[:-4]
        self._head = head
        self._now_ms = now_ms
        return head


def _month_around(now_ms: int) -> tuple[int, int]:
    here = time.localtime(now_ms / 1000)
    begin_ms = _begin_of_month(here.tm_year, here.tm_mon)
    if now_ms < begin_ms:  # the first hour of this month happens twice; it begins with the second
        return _begin_of_month(here.tm_year, here.tm_mon - 1), begin_ms
    return begin_ms, _begin_of_month(here.tm_year, here.tm_mon + 1)


def _begin_of_month(year: int, month: int) -> int:
    first = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)  # noqa: DTZ001 - local
    # If clocks are set at that time, Java's tools count from the later of the two possible times.
    return int(max(first.replace(fold=fold).timestamp() for fold in (0, 1))) * 1000
