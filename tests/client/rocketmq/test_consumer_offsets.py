"""What consumers tell brokers of their offsets, and where they begin."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from coherer._client.rocketmq.consuming import offsets
from coherer._wire.rocketmq.bodies import ResetOffset
from coherer._wire.rocketmq.codes import V5_0_0, RequestCode
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError, UsageError
from tests.client.rocket_broker import BACK, PULL, STORE, ZERO, one, reading
from tests.client.rocket_scenario import until

pytestmark = pytest.mark.usefixtures("quick")


async def test_heartbeat_and_offsets(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")
    shelf.offsets["demo", 0] = 1
    wanted = {"demo": ["UA", "AA"]}
    shelf.put(b"d", TAGS="UA")
    async with client.consumer("readers", wanted, start="earliest") as consumer:
        batch = await one(consumer)
        assert batch.bodies() == [b"d"]
        batch.ack()
        await cluster.until(lambda: "4" in [pull.fields["queueOffset"] for pull in shelf.pulls()])
        beat = cluster.heartbeat().consumer_data_set[0]
        assert (beat.group_name, beat.consume_type) == ("readers", "CONSUME_PASSIVELY")
        assert (beat.message_model, beat.consume_from_where) == (
            "CLUSTERING",
            "CONSUME_FROM_FIRST_OFFSET",
        )
        topics = {one.topic: one for one in beat.subscription_data_set}
        assert topics["demo"].sub_string == "UA || AA"
        assert topics["demo"].code_set == [2700, 2080]
        assert topics["%RETRY%readers"].sub_string == "*"
        first = shelf.pulls()[0].fields
        assert (first["queueOffset"], first["sysFlag"], first["commitOffset"]) == ("1", "2", "0")
        assert int(first["subVersion"]) <= topics["demo"].sub_version
        assert "subscription" not in first
    told = cluster.asked(STORE)[-1]
    assert (told.fields["commitOffset"], told.request.is_oneway) == ("4", False)
    left = cluster.asked(RequestCode.UNREGISTER_CLIENT)[-1].fields
    assert left["consumerGroup"] == "readers"


@pytest.mark.parametrize(
    ("start", "code", "offset"),
    [
        ("latest", RequestCode.GET_MAX_OFFSET, "2"),
        ("earliest", RequestCode.GET_MIN_OFFSET, "0"),
        (datetime(2026, 11, 21, tzinfo=UTC), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "1"),
    ],
)
async def test_the_start_of_a_new_group(cluster, shelf, client, start, code, offset) -> None:
    shelf.put(b"a", b"b")
    cluster.always(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda asked: shelf.answer(asked, 1))
    async with reading(client, start=start):
        await cluster.until(shelf.pulls)
    assert shelf.pulls()[0].fields["queueOffset"] == offset
    asked = next(one for one in cluster.asked(code) if one.fields["topic"] == "demo")
    assert asked.fields.get("timestamp") in {None, "1795219200000"}


TABLE = RequestCode.GET_ALL_CONSUMER_OFFSET


@pytest.mark.parametrize(
    ("table", "offset"),
    [
        (b'{"offsetTable":{"demo@others":{0:1}}}', "2"),  # the group was never there
        (b'{"offsetTable":{"demo@readers":{0:0}}}', "0"),  # it is at 0
        (None, "0"),  # the broker does not tell: nothing is skipped
    ],
)
async def test_offset_0_from_a_4_x_broker_is_checked_with_its_table(
    cluster, shelf, client, table, offset
) -> None:
    shelf.put(b"a", b"b")
    shelf.offsets["demo", 0] = 0
    if table is None:
        cluster.always(TABLE, lambda asked: asked.answer(1, "No consumer offset in this broker"))
    else:
        cluster.always(TABLE, lambda asked: asked.answer(body=table))
    async with reading(client, start="latest"):
        await cluster.until(shelf.pulls)
    assert shelf.pulls()[0].fields["queueOffset"] == offset
    [asked] = [
        one for one in cluster.asked(RequestCode.QUERY_CONSUMER_OFFSET)
        if one.fields["topic"] == "demo"
    ]  # fmt: skip
    assert asked.fields["setZeroIfNotFound"] == "false"
    assert len(cluster.asked(TABLE)) == 1


async def test_offset_0_from_a_5_x_broker_is_exact(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")

    def zero(asked: Any) -> None:
        fields = {"offset": "0"}
        answer = Command(0, asked.request.opaque, flag=1, version=V5_0_0, fields=fields)
        asked.channel.connection.write(encode(answer))

    cluster.always(RequestCode.QUERY_CONSUMER_OFFSET, zero)
    async with reading(client, start="latest"):
        await cluster.until(shelf.pulls)
    assert shelf.pulls()[0].fields["queueOffset"] == "0"
    assert cluster.asked(TABLE) == []


async def test_the_table_is_not_fetched_if_0_is_the_start(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    shelf.offsets["demo", 0] = 0
    async with reading(client, start="earliest"):
        await cluster.until(shelf.pulls)
    assert cluster.asked(TABLE) == []


async def test_the_start_offset_is_stored_before_the_first_pull(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    told: list[list[str]] = []

    def pull(asked: Any) -> None:
        told.append(told_of_demo(cluster))
        shelf.pull(asked)

    cluster.always(PULL, pull)
    async with reading(client, start="latest"):
        await cluster.until(lambda: any(one.fields["topic"] == "demo" for one in shelf.pulls()))
    assert ["2"] in told
    assert told_of_demo(cluster) == ["2"]


async def test_an_offset_out_of_range(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")
    shelf.offsets["demo", 0] = 9

    def pull(asked: Any) -> None:
        if asked.fields["topic"] == "demo" and int(asked.fields["queueOffset"]) > 3:
            asked.answer(21, "OFFSET_OVERFLOW_BADLY", shelf.head(2, 3))
        else:
            shelf.pull(asked)

    cluster.always(PULL, pull)
    async with reading(client) as consumer:
        batch = await one(consumer)
        assert batch.bodies() == [b"c"]
        assert await consumer.commit(batch) == {ZERO: 3}
    assert told_of_demo(cluster) == ["3"]


async def test_nothing_that_matches_moves_the_offset(cluster, shelf, client) -> None:
    def pull(asked: Any) -> None:
        if asked.fields["topic"] == "demo" and asked.fields["queueOffset"] == "0":
            asked.answer(20, "NO_MATCHED_MESSAGE", shelf.head(7, 7))
        else:
            shelf.held.append(asked)

    cluster.always(PULL, pull)
    async with reading(client) as consumer:
        await cluster.until(lambda: "7" in [pull.fields["queueOffset"] for pull in shelf.pulls()])
        assert consumer.progress[ZERO].offset == 7
    assert cluster.asked(STORE)[-1].fields["commitOffset"] == "7"


def told_of_demo(cluster: Any) -> list[str]:
    told = [asked.fields for asked in cluster.asked(STORE)]
    return [fields["commitOffset"] for fields in told if fields["topic"] == "demo"]


async def test_no_offset_request_while_a_pull_carries_one(
    cluster, shelf, client, monkeypatch
) -> None:
    """Java's broker may book the pull's offset after the one that is stored."""
    monkeypatch.setattr(offsets, "APPLIED_MS", 60_000)
    shelf.package = 1
    shelf.put(b"a")
    async with reading(client) as consumer:
        # The first update is not sent with a pull.
        assert await consumer.commit(await one(consumer)) == {ZERO: 1}
        for body in (b"b", b"c"):
            shelf.put(body)
            (await one(consumer)).ack()
        await cluster.until(lambda: shelf.pulls()[-1].fields["queueOffset"] == "3")
        telling = shelf.pulls()[-1]
        assert telling.fields["commitOffset"] == "2"
        storing = asyncio.create_task(consumer._membership.manager.persist())
        closing = asyncio.create_task(consumer.close())
        assert await client.offsets("demo")  # the broker has been asked something since
        assert told_of_demo(cluster) == ["1"]
        telling.answer(19, "NO_NEW_MESSAGE", shelf.head(3, 3))
        await asyncio.gather(storing, closing)
    assert told_of_demo(cluster) == ["1", "3"]


async def test_a_held_pull_delays_close_only_briefly(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(offsets, "APPLIED_MS", 1)
    shelf.package = 1
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert await consumer.commit(await one(consumer)) == {ZERO: 1}
        for body in (b"b", b"c"):
            shelf.put(body)
            (await one(consumer)).ack()
        await cluster.until(lambda: shelf.pulls()[-1].fields["commitOffset"] == "2")
    assert told_of_demo(cluster) == ["1", "3"]


async def test_a_batch_of_a_revoked_queue_cannot_be_committed(cluster, shelf, client) -> None:
    shelf.put(b"a")
    async with reading(client, rebalance_ms=20) as consumer:
        batch = await one(consumer)
        shelf.others = ["0"]
        await until(lambda: ZERO not in consumer.assignment)
        with pytest.raises(RefusedError, match="not assigned to this consumer any more"):
            await consumer.commit(batch)
        [message] = batch
        await message.retry()
    assert not cluster.asked(BACK)


@pytest.mark.parametrize("java", [True, False])
async def test_offsets_are_reset(cluster, shelf, client, java) -> None:
    shelf.put(b"a", b"b", b"c")
    async with reading(client) as consumer:
        first, second = await one(consumer), await one(consumer)
        await consumer.commit(first)
        table = ResetOffset(offset_table={ZERO: 1, Queue("demo", "broker-a", 5): 0})
        body = table.encode() if java else table.encode_for_c()
        fields = {"topic": "demo", "group": "readers", "timestamp": "0", "isForce": "false"}
        cluster.channel().notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        again = await one(consumer)
        assert again.offsets() == [1, 2]
        with pytest.raises(UsageError, match="another offset"):
            await consumer.commit(second)
        anew = [pull for pull in shelf.pulls() if pull.fields["queueOffset"] == "1"]
        assert [(pull.fields["commitOffset"], pull.fields["sysFlag"]) for pull in anew] == [
            ("1", "3")
        ]
