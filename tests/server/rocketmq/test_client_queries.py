"""Members of groups, filter expressions, and queue locks.

See docs/protocol/rocketmq.md, sections 2.10 and 2.12.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.clients import LOCK_CHECK_MS
from tests.server.client_harness import (
    Client,
    Harness,
    consumer,
    heartbeat,
    other_harness,
    sql,
    tags,
)

IDS, LOCK, UNLOCK, CHECK, CONSUMERS, PRODUCERS, WHO = 38, 41, 42, 46, 203, 204, 300
ALL_PRODUCERS = 328


# -- questions, sections 2.10 and 2.12


async def test_the_members_of_a_group(harness: Harness, client: Client) -> None:
    nobody = await client.ask(IDS, {"consumerGroup": "g"})
    assert (nobody.code, nobody.remark) == (1, "no consumer for this group, g")
    other = await harness.dial()
    await client.consume("g", tags("t"), client_id="10.0.0.1@1")
    await other.consume("g", tags("t"), client_id="10.0.0.1@2")
    answer = await client.ask(IDS, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (0, None)
    assert bytes(answer.body) == b'{"consumerIdList":["10.0.0.1@1","10.0.0.1@2"]}'
    assert (await client.ask(IDS)).code == 1


async def test_connections_that_are_not_there(client: Client) -> None:
    answer = await client.ask(CONSUMERS, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (206, "the consumer group[g] not online")
    answer = await client.ask(PRODUCERS, {"producerGroup": "p"})
    assert (answer.code, answer.remark) == (1, "the producer group[p] not exist")
    for code in (CONSUMERS, PRODUCERS, WHO):
        assert (await client.ask(code)).code == 1


async def test_all_producers(harness: Harness, client: Client) -> None:
    """As RocketMQ's exporter reads it: `ProducerTableInfo` of 4.9.4."""
    assert bytes((await client.ask(ALL_PRODUCERS)).body) == b'{"data":{}}'
    await client.beat(heartbeat("me", [], "payers", "others"))
    [channel] = harness.remoting.channels
    harness.clock.advance(1_000)
    found = msgspec.json.decode((await client.ask(ALL_PRODUCERS)).body)
    expected = {
        "clientId": "me",
        "language": "JAVA",
        "lastUpdateTimestamp": harness.clock.wall_ms() - 1_000,
        "remoteIP": f"/{channel.peer}",
        "version": 399,
    }
    assert found == {"data": {"payers": [expected], "others": [expected]}}


async def test_the_groups_of_a_topic(harness: Harness, client: Client) -> None:
    await client.beat(heartbeat("me", [consumer("g", tags("t")), consumer("h", tags("u"))]))
    harness.state.offsets.open("old", "t", 0).offset = 5
    harness.state.offsets.open("g", "t", 0).offset = 5
    answer = await client.ask(WHO, {"topic": "t"})
    assert bytes(answer.body) == b'{"groupList":["g","old"]}'
    assert bytes((await client.ask(WHO, {"topic": "nobody"})).body) == b'{"groupList":[]}'


@pytest.mark.parametrize(
    ("data", "code", "remark"),
    [
        (None, 0, None),
        (tags("t"), 0, None),
        (tags("t", expressionType=""), 0, None),
        (sql("t", "a > 5"), 0, None),
        (
            sql("t", "a BETWEEN 5 AND 1"),
            23,
            (
                "java.lang.RuntimeException: Illegal values of between, left value(5) must less "
                "than or equal to right value(1)"
            ),
        ),
        (
            tags("t", expressionType="XPATH"),
            23,
            "Expressions of type 'XPATH' are not supported.",
        ),
    ],
)
async def test_checking_a_client(
    client: Client, data: dict[str, Any] | None, code: int, remark: str | None
) -> None:
    body = {"clientId": "me", "group": "g", "subscriptionData": data}
    answer = await client.ask(CHECK, body=msgspec.json.encode(body))
    assert (answer.code, answer.remark) == (code, remark)


async def test_an_expression_without_end(harness: Harness, client: Client) -> None:
    expression = "a = 1 OR " * 1_000_000 + "a = 1"
    began = time.thread_time()
    body = msgspec.json.encode({"subscriptionData": sql("t", expression)})
    answer = await client.ask(CHECK, body=body)
    assert answer.code == 23
    assert (await client.consume("g", sql("t", expression))).code == 0
    assert harness.state.filters.get("t", "g") is None
    assert time.thread_time() - began < 5  # it would take minutes of this thread to compile


