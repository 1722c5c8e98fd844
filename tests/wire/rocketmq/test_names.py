from __future__ import annotations

import pickle

import pytest

from coherer._wire.rocketmq.codes import (
    ERRORS,
    LANGUAGE_NUMBERS,
    LANGUAGES,
    NOT_SET,
    RequestCode,
    ResponseCode,
    refused,
    version_name,
)
from coherer._wire.rocketmq.names import (
    Queue,
    check_group,
    check_topic,
    is_system_topic,
    topic_fault,
    with_namespace,
    without_namespace,
)
from coherer.errors import RefusedError, UsageError


def test_queues_are_ordered_by_topic_broker_and_number() -> None:
    queues = [Queue("a", "x", 10), Queue("a", "x", 9), Queue("a", "b", 11), Queue("A", "z", 0)]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("orders", None),
        ("%RETRY%a|b-c_1", None),
        ("x" * 127, None),
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        ("x" * 128, "The specified topic is longer than topic max length."),
        (
            "a/b",
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "ä\n",
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
    ],
)
def test_topic_fault_equals_java(topic: str, fault: str | None) -> None:
    assert topic_fault(topic) == fault
    if fault is None:
        check_topic(topic)
        return
    with pytest.raises(UsageError) as error:
        check_topic(topic)
    assert error.value.text == fault


@pytest.mark.parametrize(
    "group", ["", " ", "x" * 256, "a b", "DEFAULT_CONSUMER", "DEFAULT_PRODUCER"]
)
def test_invalid_group_names_are_refused(group: str) -> None:
    check_group("x" * 255)
    with pytest.raises(UsageError):
        check_group(group)


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("orders", "ns%orders"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_TRACE_DATA_x", "rmq_sys_TRACE_DATA_x"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
        ("", ""),
    ],
)
def test_namespaces_are_added_and_removed(name: str, inside: str) -> None:
    assert with_namespace("ns", name) == with_namespace("ns", inside) == inside
    assert without_namespace("ns", inside) == without_namespace("ns", name) == name


def test_system_topics() -> None:
    assert is_system_topic("RMQ_SYS_TRANS_HALF_TOPIC")
    assert not is_system_topic("%RETRY%x")


def test_versions() -> None:
    names = {
        0: "V3_0_0_SNAPSHOT", 7: "V3_0_0_BETA6_SNAPSHOT", 15: "V3_0_0_FINAL", 17: "V3_0_1",
        28: "V3_0_7_SNAPSHOT", 37: "V3_0_11", 45: "V3_0_15", 46: "V3_1_0_SNAPSHOT", 47: "V3_1_0",
        62: "V3_1_8_SNAPSHOT", 65: "V3_1_9", 67: "V3_2_0", 85: "V3_2_9", 87: "V3_3_1",
        121: "V3_4_9", 232: "V4_1_0_SNAPSHOT", 213: "V4_0_0", 317: "V4_5_2", 333: "V4_6_0",
        393: "V4_9_0", 399: "V4_9_3", 413: "V5_0_0", 611: "V5_9_9", 612: "HIGHER_VERSION",
        99999: "HIGHER_VERSION",
    }  # fmt: skip
    assert {number: version_name(number) for number in names} == names
    every = [version_name(number) for number in range(613)]
    assert len(set(every)) == len(every)


def test_languages() -> None:
    assert [LANGUAGE_NUMBERS[name] for name in ("JAVA", "CPP", "PYTHON", "GO", "OMS")] == [
        0,
        1,
        3,
        9,
        11,
    ]
    assert len(LANGUAGES) == 12


def test_codes_of_the_protocol_page() -> None:
    assert len(RequestCode) == 94 + 3 + 2  # 328 is of 4.9.4, 351 and 361 of 5.x, and two are ours
    assert RequestCode.SEND_BATCH_MESSAGE == 320
    assert RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT == 326
    assert ResponseCode.PULL_OFFSET_MOVED == 21
    assert ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED == 211


@pytest.mark.parametrize("code", ERRORS)
def test_refused_returns_the_error_of_a_code(code: int) -> None:
    error = refused(code, None, server="b:1", topic="t", partition=3)
    assert type(error) is ERRORS[code]
    assert (error.code, error.server, error.topic, error.partition) == (code, "b:1", "t", 3)
    assert error.text == ERRORS[code].meaning
    assert refused(code, NOT_SET).text == error.text
    assert refused(code, "why").text == "why"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, str(copy)) == (type(error), code, str(error))


def test_a_refusal_by_access_control_has_a_hint() -> None:
    error = refused(1, "org.apache.rocketmq.acl.common.AclException: No acl config for ann")
    assert "user and password" in error.hint


def test_an_unknown_code_is_a_refused_error() -> None:
    error = refused(4711, "Odd.")
    assert (type(error), error.code, error.text) == (RefusedError, 4711, "Odd.")
