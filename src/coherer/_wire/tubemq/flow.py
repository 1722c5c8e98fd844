"""Flow control rules: how fast consumers may read (docs/protocol/tubemq.md, section 4.9).

The rules are a JSON text from the master; a single blank means no rules. There are three kinds:

* data limits: bytes a minute, for times of the day and sizes of the backlog;
* frequency limits: a pause after a number of consecutive empty reads;
* low fetch: a pause after every read that returned messages.

`FlowRules` parses and evaluates them for a given time. Clients and brokers apply them (section
4.10) in `coherer._client` and `coherer._server`.
"""

from __future__ import annotations

import re
from typing import Final, Self

import msgspec

from coherer._common.decoding import decoder
from coherer.errors import ProtocolError

NO_RULES: Final = " "
"""The text without rules."""

UNLIMITED_BYTES: Final = 2**63 - 1
UNKNOWN_BACKLOG: Final = 2**31 - 1
UNKNOWN_BACKLOG_PAUSE_MS: Final = 20
"""Bytes a minute and pause while the backlog is not known yet (section 4.10, step 2)."""

_ZONE_MINUTES: Final = 8 * 60  # times of the day are in GMT+8, wherever the servers are
_DAY_MINUTES: Final = 24 * 60
_CLOCK: Final = re.compile(r"([01]?\d|2[0-4]):([0-5]?\d)")
_BACKLOG_MIN: Final = 20
_FREQUENCY_MIN_MS: Final = 200
_PAUSE_MAX_MS: Final = 300_000
_DATA, _FREQUENCY, _SSD, _LOW_FETCH = range(4)


class DataLimit(msgspec.Struct, frozen=True):
    """A limit in bytes a minute for times of the day and a size of the backlog.

    Args:
        start: first minute of the day, as hour * 100 + minute, GMT+8.
        end: last minute, in the same form.
        backlog: unread bytes above which the limit applies. The rule calls them megabytes, but
            Java compares the number with bytes; Coherer does the same.
        limit_bytes: bytes a minute.
        pause_ms: pause after these are used up.
    """

    start: int
    end: int
    backlog: int
    limit_bytes: int
    pause_ms: int


class FrequencyLimit(msgspec.Struct, frozen=True):
    """A pause after `empty_reads` consecutive empty reads."""

    empty_reads: int
    pause_ms: int


class LowFetch(msgspec.Struct, frozen=True):
    """Pauses after reads that returned messages.

    Args:
        pause_ms: for consumers without filters.
        filter_pause_ms: for consumers with filters.
        end_pause_ms: for consumers with filters that are close to the end.
    """

    pause_ms: int
    filter_pause_ms: int
    end_pause_ms: int


class _DataItem(msgspec.Struct):
    start: str
    end: str
    dltInM: int  # noqa: N815 - the protocol's names
    limitInM: int  # noqa: N815
    freqInMs: int  # noqa: N815


class _FrequencyItem(msgspec.Struct):
    zeroCnt: int  # noqa: N815
    freqInMs: int  # noqa: N815


class _LowFetchItem(msgspec.Struct):
    normFreqInMs: int  # noqa: N815
    filterFreqInMs: int  # noqa: N815
    minDataFilterFreqInMs: int  # noqa: N815


class _Group(msgspec.Struct):
    type: int
    rule: msgspec.Raw