async def test_a_broker_that_does_not_filter(tmp_path: Path) -> None:
    harness = await other_harness(tmp_path, property_filter=False)
    client = await harness.dial()
    for data, code in ((sql("t", "not sql at all ("), 1), (tags("t"), 0)):
        body = msgspec.json.encode({"subscriptionData": data})
        answer = await client.ask(CHECK, body=body)
        assert answer.code == code
        if code:
            expected = "The broker does not support consumer to filter message by SQL92"
            assert answer.remark == expected
    await harness.stop()


# -- locks


def batch(client_id: str, *queues: int) -> bytes:
    return msgspec.json.encode(
        {
            "clientId": client_id,
            "consumerGroup": "g",
            "mqSet": [{"brokerName": "b", "queueId": one, "topic": "t"} for one in queues],
        }
    )


async def locked(client: Client, client_id: str, *queues: int) -> list[int]:
    answer = await client.ask(LOCK, body=batch(client_id, *queues))
    assert (answer.code, answer.remark) == (0, None)
    found = msgspec.json.decode(answer.body)["lockOKMQSet"]
    assert all((one["brokerName"], one["topic"]) == ("b", "t") for one in found)
    return [one["queueId"] for one in found]


async def test_locks(harness: Harness, client: Client) -> None:
    assert await locked(client, "a", 0, 1) == [0, 1]
    assert await locked(client, "b", 1, 2) == [2]
    answer = await client.ask(UNLOCK, body=batch("b", 0, 1, 2))
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, None, b"")
    assert await locked(client, "a", 2) == [2]
    client.send_oneway(UNLOCK, body=batch("a", 0))
    await client.settle()
    assert await locked(client, "b", 0, 1) == [0]
    harness.clock.advance(60_001)
    assert await locked(client, "b", 1) == [1]
    await client.hang_up()
    other = await harness.dial()
    assert await locked(other, "a", 1) == []  # a lost connection gives no lock back
    for code in (LOCK, UNLOCK):
        assert (await other.ask(code, body=b"nonsense")).code == 1


async def test_a_refused_member_is_notified_when_the_lock_is_released(
    harness: Harness, client: Client
) -> None:
    other = await harness.dial()
    await client.consume("g", tags("t"), client_id="a")
    await other.consume("g", tags("t"), client_id="b")
    await client.settle()
    await other.settle()
    assert (client.told(), other.told()) == (["g", "g"], ["g"])
    assert await locked(client, "a", 0, 1) == [0, 1]
    assert await locked(other, "b", 1) == []
    client.send_oneway(UNLOCK, body=batch("a", 0))
    await client.settle()
    await other.settle()
    assert other.told() == [], "nobody wanted that one"
    client.send_oneway(UNLOCK, body=batch("a", 1))  # as Java's clients do: without an answer
    await client.settle()
    await other.settle()
    assert (client.told(), other.told()) == ([], ["g"])
    assert await locked(other, "b", 1) == [1]


async def test_a_refused_member_is_notified_when_the_lock_expires(
    harness: Harness, client: Client
) -> None:
    await client.consume("g", tags("t"), client_id="b")
    client.told()
    assert await locked(client, "a", 0) == [0]
    assert await locked(client, "b", 0) == []
    harness.clock.advance(60_000)
    harness.clients.upkeep.tick()
    await client.settle()
    assert client.told() == []
    harness.clock.advance(LOCK_CHECK_MS)
    harness.clients.upkeep.tick()
    await client.settle()
    assert client.told() == ["g"]
    assert await locked(client, "b", 0) == [0]


async def test_a_group_without_notifications_is_not_notified_of_locks(
    harness: Harness, client: Client
) -> None:
    harness.state.groups.put(Group(group_name="g", notify_consumer_ids_changed_enable=False), 0)
    await client.consume("g", tags("t"), client_id="b")
    assert await locked(client, "a", 0) == [0]
    assert await locked(client, "b", 0) == []
    await client.ask(UNLOCK, body=batch("a", 0))
    assert client.told() == []
