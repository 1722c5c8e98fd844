from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._wire.rocketmq import headers
from coherer._wire.rocketmq.headers import (
    CheckTransactionHeader,
    CreateTopicHeader,
    EndTransactionHeader,
    Header,
    KvHeader,
    PullHeader,
    QueryMessageHeader,
    RegisterBrokerHeader,
    SendHeader,
    SendResult,
    UnregisterClientHeader,
    parse,
    read_send,
)
from coherer.errors import RefusedError

KINDS = [
    kind
    for kind in (getattr(headers, name) for name in headers.__all__)
    if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
]
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=9)
sends = st.builds(
    SendHeader,
    producer_group=texts,
    topic=st.text(min_size=1, max_size=9).filter(str.strip),
    default_topic=texts,
    default_topic_queue_nums=int32,
    queue_id=int32,
    sys_flag=int32,
    born_ms=int64,
    flag=int32,
    properties=st.none() | texts,
    reconsume_times=int32,
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | int32,
    batch=st.booleans(),
)


def full(kind: type[Header], number: str) -> dict[str, str]:
    return {each.encode_name: number for each in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", ["7", "-1", "+7"])
def test_parsing_reverses_fields(kind: type[Header], number: str) -> None:
    header = parse(kind, full(kind, number))
    assert parse(kind, header.fields()) == header
    assert set(header.fields()) == set(full(kind, number))


@settings(max_examples=20)
@pytest.mark.parametrize("kind", KINDS)
@given(value=st.text(alphabet="0123456789.eE+-_ xnulltrue\u0663", max_size=24))
def test_any_value_is_parsed_or_refused(kind: type[Header], value: str) -> None:
    for fields in (full(kind, value), dict.fromkeys(full(kind, ""), value)):
        try:
            header = parse(kind, fields)
        except RefusedError:
            continue
        assert parse(kind, header.fields()) == header


@pytest.mark.parametrize("kind", KINDS)
def test_required_fields_are_required(kind: type[Header]) -> None:
    needed = [
        each.encode_name
        for each in msgspec.structs.fields(kind)
        if each.default is msgspec.NODEFAULT
    ]
    if not needed:
        assert parse(kind, {}) == kind()
        return
    with pytest.raises(RefusedError, match=needed[0]) as refusal:
        parse(kind, {})
    assert refusal.value.code == 1


@given(sends)
def test_sends_with_short_and_long_names(header: SendHeader) -> None:
    for code in (310, 320, 325):
        assert read_send(code, header.fields()) == header
    for code in (10, 324):
        assert read_send(code, header.long_fields()) == header


def test_the_names_of_sends() -> None:
    header = SendHeader("p", "t", "d", 1, 2, 3, 4, 5, "x", 6, True, 7, True)
    assert header.long_fields() == {
        "producerGroup": "p",
        "topic": "t",
        "defaultTopic": "d",
        "defaultTopicQueueNums": "1",
        "queueId": "2",
        "sysFlag": "3",
        "bornTimestamp": "4",
        "flag": "5",
        "properties": "x",
        "reconsumeTimes": "6",
        "unitMode": "true",
        "maxReconsumeTimes": "7",
        "batch": "true",
    }
    assert "".join(header.fields()) == "abcdefghijklm"


@pytest.mark.parametrize("letter", "abcdefgh")
def test_a_send_without_a_required_field_is_refused(letter: str) -> None:
    fields = SendHeader("p", "t", "d", 1, 2, 3, 4, 5).fields()
    del fields[letter]
    with pytest.raises(RefusedError, match=f"the custom field <{letter}> is null") as refusal:
        read_send(310, fields)
    assert refusal.value.code == 1


@pytest.mark.parametrize(("letter", "value"), [("e", "x"), ("f", str(2**31)), ("g", str(2**63))])
def test_a_send_with_an_invalid_number_is_refused(letter: str, value: str) -> None:
    fields = {**SendHeader("p", "t", "d", 1, 2, 3, 4, 5).fields(), letter: value}
    with pytest.raises(RefusedError) as refusal:
        read_send(310, fields)
    assert refusal.value.code == 1


@pytest.mark.parametrize("odd", ["yes", "1", ""])
def test_a_send_of_node_without_k_and_with_an_odd_m(odd: str) -> None:
    fields = SendHeader("p", "t", "d", 1, 2, 3, 4, 5).fields()
    del fields["j"], fields["k"]
    found = read_send(310, {**fields, "m": odd})
    assert (found.batch, found.reconsume_times, found.unit_mode) == (False, 0, False)
    assert found.max_reconsume_times is None
    assert read_send(310, {**fields, "m": "TRUE"}).batch
    assert not read_send(10, {**SendHeader(*"ptd", *[1] * 5).long_fields(), "batch": odd}).batch


@pytest.mark.parametrize("letter", "degjl")
def test_an_invalid_number_is_a_number_format_exception(letter: str) -> None:
    fields = SendHeader("p", "t", "d", 1, 2, 3, 4, 5).fields()
    with pytest.raises(RefusedError, match="NumberFormatException") as refusal:
        read_send(310, {**fields, letter: "x"})
    assert refusal.value.code == 1


@pytest.mark.parametrize("code", [10, 324, 325])
def test_some_sends_without_a_topic_have_a_blank_one(code: int) -> None:
    for fields in ({}, {"queueId": "x", "e": "x", "topic": " ", "b": " "}):
        with pytest.raises(RefusedError, match=r"The specified topic is blank\.") as refusal:
            read_send(code, fields)
        assert refusal.value.code == 1
    header = SendHeader("", "t", "", 1, 2, 3, 4, 5)
    fields = header.fields() if code == 325 else header.long_fields()
    for name in ("a", "c", "producerGroup", "defaultTopic"):
        fields.pop(name, None)
    assert read_send(code, fields) == header


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            PullHeader,
            "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subscription subVersion expressionType",  # noqa: E501
        ),
        (SendResult, "msgId queueId queueOffset transactionId MSG_REGION TRACE_ON"),
        (QueryMessageHeader, "topic key maxNum beginTimestamp endTimestamp _UNIQUE_KEY_QUERY"),
        (
            CreateTopicHeader,
            "topic readQueueNums writeQueueNums perm topicFilterType defaultTopic topicSysFlag order",  # noqa: E501
        ),
        (
            EndTransactionHeader,
            "producerGroup tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck msgId transactionId",  # noqa: E501
        ),
        (
            CheckTransactionHeader,
            "tranStateTableOffset commitLogOffset msgId transactionId offsetMsgId bname",
        ),
        (
            RegisterBrokerHeader,
            "brokerName brokerAddr clusterName brokerId haServerAddr compressed bodyCrc32",
        ),
        (UnregisterClientHeader, "clientID producerGroup consumerGroup"),
        (KvHeader, "namespace key"),
    ],
)
def test_fields_have_the_names_of_java(kind: type[Header], names: str) -> None:
    assert [each.encode_name for each in msgspec.structs.fields(kind)] == names.split()


def test_only_true_in_any_case_is_true() -> None:
    fields = {"groupName": "g", "removeOffset": "TRUE"}
    assert parse(headers.DeleteGroupHeader, fields).remove_offset
    for word in ("yes", "", "t"):
        assert not parse(headers.DeleteGroupHeader, {**fields, "removeOffset": word}).remove_offset
