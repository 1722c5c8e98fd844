"""A broker's settings, and invalid requests of operators.

See docs/protocol/rocketmq.md, section 2.11.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.admin_settings import CHANGEABLE, FIXED
from coherer._wire.rocketmq import java_properties as texts
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.codes import ResponseCode as Result
from coherer.testing import ManualClock
from tests.server.rocket_harness import BrokerHarness, Client, running


def test_every_option_has_a_name_of_java() -> None:
    named = {*FIXED.values(), *CHANGEABLE.values()}
    assert named == set(RocketOptions.__struct_fields__)
    assert len(named) == len(FIXED) + len(CHANGEABLE)


async def test_settings_are_shown(broker_harness: BrokerHarness, peer: Client) -> None:
    answer = await peer.ask(Code.GET_BROKER_CONFIG)
    found = texts.parse(bytes(answer.body).decode())
    assert json.loads(answer.fields["version"]) == {"counter": 0, "timestamp": 0}
    assert found["brokerName"] == "broker-a"
    assert found["autoCreateTopicEnable"] == "true"
    assert found["maxMessageSize"] == "4194304"
    assert found["flushDiskType"] == "ASYNC_FLUSH"
    assert found["storePathRootDir"] == str(broker_harness.store.directory)


async def test_settings_are_changed_and_stay_so(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock) as harness:
        client = await harness.dial()
        topics = harness.state.topics.version
        body = (
            b"autoCreateTopicEnable=false\nbrokerName=x\nnope=1\ntraceOn=false\nmaxMessageSize=x\n"
        )
        assert (await client.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert harness.state.options == RocketOptions(auto_create_topics=False, trace_on=False)
        answer = await client.send()
        assert answer.code == Result.TOPIC_NOT_EXIST
        assert answer.fields["TRACE_ON"] == "false"
        assert harness.state.topics.version == topics
        # A changed permission is sent to the name servers.
        await client.ask(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
        assert harness.state.topics.version.counter == topics.counter + 1
        version = (await client.ask(Code.GET_BROKER_CONFIG)).fields["version"]
        assert json.loads(version)["counter"] == 2
    async with running(tmp_path, clock, region="elsewhere") as harness:
        assert harness.state.options == RocketOptions(
            auto_create_topics=False, trace_on=False, perm=4, region="elsewhere"
        )


async def test_a_value_with_signs_of_the_file_is_the_same_after_a_start(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock) as harness:
        client = await harness.dial()
        body = b"regionId=\\\\users\\n x=y"
        assert (await client.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert harness.state.options.region == "\\users\n x=y"
    async with running(tmp_path, clock) as harness:
        assert harness.state.options.region == "\\users\n x=y"


async def test_invalid_settings(broker_harness: BrokerHarness, peer: Client) -> None:
    answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=b"regionId=\\u00zz")
    assert (answer.code, answer.remark) == (1, "string2Properties error")
    for body in (b"", b"\xff\xfe"):  # no settings at all, to Java, too
        assert (await peer.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert broker_harness.state.options == RocketOptions()


@pytest.mark.parametrize("value", ["-1", "9", "x", "", "1e3"])
async def test_values_that_cannot_be(
    broker_harness: BrokerHarness, peer: Client, value: str
) -> None:
    answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=f"brokerPermission={value}".encode())
    assert answer.code == 0
    assert broker_harness.state.options == RocketOptions()


CODES = sorted(
    code
    for code in Code
    if code not in (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
)


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({}, b""),
        ({}, b"{"),
        ({}, b'{"a":{"$ref":"$"}}'),
        (
            dict.fromkeys(
                (
                    "topic",
                    "group",
                    "consumerGroup",
                    "groupName",
                    "queueId",
                    "offset",
                    "key",
                    "srcGroup",
                ),
                "\x00\ud7ff%/",
            ),
            b"[]",
        ),
        (
            dict.fromkeys(("queueId", "index", "count", "maxNum", "offset", "timestamp"), "-1")
            | {"topic": "demo", "consumerGroup": "g", "key": "", "beginTimestamp": "0"},
            b"\xff",
        ),
    ],
)
async def test_bad_requests_end_in_an_answer(
    peer: Client, fields: dict[str, str], body: bytes
) -> None:
    """No request stops the connection or the node."""
    for code in CODES:
        peer.begin(code, fields, body)
        await peer.settle()
        assert (await peer.send()).code == 0, code


async def test_settings_of_any_length_are_not_read(peer: Client) -> None:
    answer = await peer.ask(Code.UPDATE_BROKER_CONFIG, body=b"a=b\n" * 70_000)
    assert answer.code == Result.SYSTEM_ERROR
    assert "bytes are not read" in str(answer.remark)


async def test_the_retention_of_the_log_is_changed_and_stays_so(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock) as harness:
        client = await harness.dial()
        for text in (b"fileReservedTime=x", b"fileReservedTime=0"):
            assert (await client.ask(Code.UPDATE_BROKER_CONFIG, body=text)).code == 0
        assert harness.store.options.retention_hours == 72
        body = b"fileReservedTime=24"
        assert (await client.ask(Code.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert harness.store.options.retention_hours == 24
        answer = await client.ask(Code.GET_BROKER_CONFIG)
        assert texts.parse(bytes(answer.body).decode())["fileReservedTime"] == "24"
    async with running(tmp_path, clock) as harness:
        assert harness.store.options.retention_hours == 24
        client = await harness.dial()
        await client.ask(Code.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=2147483647")
        assert harness.store.options.retention_hours is None
