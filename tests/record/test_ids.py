from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.ids import (
    UniqueIdGenerator,
    decode_offset_id,
    derived_id,
    encode_offset_id,
    unique_id,
)
from coherer.errors import UsageError


def test_offset_ids_of_the_worked_examples() -> None:
    host = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
    assert encode_offset_id(host, 4096) == "0A00000100002A9F0000000000001000"
    address = bytes.fromhex("20010db8000000000000000000000001")
    text = "20010DB800000000000000000000000100002A9F0000000000001000"
    assert encode_offset_id(address + host[4:], 4096) == text
    assert decode_offset_id(text) == (address, 10911, 4096)
    assert decode_offset_id("7F000001000051AF0000000000000F46") == (b"\x7f\0\0\1", 20911, 3910)


@given(
    st.sampled_from([8, 20]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
    st.integers(0, 1 << 62),
)
def test_offset_ids_round_trip(host: bytes, offset: int) -> None:
    address, port, found = decode_offset_id(encode_offset_id(host, offset))
    assert address + port.to_bytes(4, "big", signed=True) == host
    assert found == offset


@pytest.mark.parametrize("text", ["", "zz", "0A" * 15, "0A" * 17, "xy" * 16, "0A 0B" * 8])
def test_invalid_offset_ids_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        decode_offset_id(text)


def test_unique_id_of_the_worked_example() -> None:
    parts = (bytes([10, 0, 0, 9]), 4242, 0x12345678, 1257600123)
    assert unique_id(*parts, 5) == "0A0000091092123456784AF5747B0005"
    assert unique_id(*parts, 5 + 65536) == unique_id(*parts, 5)
    assert unique_id(parts[0], 4242, 1, -5, 0) == unique_id(parts[0], 4242, 1, 0, 0)
    assert len(unique_id(bytes(16), 1, 2, 3, 4)) == 56


def test_unique_ids_differ_and_contain_the_time() -> None:
    ids = UniqueIdGenerator(bytes([127, 0, 0, 1]), loader=7)
    made = [ids.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    now = time.localtime()
    begin = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    since_ms = int(made[-1][20:28], 16)
    assert abs(begin + since_ms / 1000 - time.time()) < 3600


@pytest.mark.parametrize("day", range(1, 32))
def test_ids_can_be_made_on_every_day_of_a_month(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    """2 ** 31 ms are less than 25 days."""
    now = datetime(2026, 12, day, 23, 59, 59, tzinfo=UTC)
    monkeypatch.setattr("coherer._common.machine.wall_ns", lambda: int(now.timestamp()) * 10**9)
    made = UniqueIdGenerator(bytes([127, 0, 0, 1])).next()
    here = now.astimezone()
    begin = here.replace(day=1, hour=0, minute=0, second=0)
    assert int(made[20:28], 16) == (here - begin).total_seconds() * 1000
    derived = derived_id(bytes(16), int(now.timestamp()) * 1000)
    assert int(derived[20:28], 16) == max((day * 24 - 14) * 3_600_000 - 1000, 0)


def test_unique_ids_differ_after_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter wraps after 65,536 ids, so times must not repeat."""
    told_ms = 1_700_000_000_000
    monkeypatch.setattr("coherer._common.machine.wall_ns", lambda: told_ms * 1_000_000)
    ids = UniqueIdGenerator(bytes([127, 0, 0, 1]), loader=7)
    made = ids.take(65_536)
    told_ms -= 3_600_000
    made += ids.take(65_535)
    told_ms += 1
    made += ids.take(65_535)
    told_ms += 3_600_000
    made += ids.take(65_535)
    assert len(set(made)) == 65_536 + 3 * 65_535


def test_a_time_that_no_calendar_has_makes_an_id_too() -> None:
    assert derived_id(bytes(12), 1 << 62) == derived_id(bytes(12), 1 << 62)
