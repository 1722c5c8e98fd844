"""Nonsense of every kind, to every code of both servers: an answer, and the next is served.

See docs/protocol/rocketmq.md, section 1.5.

A request without sense is refused with code 1 and what went wrong, or does what 4.9 makes of it
(section 1.5); what may never be is silence, an error of ours in the log, or a connection that ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coherer._net import run
from coherer._server.node.node import Node, NodeOptions
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command, encode
from tests.server.rocketmq_caller import Caller

SILENT = {
    Code.END_TRANSACTION: "a transaction that nobody knows the end of (section 2.9)",
    Code.END_HALF_BATCH: "the same (section 6.7.1)",
    Code.GET_BROKER_CLUSTER_ACL_INFO: "without accounts (section 2.16)",
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: "without accounts (section 2.16)",
}
"""Requests that RocketMQ 4.9 does not answer."""

NAMES = (
    "topic", "consumerGroup", "producerGroup", "group", "groupName", "brokerName", "brokerAddr",
    "clusterName", "cluster", "clientID", "clientId", "clientAddr", "namespace", "key", "value",
    "msgId", "originMsgId", "originTopic", "defaultTopic", "properties", "subscription",
    "expressionType", "statsName", "statsKey", "topicFilterType", "accessKey", "secretKey",
    "globalWhiteAddrs", "topics", "srcGroup", "destGroup", "filterGroups", "compareGroup",
    "producerGroup", "transactionId", "uniqKey", "bornHost", "storeHost", "a", "b", "c", "i",
)  # fmt: skip
NUMBERS = (
    "queueId", "queueOffset", "offset", "commitOffset", "maxMsgNums", "sysFlag", "subVersion",
    "suspendTimeoutMillis", "timestamp", "beginTimestamp", "endTimestamp", "maxNum", "brokerId",
    "readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "delayLevel", "commitOrRollback",
    "tranStateTableOffset", "commitLogOffset", "index", "count", "bornTimestamp", "flag",
    "defaultTopicQueueNums", "maxReconsumeTimes", "d", "e", "f", "g", "h", "j", "l",
)  # fmt: skip
FLAGS = ("isForce", "isOrder", "unitMode", "jstackEnable", "offline", "order", "batch", "m", "k")


def fields(text: str, number: str, flag: str = "true") -> dict[str, str]:
    """All fields that any code has, with these values."""
    return {
        **dict.fromkeys(NAMES, text),
        **dict.fromkeys(NUMBERS, number),
        **dict.fromkeys(FLAGS, flag),
        "suspendTimeoutMillis": "0",
    }


FIELDS: tuple[dict[str, str], ...] = (
    {},
    fields("", "0"),
    fields("flights", "0"),
    fields("flights", "-1", "perhaps"),
    fields("flights", "9223372036854775807"),
    fields("x" * 300, "3.5"),
    fields("no/such*topic{}\x01\x02", "many"),
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\xff\x00garbage",
    b'{"clientID":5,"consumerDataSet":[null],"producerDataSet":{}}',
    b'{"clientID":null,"consumerDataSet":[{}],"offsetTable":{"x":"y"},"mqSet":[{}]}',
    b"[" * 20_000,
    b"a=b\nbrokerPermission=many\nlistenPort=\n",
    bytes(100),
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path)) as node:
        node.create_topic("flights", 4)
        yield node


def options(directory: Path) -> NodeOptions:
    return NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=None,
        namesrv_port=0,
        rocketmq_port=0,
        segment_bytes=1 << 22,
    )


async def heckle(caller: Caller, codes: list[int]) -> dict[int, list[Command]]:
    """Asks everything; gives the answers."""
    answers: dict[int, list[Command]] = {}
    for code in codes:
        for header, body in itertools.product(FIELDS, BODIES):
            answer = caller.begin(code, header, body)
            if code in SILENT:
                continue
            async with asyncio.timeout(10):
                answers.setdefault(code, []).append(await answer)
    return answers


async def test_a_broker_answers_everything(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    broker = node.rocketmq.broker
    assert broker is not None
    caller = await Caller.dial(node.rocketmq_port)
    with caplog.at_level(logging.ERROR, "coherer"):
        answers = await heckle(caller, sorted(broker.codes))
    assert [record.getMessage() for record in caplog.records] == []
    for code, given_ in answers.items():
        for answer in given_:
            assert 0 <= answer.code <= 300, (code, answer)
    alive = await caller.ask(Code.GET_MAX_OFFSET, {"topic": "flights", "queueId": "0"})
    assert alive.code == 0


async def test_a_name_server_answers_everything(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    server = node.rocketmq.name_server
    assert server is not None
    caller = await Caller.dial(node.namesrv_port)
    with caplog.at_level(logging.ERROR, "coherer"):
        await heckle(caller, sorted(server.handlers))
    assert [record.getMessage() for record in caplog.records] == []
    alive = await caller.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "broker-a"})
    assert alive.code == 0


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chunks=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=80),
            st.builds(
                lambda code, flag, text, body, binary: encode(
                    Command(code, 1, flag, fields={"topic": text, "queueId": text}, body=body),
                    binary=binary,
                ),
                st.sampled_from([int(code) for code in Code]),
                st.integers(0, 3),
                st.text(max_size=20),
                st.binary(max_size=40),
                st.booleans(),
            ),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_garbage_ends_its_connection_at_most(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
) -> None:
    async def main() -> None:
        async with Node(options(tmp_path_factory.mktemp("hostile"))) as node:
            for port in (node.rocketmq_port, node.rocketmq_fast_port, node.namesrv_port):
                hostile = await Caller.dial(port)
                for answer in range(-1, 10):
                    hostile.expect(answer)
                for chunk in chunks:
                    hostile.connection.write(chunk)
                    hostile.connection.flush()
                names = await Caller.dial(node.namesrv_port)
                found = await names.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "broker-a"})
                assert found.code == 0
                broker = await Caller.dial(node.rocketmq_port)
                queue = {"topic": "broker-a", "queueId": "0"}
                assert (await broker.ask(Code.GET_MAX_OFFSET, queue)).code == 0

    run(main())
