"""Members of bodies in every form of JSON: what Java's library takes them for is what we do."""

from __future__ import annotations

import base64
import subprocess

import pytest

from coherer._wire.rocketmq.bodies import (
    Body,
    Connection,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumeStatus,
    KVTable,
    ProcessQueueInfo,
    QueueData,
    SubscriptionData,
    TopicConfig,
    TopicList,
)
from coherer.errors import ProtocolError
from tests.interop.peers.rocket_site import RocketSite

pytestmark = pytest.mark.interop

WAIT_S = 60
PROTOCOL = "org.apache.rocketmq.common.protocol"
MEMBERS: dict[type[Body], tuple[str, str]] = {
    ConsumeDirectlyResult: (
        f"{PROTOCOL}.body.ConsumeMessageDirectlyResult",
        "order autoCommit consumeResult remark spentTimeMills",
    ),
    Connection: (f"{PROTOCOL}.body.Connection", "clientId clientAddr language version"),
    ConsumeStatus: (f"{PROTOCOL}.body.ConsumeStatus", "pullRT consumeOKTPS consumeFailedMsgs"),
    ConsumerConnection: (
        f"{PROTOCOL}.body.ConsumerConnection",
        "consumeType messageModel consumeFromWhere",
    ),
    ConsumerData: (
        f"{PROTOCOL}.heartbeat.ConsumerData",
        "groupName consumeType messageModel consumeFromWhere unitMode",
    ),
    SubscriptionData: (
        f"{PROTOCOL}.heartbeat.SubscriptionData",
        "topic subString expressionType classFilterMode",
    ),
    ProcessQueueInfo: (f"{PROTOCOL}.body.ProcessQueueInfo", "commitOffset cachedMsgCount locked"),
    QueueData: (f"{PROTOCOL}.route.QueueData", "brokerName readQueueNums perm"),
    TopicConfig: (
        "org.apache.rocketmq.common.TopicConfig",
        "topicName readQueueNums perm topicFilterType topicSysFlag order",
    ),
    TopicList: (f"{PROTOCOL}.body.TopicList", "brokerAddr"),
    KVTable: (f"{PROTOCOL}.body.KVTable", "table"),
}
VALUES = (
    *("0", "1", "5", "6", "12", "-1", "1.0", "1.5", "true", "false", "null", "[]", "[1]", "{}"),
    *('""', '"null"', '"1"', '"5"', '"-1"', '"1,000"', '"x"', '"0x5"', '"true"', '"TRUE"', '"Y"'),
    *('"f"', '"CR_LATER"', '"cr_later"', '"GO"', '"go"', '"CLUSTERING"', '"multi_tag"'),
    *('{"a":1}', '{"a":true,"b":[1],"c":"x"}', '"CONSUME_PASSIVELY"', "2147483647"),
)
UNWRITTEN = {("topicFilterType", "null")}  # Java takes null, and writes no nulls
ALWAYS = {SubscriptionData: '"subVersion":7,'}  # otherwise Java takes the time of day


def cases() -> list[tuple[type[Body], str, str]]:
    return [
        (kind, java, f'{{{ALWAYS.get(kind, "")}"{member}":{value}}}')
        for kind, (java, members) in MEMBERS.items()
        for member in members.split()
        for value in VALUES
        if (member, value) not in UNWRITTEN
    ]


def test_members_mean_what_they_mean_to_java(rocket: RocketSite) -> None:
    every = cases()
    asked = "".join(
        f"{java} {base64.b64encode(text.encode()).decode()}\n" for _, java, text in every
    )
    done = subprocess.run(
        rocket.java.command("JsonPeer", heap_mb=256, log="off"),
        input=asked,
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(every)
    wrong = [
        (text, said, ours)
        for (kind, _, text), answer in zip(every, answers, strict=True)
        if (said := javas(kind, answer)) != (ours := read(kind, text))
    ]
    assert not wrong


def javas(kind: type[Body], answer: str) -> Body | None:
    word, _, rest = answer.partition(" ")
    return kind.decode(base64.b64decode(rest)) if word == "ok" else None


def read(kind: type[Body], text: str) -> Body | None:
    try:
        return kind.decode(text.encode())
    except ProtocolError:
        return None
