from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.properties import decode_time
from coherer._wire.tubemq.payload import (
    TAG_KEY,
    TIME_KEY,
    checksum,
    decode_attributes,
    encode_attributes,
    encode_payload,
    encode_time,
    split_attributes,
    split_payload,
)
from coherer.errors import UsageError

times = st.datetimes().map(lambda time: time.replace(second=0, microsecond=0))
plain = st.text(st.characters(codec="utf-8", exclude_characters=",=$")).filter(
    lambda text: bool(text) and not text.isspace()
)


@given(st.none() | plain, st.none() | times, st.dictionaries(plain, plain))
def test_attributes_come_back(
    tag: str | None, time: datetime | None, properties: dict[str, str]
) -> None:
    text = encode_attributes(tag, time, properties)
    assert decode_attributes(text) == (tag, time, properties)


@given(st.text() | st.text(",=$ab"))
def test_any_attributes_can_be_read(text: str) -> None:
    tag, written, properties = split_attributes(text)
    assert TAG_KEY not in properties
    read_tag, time, others = decode_attributes(text)
    assert read_tag == tag
    if time is None and written is not None:
        assert others == properties | {TIME_KEY: written}
    else:
        assert others == properties


@pytest.mark.parametrize("bad", ["", " ", "a,b", "a=b", "$msgType$", "x$msgTime$"])
def test_what_attributes_cannot_carry(bad: str) -> None:
    for build in (
        lambda: encode_attributes(bad, None, {}),
        lambda: encode_attributes(None, None, {bad: "v"}),
        lambda: encode_attributes(None, None, {"k": bad}),
    ):
        with pytest.raises(UsageError):
            build()


def test_no_attributes_are_no_bit() -> None:
    assert encode_attributes(None, None, {}) == ""
    assert encode_payload(b"x", "") == (b"x", 0)
    assert encode_payload(b"x", None) == (b"x", 0)


def test_attributes_that_are_no_unicode() -> None:
    with pytest.raises(UsageError):
        encode_payload(b"x", "a=\ud800")


def test_times() -> None:
    assert encode_time(datetime.fromisoformat("2024-01-02T03:04:05")) == "202401020304"
    east = timezone(timedelta(hours=8))
    assert encode_time(datetime(2024, 1, 2, 3, 4, tzinfo=east)) == "202401011904"
    assert encode_time(datetime.fromisoformat("0033-01-02")) == "003301020000"


@given(times)
def test_times_come_back(time: datetime) -> None:
    assert decode_time(encode_time(time)) == time


@pytest.mark.parametrize("text", ["", "2024010203", "202413010000", "20240102 304", "٢٠٢٤٠١٠٢٠٣٠٤"])
def test_what_is_no_time(text: str) -> None:
    assert decode_time(text) is None


@given(st.binary(), st.none() | plain)
def test_payloads_come_back(body: bytes, attributes: str | None) -> None:
    data, flag = encode_payload(body, attributes)
    expected = None if attributes is None else attributes.encode()
    assert split_payload(data, flag) == (expected, body)
    assert checksum(data) == crc32(data) % 2**31
    assert checksum(memoryview(data)) == checksum(data)


@pytest.mark.parametrize(
    ("data", "flag", "parts"),
    [
        ("", 0, (None, "")),
        ("", 1, None),
        ("000000", 1, None),
        ("00000000", 1, (None, "")),
        ("0000000061", 1, (None, "61")),
        ("ffffffff61", 1, (None, "61")),  # a negative length is no attribute, as in Java
        ("0000000161", 1, ("61", "")),
        ("0000000261", 1, None),
        ("7fffffff61", 1, None),
        ("0000000161", 2, (None, "0000000161")),
        ("0000000161", 3, ("61", "")),
    ],
)
def test_javas_rules_for_splitting(
    data: str, flag: int, parts: tuple[str | None, str] | None
) -> None:
    if parts is None:
        assert split_payload(bytes.fromhex(data), flag) is None
        return
    attributes, body = parts
    expected = None if attributes is None else bytes.fromhex(attributes)
    assert split_payload(bytes.fromhex(data), flag) == (expected, bytes.fromhex(body))
