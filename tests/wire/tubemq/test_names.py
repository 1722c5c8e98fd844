"""The texts of docs/protocol/tubemq.md, section 2.5, and Java's other forms of them."""

from __future__ import annotations

from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq.names import (
    STORE_STRIDE,
    BrokerDefaults,
    BrokerInfo,
    FailureInfo,
    Partition,
    PartSub,
    SubscribeInfo,
    TopicCondition,
    TopicInfo,
    TopicMeta,
    TopicSettings,
    parse_number,
    parse_required_partitions,
    parse_rows,
    required_partitions,
)
from coherer.errors import ProtocolError

ids = st.integers(0, 2**31 - 1)
words = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="_-"))
words = words.filter(bool)
hosts = st.one_of(words, st.sampled_from(["10.0.0.1", "broker.example", "fe80::1"]))
brokers = st.builds(BrokerInfo, ids, hosts, st.integers(1, 65535))
partitions = st.builds(Partition, brokers, words, ids)
counts = st.integers(0, 10_000)


class Name(Protocol):
    def text(self) -> str: ...

    @classmethod
    def parse(cls, text: str) -> Name: ...


NAMES = [
    brokers,
    partitions,
    st.builds(SubscribeInfo, words, words, partitions),
    st.builds(FailureInfo, st.sampled_from([411, 412]), partitions),
    st.builds(
        TopicInfo,
        words,
        st.dictionaries(ids, st.tuples(counts, counts)),
        st.none() | st.integers(1, 2**31),
    ),
    st.builds(TopicMeta, words, st.dictionaries(ids, st.tuples(counts, counts, st.booleans()))),
    st.builds(PartSub, words, st.lists(st.tuples(ids, ids)).map(tuple)),
    st.builds(TopicCondition, words, st.lists(words).map(tuple)),
    st.builds(
        BrokerDefaults,
        partitions=counts,
        accept_publish=st.booleans(),
        accept_subscribe=st.booleans(),
        stores=counts,
        cache_megabytes=counts,
    ),
    st.builds(
        TopicSettings,
        topic=words,
        partitions=st.none() | counts,
        accept_publish=st.none() | st.booleans(),
        accept_subscribe=st.none() | st.booleans(),
        delete_policy=st.none() | st.just("delete,12h"),
        status=st.integers(0, 3),
        max_message_bytes=st.none() | counts,
    ),
]
KINDS = [
    BrokerInfo,
    Partition,
    SubscribeInfo,
    FailureInfo,
    TopicInfo,
    TopicMeta,
    PartSub,
    TopicCondition,
    BrokerDefaults,
    TopicSettings,
]


@given(st.one_of(NAMES))
def test_parsing_reverses_text(name: Name) -> None:
    assert type(name).parse(name.text()) == name


@given(st.sampled_from(KINDS), st.text() | st.text("#:,@=0123456789- t\n"))
def test_any_text_is_a_name_or_a_protocol_error(kind: type[Name], text: str) -> None:
    try:
        name = kind.parse(text)
    except ProtocolError:
        return
    assert kind.parse(name.text()) == name


@given(st.text() | st.text(":,=0123456789 t"))
def test_any_text_is_required_partitions_or_a_protocol_error(text: str) -> None:
    try:
        offsets = parse_required_partitions(text)
    except ProtocolError:
        return
    assert parse_required_partitions(required_partitions(offsets)) == offsets


@given(brokers)
def test_brokers_over_tls(broker: BrokerInfo) -> None:
    assert BrokerInfo.parse(broker.text(tls=True), tls=True) == broker


def test_a_blank_port_is_the_default_port() -> None:
    assert BrokerInfo.parse("1:10.0.0.1: ") == BrokerInfo(1, "10.0.0.1", 8123)
    assert BrokerInfo.parse("1:10.0.0.1: ", tls=True).port == 8124
    assert BrokerInfo.parse("1:10.0.0.1:").port == 8123
    assert BrokerInfo.parse("1:10.0.0.1").port == 8123
    assert BrokerInfo(1, "h", 8123).text() == "1:h: "
    assert BrokerInfo(1, "h", 8123).text(tls=True) == "1:h:8123"
    assert BrokerInfo(1, "h", 8123).full_text() == "1:h:8123"
    assert BrokerInfo(1, "h", 8123).address == "h:8123"