class FlowRules(msgspec.Struct, frozen=True):
    """A master's flow control rules.

    Args:
        data_limits: sorted by start.
        frequency_limits: sorted by the number of reads, highest first.
        low_fetch: the pauses after reads, if any.

    >>> rules = FlowRules.parse('[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]')
    >>> rules.empty_pause_ms(2), rules.empty_pause_ms(3)
    (None, 300)
    >>> bool(rules), bool(FlowRules.parse(" "))
    (True, False)
    """

    data_limits: tuple[DataLimit, ...] = ()
    frequency_limits: tuple[FrequencyLimit, ...] = ()
    low_fetch: LowFetch | None = None

    def __bool__(self) -> bool:
        return bool(self.data_limits or self.frequency_limits or self.low_fetch)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse rules; a blank text means no rules.

        Raises:
            ProtocolError: the text is not valid, or a value exceeds the limits of section 4.9.
        """
        if not text.strip():
            return cls()
        try:
            groups = decoder(list[_Group]).decode(text.encode())
            data = [item for group in groups for item in _data_limits(group)]
            frequency = [item for group in groups for item in _frequency_limits(group)]
            low = [item for group in groups for item in _low_fetches(group)]
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ProtocolError(f"Invalid flow control rules: {error}.") from error
        return cls(
            tuple(sorted(data, key=lambda item: item.start)),
            tuple(sorted(frequency, key=lambda item: -item.empty_reads)),
            low[-1] if low else None,
        )

    def data_limit(self, backlog_bytes: int, now_ms: int) -> DataLimit | None:
        """Return the data limit in force, or None.

        Args:
            backlog_bytes: unread bytes.
            now_ms: the time, ms since 1970.
        """
        minutes = (now_ms // 60_000 + _ZONE_MINUTES) % _DAY_MINUTES
        now = minutes // 60 * 100 + minutes % 60
        for item in self.data_limits:
            if backlog_bytes > item.backlog and item.start <= now <= item.end:
                return item
        return None

    def empty_pause_ms(self, empty_reads: int) -> int | None:
        """Return the pause after a number of consecutive empty reads; None without such a rule."""
        for item in self.frequency_limits:
            if empty_reads >= item.empty_reads:
                return item.pause_ms
        return None


def _data_limits(group: _Group) -> list[DataLimit]:
    if group.type != _DATA:
        return []
    limits: list[DataLimit] = []
    for item in decoder(list[_DataItem]).decode(group.rule):
        start, end = _time(item.start), _time(item.end)
        _check(start < end, "a time ends before it starts")
        _check(item.dltInM > _BACKLOG_MIN, f"dltInM is not above {_BACKLOG_MIN}")
        _check(item.limitInM >= 0, "limitInM is negative")
        _check(item.freqInMs >= _FREQUENCY_MIN_MS, f"freqInMs is below {_FREQUENCY_MIN_MS}")
        limit = DataLimit(start, end, item.dltInM, item.limitInM << 20, item.freqInMs)
        limits.append(limit)
    return limits


def _frequency_limits(group: _Group) -> list[FrequencyLimit]:
    if group.type != _FREQUENCY:
        return []
    limits: list[FrequencyLimit] = []
    for item in decoder(list[_FrequencyItem]).decode(group.rule):
        _check(item.zeroCnt >= 1, "zeroCnt is below 1")
        _check(item.freqInMs >= 0, "freqInMs is negative")
        limits.append(FrequencyLimit(item.zeroCnt, item.freqInMs))
    return limits


def _low_fetches(group: _Group) -> list[LowFetch]:
    if group.type != _LOW_FETCH:
        return []
    items = decoder(list[_LowFetchItem]).decode(group.rule)
    _check(len(items) == 1, "there is more or less than one item of type 3")
    item = items[0]
    for value in (item.normFreqInMs, item.filterFreqInMs, item.minDataFilterFreqInMs):
        _check(0 <= value <= _PAUSE_MAX_MS, f"a pause is not from 0 to {_PAUSE_MAX_MS}")
    _check(item.minDataFilterFreqInMs >= item.filterFreqInMs, "minDataFilterFreqInMs is too small")
    return [LowFetch(item.normFreqInMs, item.filterFreqInMs, item.minDataFilterFreqInMs)]


def _time(text: str) -> int:
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise msgspec.ValidationError(f"{text[:20]!r} is not a time of day")
    return int(match[1]) * 100 + int(match[2])


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise msgspec.ValidationError(text)
