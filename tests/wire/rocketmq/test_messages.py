"""Messages as RocketMQ carries them, and the examples of docs/protocol/rocketmq.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record import compression, properties
from coherer._record.batches import decode_batch, encode_batch_item, split_by_size
from coherer._wire.rocketmq.messages import (
    SendReceipt,
    StoredMessage,
    encode_message,
    time_of,
    user_properties,
)
from coherer.errors import ProtocolError, UsageError
from coherer.message import Message, ReceivedMessage

at = partial(datetime, tzinfo=None)
NOON = datetime(2024, 1, 2, 12, 0, tzinfo=UTC)

words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1).filter(
    str.strip
)


def test_example_13_9_of_properties() -> None:
    made = encode_message(
        Message("TopicTest", b"x", tag="TagA", keys=("k1", "k2")), system={"DELAY": "3"}
    )
    assert made.properties.encode().hex() == (
        "544147530154616741024b455953016b31206b320244454c41590133"
    )


def test_the_unique_id_is_the_first_property() -> None:
    made = encode_message(Message("a", b"x", tag="T"), unique_id="0A")
    assert properties.decode(made.properties.encode()) == {"UNIQ_KEY": "0A", "TAGS": "T"}


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (at(2013, 1, 1, 5, 15), "201301010515"),
        (at(2013, 1, 1, 5, 15, 7), "20130101051507000"),
        (at(2013, 1, 1, 5, 15, 7, 123_999), "20130101051507123"),
        (at(2013, 1, 1, 5, 15, 0, 999), "201301010515"),
        (datetime(2013, 1, 1, 5, 15, tzinfo=timezone(timedelta(hours=-5))), "201301011015"),
    ],
)
def test_times(time: datetime, written: str) -> None:
    made = encode_message(Message("a", b"x", time=time))
    assert made.properties == f"$msgTime$\x01{written}"
    read = time_of({"$msgTime$": written}, 0)
    utc = time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    assert read == utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def test_a_message_without_a_time_has_its_born_time() -> None:
    assert time_of({}, 1_650_000_000_123) == datetime(2022, 4, 15, 5, 20, 0, 123_000, UTC)
    assert time_of({"$msgTime$": "soon"}, 0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("born_ms", [2**63 - 1, -(2**63)])
def test_an_invalid_born_time_is_1970(born_ms: int) -> None:
    assert time_of({}, born_ms) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message("a", b""), id="no body"),
        pytest.param(Message("a", b"x", tag=" "), id="blank tag"),
        pytest.param(Message("a", b"x", tag="a\x02b"), id="separator in the tag"),
        pytest.param(Message("a", b"x", keys=("a b",)), id="space in a key"),
        pytest.param(Message("a", b"x", keys=("",)), id="blank key"),
        pytest.param(Message("a", b"x", properties={"TAGS": "x"}), id="reserved"),
        pytest.param(Message("a", b"x", properties={"TUBE": "x"}), id="our mark"),
        pytest.param(Message("a", b"x", properties={"$msgTime$": "x"}), id="the time"),
        pytest.param(Message("a", b"x", properties={"": "x"}), id="no name"),
        pytest.param(Message("a", b"x", properties={"k": " "}), id="blank value"),
        pytest.param(Message("a", b"x", properties={"k\x01": "v"}), id="separator in a name"),
        pytest.param(Message("a", b"x", properties={"k": "v\x02w"}), id="separator in a value"),
        pytest.param(Message("a", b"x", properties={"k": "\ud800"}), id="half a character"),
        pytest.param(Message("a", b"x", properties={"k": "v" * 32766}), id="too long"),
        pytest.param(Message("a", b"x", properties={"k": "ä" * 16383}), id="too many bytes"),
    ],
)
def test_invalid_messages_are_refused(message: Message) -> None:
    with pytest.raises(UsageError):
        encode_message(message)


def test_properties_may_fill_the_record() -> None:
    made = encode_message(Message("a", b"x", properties={"k": "v" * 32765}))
    assert len(made.properties.encode()) == 32767


@given(
    st.none() | words,
    st.lists(words.filter(lambda word: " " not in word), max_size=3).map(tuple),
    st.dictionaries(words.filter(lambda word: word not in properties.RESERVED), words, max_size=4),
)
def test_decoding_properties_reverses_encoding(
    tag: str | None, keys: tuple[str, ...], others: dict[str, str]
) -> None:
    made = encode_message(Message("a", b"x", tag, NOON, keys, others), unique_id="0A")
    stored = properties.decode(made.properties.encode())
    assert stored.get("TAGS") == tag
    assert stored.get("KEYS") == (" ".join(keys) or None)
    assert user_properties(stored) == others


@pytest.mark.parametrize(("size", "flag"), [(4095, 0), (4096, 1)])
def test_compression_begins_where_javas_does(size: int, flag: int) -> None:
    body = b"a" * size
    made = encode_message(Message("a", body))
    assert made.sys_flag == flag
    assert (compression.decompress(made.body, limit_bytes=size) if flag else made.body) == body


def test_compression_can_be_disabled() -> None:
    assert encode_message(Message("a", bytes(9999)), compress_from_bytes=0).sys_flag == 0


def test_an_invalid_time_remains_a_property() -> None:
    assert user_properties({"$msgTime$": "soon", "TAGS": "x"}) == {"$msgTime$": "soon"}


def test_kinds() -> None:
    assert issubclass(StoredMessage, ReceivedMessage)
    receipt = SendReceipt("0A", "a", "broker-a", 0, 7, 0)
    assert (receipt.status, receipt.offset) == ("SEND_OK", 7)


BATCH = bytes.fromhex(
    """
    0000002b 00000000 00000000 00000000 00000002 62310013 54414753 01546167
    41025741 49540174 72756500 00002100 00000000 00000000 00000000 00000262
    32000957 41495401 74727565
    """
)
"""Example 13.14."""


def test_example_13_14_of_a_batch() -> None:
    items = [(b"b1", b"TAGS\x01TagA\x02WAIT\x01true"), (b"b2", b"WAIT\x01true")]
    assert b"".join(encode_batch_item(*item) for item in items) == BATCH
    found = decode_batch(BATCH)
    assert list(zip(found.bodies, found.properties, strict=True)) == items


@given(st.lists(st.tuples(st.binary(), st.binary(max_size=50), st.integers(-(2**31), 2**31 - 1))))
def test_decoding_a_batch_reverses_encoding(items: list[tuple[bytes, bytes, int]]) -> None:
    data = b"".join(encode_batch_item(*item) for item in items)
    found = decode_batch(data)
    assert list(zip(found.bodies, found.properties, found.flags, strict=True)) == items


@given(
    st.integers(0, 3).flatmap(
        lambda size: st.lists(
            st.tuples(st.binary(min_size=size, max_size=size), st.integers(-(2**31), 2**31 - 1)),
            min_size=2,
        )
    ),
    st.data(),
)
def test_equal_lengths_decode_as_different_ones_do(
    items: list[tuple[bytes, int]], draw: st.DataObject
) -> None:
    data = bytearray(b"".join(encode_batch_item(body, b"k\x01v", flag) for body, flag in items))
    assert decode_batch(bytes(data)).bodies == [body for body, _ in items]
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    odd = encode_batch_item(b"another length", b"")
    try:
        found = decode_batch(memoryview(data))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode_batch(bytes(data + odd))
        return
    assert [column[:-1] for column in decode_batch(bytes(data + odd))] == list(found)


@given(st.integers(0, len(BATCH)), st.binary(max_size=4), st.integers(0, len(BATCH)))
def test_invalid_batches_raise_protocol_errors(at: int, junk: bytes, end: int) -> None:
    data = bytearray(BATCH)
    data[at : at + len(junk)] = junk
    try:
        found = decode_batch(bytes(data[:end]))
    except ProtocolError:
        return
    assert sum(map(len, found.bodies + found.properties)) <= end


@given(st.lists(st.integers(1, 100)), st.integers(1, 150))
def test_split_by_size_fills_batches_up_to_the_limit(sizes: list[int], limit: int) -> None:
    cuts = split_by_size(sizes, limit)
    parts = [sizes[cut] for cut in cuts]
    assert [size for part in parts for size in part] == sizes
    for part, after in zip(parts, [*parts[1:], []], strict=False):
        assert sum(part) <= limit or len(part) == 1
        assert not after or sum(part) + after[0] > limit