def test_partitions() -> None:
    partition = Partition.parse("1:h:8123#demo:10001")
    assert (partition.key, partition.store) == ("1:demo:10001", 1)
    assert partition.id % STORE_STRIDE == 1
    assert sorted([partition, Partition(BrokerInfo(0, "z", 1), "a", 5)])[1] == partition


def test_topic_infos() -> None:
    assert TopicInfo.parse("demo#1:3:2#") == TopicInfo("demo", {1: (3, 2)})
    assert TopicInfo.parse("demo#1:3:2") == TopicInfo("demo", {1: (3, 2)})
    assert TopicInfo.parse("demo#1:3:2# ").max_bytes is None
    assert TopicInfo.parse("demo#1:3:2#1048576").max_bytes == 1 << 20
    assert TopicInfo.parse("demo##") == TopicInfo("demo", {})
    assert TopicInfo("demo", {1: (3, 2)}).text() == "demo#1:3:2#"


def test_topic_metas_have_stores_first() -> None:
    meta = TopicMeta.parse("demo#1:2:3:1,2:1:3:0")
    assert meta.brokers == {1: (2, 3, True), 2: (1, 3, False)}
    assert meta.text() == "demo#1:2:3:1,2:1:3:0"


def test_topic_conditions_without_blanks() -> None:
    assert TopicCondition.parse("demo# a ,,b").filters == ("a", "b")


@pytest.mark.parametrize("text", ["x", "1:demo=1", "1:demo:x=1", "1:demo:0", "1: :0=1", "1:t:0="])
def test_invalid_required_partitions_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_required_partitions(text)


def test_blank_required_partitions_are_empty() -> None:
    assert parse_required_partitions(" ") == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BrokerInfo, ""),
        (BrokerInfo, "x:h:1"),
        (BrokerInfo, "1: :1"),
        (BrokerInfo, "1:h:port"),
        (Partition, "1:h:1"),
        (Partition, "1:h:1#demo"),
        (Partition, "1:h:1#:1"),
        (SubscribeInfo, "c#1:h:1#t:1"),
        (SubscribeInfo, "@g#1:h:1#t:1"),
        (FailureInfo, "x:1:h:1#t:1"),
        (TopicInfo, "demo"),
        (TopicInfo, "#1:1:1"),
        (TopicInfo, "demo#1:1"),
        (TopicInfo, "demo#1:1:1#x"),
        (TopicMeta, "demo"),
        (TopicMeta, "demo#1:1:1"),
        (PartSub, "demo#1"),
        (TopicCondition, "demo"),
        (BrokerDefaults, "1:true"),
        (BrokerDefaults, "x:true:true:1000:10000: :delete,168h:1:0:3:10:20000"),
        (BrokerDefaults, "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000:1"),
        (TopicSettings, "demo:3"),
        (TopicSettings, "demo:x: : : : : : :2:0: : : : : "),
        (TopicSettings, " :3: : : : : : :2:0: : : : : "),
    ],
)
def test_invalid_texts_are_refused(kind: type[Name], text: str) -> None:
    with pytest.raises(ProtocolError):
        kind.parse(text)


def test_the_texts_of_example_a15() -> None:
    defaults = BrokerDefaults()
    assert defaults.text() == "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000"
    assert BrokerDefaults.parse(defaults.text()) == defaults
    topic = TopicSettings.parse("demo:3: : : : : : :2:0: : : : : ")
    assert topic == TopicSettings(topic="demo", partitions=3, stores=2)
    assert TopicSettings.parse("demo:3: : : : : : :2:0: : : : ") == topic  # an old master's


def test_very_long_numbers_are_refused() -> None:
    with pytest.raises(ProtocolError):
        parse_number("9" * 100_000, "parse_number", "")


def test_invalid_numbers_are_refused() -> None:
    for text in ("", "-", "1_0", "\u0663", "0x1", "1.0", "--1"):
        with pytest.raises(ProtocolError):
            parse_number(text, "parse_number", text)
    assert (parse_number(" -2 ", "parse_number", ""), parse_number("+3", "parse_number", "")) == (
        -2,
        3,
    )


def test_rows() -> None:
    assert parse_rows("", 2, "list", "") == []
    assert parse_rows("1:2, ,3:4,", 2, "list", "") == [(1, 2), (3, 4)]
