"""Heartbeats over sockets: registration, notifications and saved filters.

See docs/protocol/rocketmq.md, section 3.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer import limits
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.clients import EXPIRED_MS, LIFE_MS
from coherer._rules.rocketmq.groups import Group
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.clients import HOUSEKEEPING_MS, parse_locks
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.rocketmq.names import Queue
from coherer.testing import ManualClock
from tests.server.client_harness import (
    Client,
    Harness,
    consumer,
    heartbeat,
    other_harness,
    sql,
    tags,
)

CONSUMERS, PRODUCERS = 203, 204
LOCK, UNLOCK = 41, 42


def file(harness: Harness, name: str) -> Any:
    data = harness.store.read_config(name, bytes)
    return None if data is None else msgspec.json.decode(data)


async def test_the_selectors_of_a_heartbeat_are_bounded(harness: Harness, client: Client) -> None:
    long = "a = 1 OR " * 2_000 + "a = 2"
    assert (await client.consume("one", sql("T", long))).code == 0
    answer = await client.consume("two", sql("T", long), sql("U", long))
    assert answer.code == 1
    assert "selectors of this heartbeat" in str(answer.remark)


# -- section 3.6


async def test_the_worked_example(harness: Harness, client: Client) -> None:
    """The example of section 13.4, byte for byte."""
    body = (
        b'{"clientID":"10.0.0.9@4242","consumerDataSet":[{"consumeFromWhere":'
        b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"GID_demo",'
        b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":'
        b'[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1650000000000,"tagsSet":'
        b'["TagA"],"topic":"TopicTest"},{"classFilterMode":false,"codeSet":[],"expressionType":'
        b'"TAG","subString":"*","subVersion":1650000000000,"tagsSet":[],"topic":"%RETRY%GID_demo"}],'
        b'"unitMode":false}],"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
    )
    assert len(body) == 578
    frame = encode(Command(34, 8, body=body))
    assert frame[:160] == bytes.fromhex(
        "000002a8 00000062 7b22636f 6465223a 33342c22 666c6167 223a302c 226c616e"
        "67756167 65223a22 50595448 4f4e222c 226f7061 71756522 3a382c22 73657269"
        "616c697a 65547970 65437572 72656e74 52504322 3a224a53 4f4e222c 22766572"
        "73696f6e 223a3339 397d7b22 636c6965 6e744944 223a2231 302e302e 302e3940"
        "34323432 222c2263 6f6e7375 6d657244 61746153 6574223a 5b7b2263 6f6e7375"
    )
    client.connection.write(frame)
    answer = await client.expect(8)
    assert (answer.code, answer.remark, answer.fields, bytes(answer.body)) == (0, None, {}, b"")
    assert answer.version == 399
    [channel] = harness.remoting.channels
    connections = await client.ask(CONSUMERS, {"consumerGroup": "GID_demo"})
    assert msgspec.json.decode(connections.body) == {
        "connectionSet": [
            {
                "clientAddr": channel.peer,
                "clientId": "10.0.0.9@4242",
                "language": "PYTHON",
                "version": 399,
            }
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            one["topic"]: one
            for one in json.loads(body)["consumerDataSet"][0]["subscriptionDataSet"]
        },
    }
    producers = await client.ask(PRODUCERS, {"producerGroup": "CLIENT_INNER_PRODUCER"})
    [producer] = msgspec.json.decode(producers.body)["connectionSet"]
    assert (producer["clientId"], producer["language"]) == ("10.0.0.9@4242", "PYTHON")


async def test_a_heartbeat_creates_group_and_retry_topic(harness: Harness, client: Client) -> None:
    harness.clock.advance(5)
    assert (await client.consume("g", tags("t"))).code == 0
    now_ms = harness.clock.now_ms()
    assert harness.state.topics.get("%RETRY%g") == Topic(
        name="%RETRY%g", read_queues=1, write_queues=1, perm=6, sys_flag=0
    )
    written = file(harness, "topics.json")
    assert written["dataVersion"] == {"counter": 1, "timestamp": now_ms}
    assert written["topicConfigTable"]["%RETRY%g"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 1,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "%RETRY%g",
        "topicSysFlag": 0,
        "writeQueueNums": 1,
    }
    assert "TBW102" in written["topicConfigTable"]
    groups = file(harness, "subscriptionGroup.json")
    assert groups["dataVersion"] == {"counter": 1, "timestamp": now_ms}
    assert groups["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16
    await client.consume("g", tags("t"))
    assert harness.state.topics.version.counter == 1
    assert harness.state.groups.version.counter == 1


async def test_the_groups_settings_make_its_retry_topic(harness: Harness, client: Client) -> None:
    harness.state.groups.put(Group(group_name="g", retry_queue_nums=3), 0)
    await client.beat(heartbeat("me", [consumer("g", tags("t"), unitMode=True)]))
    topic = harness.state.topics["%RETRY%g"]
    assert (topic.read_queues, topic.write_queues, topic.sys_flag) == (3, 3, 2)


async def test_a_broker_without_automatic_groups(tmp_path: Path) -> None:
    harness = await other_harness(tmp_path, auto_create_groups=False)
    client = await harness.dial()
    assert (await client.consume("g", tags("t"))).code == 0
    assert "g" not in harness.state.groups
    assert "%RETRY%g" not in harness.state.topics
    assert harness.state.consumers.get("g") is not None  # it is registered nevertheless
    assert client.told() == ["g"]
    await client.consume("CID_RMQ_SYS_x", tags("t"))
    assert "CID_RMQ_SYS_x" in harness.state.groups
    await harness.stop()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"consumerDataSet":7}', b"\xff\xff"])
async def test_an_invalid_heartbeat(client: Client, body: bytes) -> None:
    answer = await client.ask(34, body=body)
    assert answer.code == 1
    assert answer.remark
    assert (await client.consume("g", tags("t"))).code == 0  # the connection lives on


async def test_groups_before_an_invalid_one_are_registered(
    harness: Harness, client: Client
) -> None:
    answer = await client.beat(heartbeat("me", [consumer("g", tags("t")), consumer("")]))
    assert answer.code == 1
    assert answer.remark is not None
    assert "NullPointerException" in answer.remark
    assert harness.state.consumers.get("g") is not None


async def test_languages_and_versions_come_from_the_header(
    harness: Harness, client: Client
) -> None:
    await client.consume("g", tags("t"), client_id="a", language="GO", version=317)
    other = await harness.dial()
    await other.consume("g", tags("t"), client_id="b", language=None)
    answer = await client.ask(CONSUMERS, {"consumerGroup": "g"})
    found = msgspec.json.decode(answer.body)["connectionSet"]
    assert [(one["clientId"], one.get("language"), one["version"]) for one in found] == [
        ("a", "GO", 317),
        ("b", None, 399),
    ]


async def test_fastjson_forms_of_a_heartbeat(harness: Harness, client: Client) -> None:
    """A client that shares one subscription between its groups (section 1.8)."""
    body = (
        b'{"clientID":"c","consumerDataSet":['
        b'{groupName:"g","consumeType":"CONSUME_SIDEWAYS","subscriptionDataSet":'
        b'[{"topic":"t","subString":"A","codeSet":[65],"tagsSet":["A"],"new":{0:1}}]},'
        b'{"groupName":"h","subscriptionDataSet":'
        b'[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}],"producerDataSet":[]}'
    )
    assert (await client.ask(34, body=body)).code == 0
    for group in "gh":
        found = harness.state.consumers.subscription(group, "t")
        assert found is not None
        assert (found.expression, found.codes, found.type) == ("A", frozenset([65]), "TAG")
        assert found.version == harness.clock.now_ms()  # without a version (section 3.3)
    answer = await client.ask(CONSUMERS, {"consumerGroup": "g"})
    assert "consumeType" not in msgspec.json.decode(answer.body)  # an unknown value


async def test_a_heartbeat_in_the_words_of_the_cpp_client(client: Client) -> None:
    """Numbers for words, and text for numbers."""
    body = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"1795233682053",'
        b'"topic":"%RETRY%g"}]}]}\n'
    )
    assert (await client.ask(34, body=body)).code == 0
    found = msgspec.json.decode((await client.ask(CONSUMERS, {"consumerGroup": "g"})).body)
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["messageModel"] == "BROADCASTING"
    assert found["subscriptionTable"]["%RETRY%g"]["subVersion"] == 1795233682053
    wrong = body.replace(b'"consumeType":1', b'"consumeType":7')
    assert (await client.ask(34, body=wrong)).code == 1


# -- sections 3.7 and 3.8


async def test_members_are_notified_before_the_response(harness: Harness, client: Client) -> None:
    await client.consume("g", tags("t"), client_id="a")
    assert client.told() == ["g"]  # before the response to the heartbeat
    await client.consume("g", tags("t"), client_id="a")
    assert client.told() == []
    other = await harness.dial()
    await other.consume("g", tags("t"), client_id="b")
    assert other.told() == ["g"]
    await client.settle()
    assert client.told() == ["g"]


async def test_a_new_topic_is_notified_and_a_newer_version_is_not(
    harness: Harness, client: Client
) -> None:
    await client.consume("g", tags("t", 5))
    client.told()
    await client.consume("g", tags("t", 6, subString="A", codeSet=[65]))
    assert client.told() == []
    found = harness.state.consumers.subscription("g", "t")
    assert found is not None
    assert (found.version, found.expression) == (6, "A")
    await client.consume("g", tags("t", 6), tags("u"))
    assert client.told() == ["g"]
    await client.consume("g", tags("u"))
    assert client.told() == ["g"]


async def test_members_with_different_topics(harness: Harness, client: Client) -> None:
    other = await harness.dial()
    for _ in range(2):
        await client.consume("g", tags("t"), client_id="a")
        await other.consume("g", tags("u"), client_id="b")
    await client.settle()
    assert len(client.told()) == 4
    found = harness.state.consumers.get("g")
    assert found is not None
    assert list(found.subscriptions) == ["u"]


async def test_groups_and_brokers_without_notifications(
    tmp_path: Path, harness: Harness, client: Client
) -> None:
    harness.state.groups.put(Group(group_name="g", notify_consumer_ids_changed_enable=False), 0)
    other = await harness.dial()
    await client.consume("g", tags("t"), client_id="a")
    await other.consume("g", tags("t"), client_id="b")
    assert (client.told(), other.told()) == ([], [])
    await other.ask(35, {"clientID": "b", "consumerGroup": "g"})
    await client.settle()
    assert client.told() == []
    await other.consume("g", tags("t"), client_id="b")
    await other.hang_up()  # always notifies, whatever the group's setting
    assert (await client.next_asked()).fields == {"consumerGroup": "g"}

    silent = await other_harness(tmp_path, notify_members=False)
    client = await silent.dial()
    await client.consume("g", tags("t"))
    assert client.told() == []
    await silent.stop()


async def test_unregistering(harness: Harness, client: Client) -> None:
    other = await harness.dial()
    await client.consume("g", tags("t"), client_id="a")
    await other.beat(heartbeat("b", [consumer("g", tags("t"))], "p"))
    await client.settle()
    client.told()
    other.told()
    answer = await other.ask(35, {"clientID": "b", "producerGroup": "p", "consumerGroup": "g"})
    assert (answer.code, answer.remark) == (0, None)
    assert other.told() == []
    await client.settle()
    assert client.told() == ["g"]
    assert (await client.ask(PRODUCERS, {"producerGroup": "p"})).code == 1
    for fields in ({}, {"clientID": "x"}, {"consumerGroup": "nobody", "producerGroup": "nobody"}):
        assert (await client.ask(35, fields)).code == 0
    assert "nobody" not in harness.state.groups


async def test_a_lost_connection(harness: Harness, client: Client) -> None:
    other = await harness.dial()
    await client.consume("g", sql("t", "a > 1"), client_id="a")
    await other.beat(
        heartbeat("b", [consumer("g", sql("t", "a > 1")), consumer("h", sql("t", "a > 2"))], "p")
    )
    await client.settle()
    client.told()
    harness.clock.advance(7)
    await other.hang_up()
    assert (await client.next_asked()).fields == {"consumerGroup": "g"}
    assert harness.state.consumers.get("h") is None
    assert harness.state.producers.find("b") is None
    left = harness.state.filters.get("t", "h")
    assert left is not None
    assert left.dead_ms == harness.clock.now_ms()
    kept = harness.state.filters.get("t", "g")
    assert kept is not None
    assert not kept.is_dead


# -- section 3.9


async def test_housekeeping(harness: Harness, client: Client) -> None:
    silent = await harness.dial()
    await silent.beat(heartbeat("b", [consumer("g", sql("t", "a > 1"))], "p"))
    harness.clock.advance(EXPIRED_MS - HOUSEKEEPING_MS)
    await client.beat(heartbeat("a", [consumer("g", sql("t", "a > 1"))], "p"))
    client.told()
    harness.clock.advance(HOUSEKEEPING_MS)
    harness.clients.upkeep.tick()
    assert len(harness.remoting.channels) == 2
    harness.clock.advance(1)
    harness.clients.upkeep.tick()  # only every ten seconds
    assert len(harness.remoting.channels) == 2
    harness.clock.advance(HOUSEKEEPING_MS)
    harness.clients.upkeep.tick()
    await silent.lost.wait()
    await client.settle()
    assert client.told() == []
    found = harness.state.consumers.get("g")
    assert found is not None
    assert found.client_ids == ["a"]
    assert harness.state.producers.find("b") is None
    filter_ = harness.state.filters.get("t", "g")
    assert filter_ is not None
    assert not filter_.is_dead


async def test_a_client_has_a_name(harness: Harness, client: Client) -> None:
    answer = await client.ask(34, {}, b'{"producerDataSet":[{"groupName":"p"}]}')
    assert (answer.code, answer.remark) == (1, "java.lang.NullPointerException: no client's id")
    assert harness.state.producers.members("p") is None


async def test_a_silent_producer_is_hung_up_on(harness: Harness) -> None:
    silent = await harness.dial()
    await silent.beat(heartbeat("b", [], "p"))
    assert harness.state.producers.find("b") is not None
    harness.clock.advance(EXPIRED_MS + HOUSEKEEPING_MS)
    harness.clients.upkeep.tick()
    async with asyncio.timeout(5):
        await silent.lost.wait()
    assert harness.state.producers.find("b") is None


# -- section 3.11, and its file


async def test_expressions_are_kept_and_saved(harness: Harness, client: Client) -> None:
    harness.clients.save_filters()
    await harness.core.files.flush()
    assert file(harness, "consumerFilter.json") is None  # nothing new: nothing written
    expression = "a > 5 AND b = 'x'"
    await client.consume("GID_PY", sql("T1", expression, 1000))
    born_ms = harness.clock.now_ms()
    found = harness.state.filters.get("T1", "GID_PY")
    assert found is not None
    assert found.matches({"a": "6", "b": "x"})
    assert not found.matches({"a": "5", "b": "x"})
    harness.clock.advance(9)
    await client.ask(35, {"clientID": "me", "consumerGroup": "GID_PY"})
    harness.clients.save_filters()
    await harness.core.files.flush()
    assert file(harness, "consumerFilter.json") == {
        "filterDataByTopic": {
            "T1": {
                "groupFilterData": {
                    "GID_PY": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [5, 12, 92]},
                        "bornTime": born_ms,
                        "clientVersion": 1000,
                        "consumerGroup": "GID_PY",
                        "dead": True,
                        "deadTime": born_ms + 9,
                        "expression": expression,
                        "expressionType": "SQL92",
                        "topic": "T1",
                    }
                },
                "topic": "T1",
            }
        }
    }


async def test_filters_come_back_and_broken_files_do_not_hurt(tmp_path: Path) -> None:
    first = await Harness(tmp_path, ManualClock(), RocketOptions()).start()
    client = await first.dial()
    await client.consume("g", sql("t", "a > 5", 3))
    first.clients.save_filters()
    await first.stop()
    again = await Harness(tmp_path, ManualClock(), RocketOptions()).start()
    found = again.state.filters.get("t", "g")
    assert found is not None
    assert found.matches({"a": "6"})
    assert found.is_dead
    again.store.save_config("consumerFilter.json", b"{broken")
    await again.stop()
    third = await Harness(tmp_path, ManualClock(), RocketOptions()).start()
    assert third.state.filters.get("t", "g") is not None  # from the file before
    third.store.save_config("consumerFilter.json", b"{broken")
    (third.store.directory / "config/consumerFilter.json.bak").write_bytes(b"{broken")
    await third.stop()
    fourth = await Harness(tmp_path, ManualClock(), RocketOptions()).start()
    assert fourth.state.filters.get("t", "g") is None
    await fourth.stop()


async def test_locks_outlive_a_restart(tmp_path: Path) -> None:
    queue = Queue("t", "broker-a", 0)
    clock = ManualClock()

    async def lock(client: Client, owner: str) -> list[Queue]:
        body = bodies.LockBatch("g", owner, [queue]).encode()
        answer = await client.ask(LOCK, body=body)
        return bodies.LockedBatch.decode(answer.body).queues

    first = await Harness(tmp_path, clock, RocketOptions()).start()
    assert await lock(await first.dial(), "one") == [queue]
    assert first.store.read_config("queueLocks.json", bytes), "it is on disk before the answer"
    await first.stop()
    clock.advance(3600)
    again = await Harness(tmp_path, clock, RocketOptions()).start()
    client = await again.dial()
    assert await lock(client, "two") == []
    assert await lock(client, "one") == [queue]
    body = bodies.LockBatch("g", "one", [queue]).encode()
    await client.ask(UNLOCK, body=body)
    await again.stop()
    third = await Harness(tmp_path, clock, RocketOptions()).start()
    assert await lock(await third.dial(), "two") == [queue]
    older = b'[{"consumerGroup":"g","clientId":"two","mqSet":[]}]'
    assert [one.client_id for one in parse_locks(older)] == ["two"]
    third.store.save_config("queueLocks.json", b"{broken")
    await third.stop()
    (third.store.directory / "config/queueLocks.json.bak").write_bytes(b"{broken")
    fourth = await Harness(tmp_path, clock, RocketOptions()).start()
    assert await lock(await fourth.dial(), "three") == [queue]
    await fourth.stop()


@pytest.mark.parametrize("name", ["a\nb", "x" * 256, "tab\t"])
async def test_names_that_nobody_may_have(harness: Harness, client: Client, name: str) -> None:
    for beat in (
        heartbeat(name),
        heartbeat("me", [consumer(name, tags("t"))]),
        heartbeat("me", None, name),
    ):
        answer = await client.beat(beat)
        assert answer.code == 1
        assert "has at most 255 characters" in str(answer.remark)
    assert name not in harness.state.groups
    assert harness.state.group(name) is None
    assert f"%RETRY%{name}" not in harness.state.topics
    assert (await client.consume("a group.with-signs", tags("t"))).code == 0


async def test_a_full_broker_keeps_the_clients_that_it_has(
    harness: Harness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.beat(heartbeat("me", [consumer("g", tags("t"))], "p"))
    monkeypatch.setattr(limits, "CLIENTS_MAX", 1)
    refused = await client.consume("h", tags("t"))
    assert (refused.code, "no room" in str(refused.remark)) == (1, True)
    assert (await client.beat(heartbeat("me", None, "q"))).code == 1
    assert (await client.beat(heartbeat("me", [consumer("g", tags("t"))], "p"))).code == 0
    await client.ask(35, {"clientID": "me", "consumerGroup": "g", "producerGroup": "p"})
    assert (await client.beat(heartbeat("me", [consumer("h", tags("t"))], "q"))).code == 0
    assert harness.state.consumers.get("g") is None


async def test_all_subscriptions_together_are_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_CHARS_MAX", 1_000)
    tag = tags("t", subString="x" * 300, tagsSet=["x" * 100], codeSet=[1, 2])
    assert (await client.consume("g", tag)).code == 0
    assert (await client.consume("h", tag)).code == 1
    assert (await client.consume("g", tag)).code == 0, "it stays as it is"
    assert (await client.consume("g", tags("t"), client_id="other")).code == 0
    assert (await client.consume("h", tag)).code == 1, "the group still has the long subscription"
    await client.ask(35, {"clientID": "me", "consumerGroup": "g"})
    assert (await client.consume("h", tag)).code == 0


async def test_so_many_groups_are_created_by_their_use(
    harness: Harness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.consume("old", tags("t"))
    monkeypatch.setattr(limits, "GROUPS_MAX", len(harness.state.groups))
    for group in ("new", "CID_RMQ_SYS_new"):
        assert (await client.consume(group, tags("t"))).code == 0
        assert group not in harness.state.groups
        assert f"%RETRY%{group}" not in harness.state.topics
    assert harness.state.group("old") is not None
    harness.state.groups.put(Group(group_name="by-hand"), 0)
    assert harness.state.group("by-hand") is not None


async def test_so_many_locks_are_granted(
    harness: Harness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOCKS_MAX", 3)

    async def lock(code: int, client_id: str, *numbers: int) -> list[int]:
        queues = [Queue("t", "broker-a", number) for number in numbers]
        body = bodies.LockBatch(consumer_group="g", client_id=client_id, queues=queues)
        answer = await client.ask(code, body=body.encode())
        assert answer.code == 0
        return [one.id for one in bodies.LockedBatch.decode(answer.body or b"{}").queues]

    assert await lock(LOCK, "me", 0, 1, 2, 3) == [0, 1, 2]
    assert await lock(LOCK, "me", 2, 1, 0) == [2, 1, 0], "renewed"
    assert await lock(LOCK, "other", 4) == []
    await lock(UNLOCK, "me", 0)
    assert await lock(LOCK, "other", 4) == [4]
    harness.clock.advance(LIFE_MS + 1)
    harness.clients.upkeep.tick()
    assert await lock(LOCK, "other", 5, 6, 7, 8) == [5, 6, 7]


async def test_a_lock_needs_names(harness: Harness, client: Client) -> None:
    """Without them it would look like the end of a slave's minute in the file."""
    for group, client_id in (("", ""), ("g", ""), ("", "me"), ("g", "a\nb")):
        queues = [Queue("t", "broker-a", 0)]
        body = bodies.LockBatch(consumer_group=group, client_id=client_id, queues=queues)
        assert (await client.ask(LOCK, body=body.encode())).code == 1
    assert harness.state.locks.dump() == []
