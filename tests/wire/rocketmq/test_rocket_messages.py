"""Messages as RocketMQ carries them, against the worked examples of the protocol page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record import compression, properties
from coherer._wire.rocketmq.messages import (
    SendReceipt,
    StoredMessage,
    born_time,
    outgoing,
    time_of,
    user_properties,
)
from coherer.errors import UsageError
from coherer.message import Message, ReceivedMessage

at = partial(datetime, tzinfo=None)
NOON = datetime(2024, 1, 2, 12, 0, tzinfo=UTC)

words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1).filter(
    str.strip
)


def test_tag_keys_and_system_properties_as_example_13_9() -> None:
    made = outgoing(
        Message("TopicTest", b"x", tag="TagA", keys=("k1", "k2")), system={"DELAY": "3"}
    )
    assert made.properties.encode().hex() == (
        "544147530154616741024b455953016b31206b320244454c41590133"
    )


def test_the_unique_id_stands_first() -> None:
    made = outgoing(Message("a", b"x", tag="T"), unique_id="0A")
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
    made = outgoing(Message("a", b"x", time=time))
    assert made.properties == f"$msgTime$\x01{written}"
    read = time_of({"$msgTime$": written}, 0)
    utc = time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    assert read == utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def test_without_a_time_it_is_when_the_message_was_born() -> None:
    assert time_of({}, 1_650_000_000_123) == datetime(2022, 4, 15, 5, 20, 0, 123_000, UTC)
    assert time_of({"$msgTime$": "soon"}, 0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("born_ms", [2**63 - 1, -(2**63)])
def test_a_birth_that_is_no_date(born_ms: int) -> None:
    assert born_time(born_ms) == datetime(1970, 1, 1, tzinfo=UTC)


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
def test_what_cannot_be_sent(message: Message) -> None:
    with pytest.raises(UsageError):
        outgoing(message)


def test_properties_may_fill_the_record() -> None:
    made = outgoing(Message("a", b"x", properties={"k": "v" * 32765}))
    assert len(made.properties.encode()) == 32767


@given(
    st.none() | words,
    st.lists(words.filter(lambda word: " " not in word), max_size=3).map(tuple),
    st.dictionaries(words.filter(lambda word: word not in properties.RESERVED), words, max_size=4),
)
def test_there_and_back(tag: str | None, keys: tuple[str, ...], others: dict[str, str]) -> None:
    made = outgoing(Message("a", b"x", tag, NOON, keys, others), unique_id="0A")
    stored = properties.decode(made.properties.encode())
    assert stored.get("TAGS") == tag
    assert stored.get("KEYS") == (" ".join(keys) or None)
    assert user_properties(stored) == others


@pytest.mark.parametrize(("size", "flag"), [(4095, 0), (4096, 1)])
def test_compression_begins_where_javas_does(size: int, flag: int) -> None:
    body = b"a" * size
    made = outgoing(Message("a", body))
    assert made.sys_flag == flag
    assert (compression.decompress(made.body, limit_bytes=size) if flag else made.body) == body


def test_no_compression_when_not_wanted() -> None:
    assert outgoing(Message("a", bytes(9999)), compress_from_bytes=0).sys_flag == 0


def test_a_time_that_is_none_stays_a_property() -> None:
    assert user_properties({"$msgTime$": "soon", "TAGS": "x"}) == {"$msgTime$": "soon"}


def test_kinds() -> None:
    assert issubclass(StoredMessage, ReceivedMessage)
    receipt = SendReceipt("0A", "a", "broker-a", 0, 7, 0)
    assert (receipt.status, receipt.offset) == ("SEND_OK", 7)
