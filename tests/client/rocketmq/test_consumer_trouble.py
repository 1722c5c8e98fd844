"""Consumers with a broker that says odd things, or nothing."""

from __future__ import annotations

import asyncio
import pickle
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest
from rocket_consuming import until

from coherer.client import connect_rocketmq
from coherer.client.rocketmq import (
    answering,
    claims,
    consumer,
    door,
    held,
    holdings,
    locking,
    member,
    pulling,
    remote_offsets,
)
from coherer.client.rocketmq.client import RocketClient
from coherer.client.rocketmq.consumer import Consumer
from coherer.errors import ClosedError, RefusedError, RequestTimeoutError, UsageError
from coherer.message import Message
from coherer.record import layout
from coherer.record.properties import decode, encode
from coherer.rocketmq.bodies import (
    BrokerData,
    ConsumeDirectlyResult,
    ConsumerIds,
    ConsumerStatus,
    HeartbeatData,
    LockBatch,
    LockedBatch,
    QueueData,
    ResetOffset,
    TopicRoute,
)
from coherer.rocketmq.codes import RequestCode
from coherer.rocketmq.headers import SendHeader, read_send
from coherer.rocketmq.messages import RocketMessage
from coherer.rocketmq.names import Queue

PULL = RequestCode.PULL_MESSAGE
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
STORE = RequestCode.UPDATE_CONSUMER_OFFSET
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
ZERO = Queue("demo", "broker-a", 0)


class Shelf:
    """What the scripted broker has in the queues of `demo`, and how it gives that out."""

    def __init__(self, cluster: Any, queues: int = 1) -> None:
        self.cluster = cluster
        self.records: defaultdict[int, list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, int], int] = {}
        self.others: list[str] = []
        self.package = 2
        self.held: list[Any] = []
        cluster.topics["demo"] = queues
        cluster.topics["%RETRY%readers"] = 1
        for code, script in {
            MEMBERS: self.members,
            PULL: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.stored,
            RequestCode.GET_MAX_OFFSET: lambda asked: self.answer(asked, self.end(asked)),
            RequestCode.GET_MIN_OFFSET: lambda asked: self.answer(asked, 0),
            RequestCode.LOCK_BATCH_MQ: self.lock,
        }.items():
            cluster.always(code, script)

    def put(self, *bodies: bytes, queue: int = 0, **properties: str) -> None:
        for body in bodies:
            self.records[queue].append(
                layout.encode(
                    "demo",
                    body,
                    encode({"UNIQ_KEY": body.decode(), **properties}),
                    queue_id=queue,
                    queue_offset=len(self.records[queue]),
                    physical_offset=1000 + len(self.records[queue]),
                    store_ms=1,
                )
            )
        waiting, self.held = self.held, []
        for asked in waiting:
            self.pull(asked)

    def end(self, asked: Any) -> int:
        retry = asked.fields["topic"] != "demo"
        return 0 if retry else len(self.records[int(asked.fields["queueId"])])

    def answer(self, asked: Any, offset: int) -> None:
        asked.answer(fields={"offset": str(offset)})

    def members(self, asked: Any) -> None:
        beats = self.cluster.asked(RequestCode.HEART_BEAT)
        own = {HeartbeatData.decode(beat.request.body).client_id for beat in beats[-1:]}
        asked.answer(body=ConsumerIds(consumer_id_list=[*own, *self.others]).encode())

    def stored(self, asked: Any) -> None:
        key = asked.fields["topic"], int(asked.fields["queueId"])
        if key in self.offsets:
            self.answer(asked, self.offsets[key])
        else:
            asked.answer(22, "Not found")

    def lock(self, asked: Any) -> None:
        asked.answer(body=LockedBatch(queues=LockBatch.decode(asked.request.body).queues).encode())

    def pull(self, asked: Any) -> None:
        offset, end = int(asked.fields["queueOffset"]), self.end(asked)
        if offset >= end:
            self.held.append(asked)
            return
        last = min(end, offset + self.package)
        body = b"".join(self.records[int(asked.fields["queueId"])][offset:last])
        asked.answer(0, "FOUND", self.head(last, end), body)

    @staticmethod
    def head(next_offset: int, end: int, broker: int = 0) -> dict[str, str]:
        return {
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": str(end),
            "suggestWhichBrokerId": str(broker),
        }

    def pulls(self) -> list[Any]:
        return [one for one in self.cluster.asked(PULL) if one.fields["topic"] == "demo"]


@pytest.fixture
def shelf(cluster) -> Shelf:
    return Shelf(cluster)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "PAUSE_MS", 10)
    monkeypatch.setattr(held, "UNKNOWN_MS", 1)
    monkeypatch.setattr(claims, "AGAIN_MS", 20)
    monkeypatch.setattr(member, "ROUND_MS_MIN", 20)


def reading(client: RocketClient, **options: Any) -> Consumer:
    return client.consumer("readers", "demo", **{"start": "earliest", **options})


async def one(consumer: Consumer):
    async with asyncio.timeout(5):
        batch = await consumer.receive()
    assert batch is not None
    return batch


async def test_what_the_broker_is_told(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")
    shelf.offsets["demo", 0] = 1
    wanted = {"demo": ["UA", "AA"]}
    shelf.put(b"d", TAGS="UA")
    async with client.consumer("readers", wanted, start="earliest") as consumer:
        batch = await one(consumer)
        assert batch.bodies() == [b"d"]
        consumer.done(batch)
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
        assert first["subVersion"] == str(topics["demo"].sub_version)
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
async def test_where_a_new_group_begins(cluster, shelf, client, start, code, offset) -> None:
    shelf.put(b"a", b"b")
    cluster.always(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda asked: shelf.answer(asked, 1))
    async with reading(client, start=start):
        await cluster.until(shelf.pulls)
    assert shelf.pulls()[0].fields["queueOffset"] == offset
    asked = next(one for one in cluster.asked(code) if one.fields["topic"] == "demo")
    assert asked.fields.get("timestamp") in {None, "1795219200000"}


async def test_a_message_goes_back_to_its_broker(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    async with reading(client, max_attempts=5) as consumer:
        first, second = await one(consumer)
        await first.retry(later=4)
        second.ack()
        second.ack()
        assert consumer.progress[ZERO].offset == 2
    [asked] = cluster.asked(BACK)
    assert asked.fields == {
        "offset": "1000",
        "group": "readers",
        "delayLevel": "4",
        "originMsgId": "a",
        "originTopic": "demo",
        "unitMode": "false",
        "maxReconsumeTimes": "5",
    }


async def test_what_a_broker_does_not_take_back_is_sent_anew(cluster, shelf, client, kit) -> None:
    shelf.put(b"a", TAGS="UA", DELAY="2")
    cluster.script(BACK, kit.refuse(1))
    async with reading(client) as consumer:
        [message] = await one(consumer)
        await message.retry()
        assert consumer.progress[ZERO].offset == 1
    [asked] = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    header = read_send(asked.request.code, asked.fields)
    assert isinstance(header, SendHeader)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
        "%RETRY%readers",
        1,
        16,
    )
    properties = decode((header.properties or "").encode())
    assert properties["RETRY_TOPIC"] == "demo"
    assert properties["ORIGIN_MESSAGE_ID"] == message.id
    assert (properties["DELAY"], properties["UNIQ_KEY"], properties["TAGS"]) == ("3", "a", "UA")
    assert bytes(asked.request.body) == b"a"


async def test_what_nobody_takes_back_comes_again_here(cluster, shelf, client, kit) -> None:
    shelf.put(b"a", b"b", b"c", b"d")
    cluster.script(BACK, kit.refuse(1))
    cluster.always(RequestCode.SEND_MESSAGE_V2, kit.refuse(14))
    async with reading(client) as consumer:
        seen: list[tuple[bytes, int]] = []
        async with asyncio.timeout(5):
            async for message in consumer:
                seen.append((message.body, message.attempt))
                if message.body == b"a" and message.attempt == 0:
                    await message.retry()
                if message.body == b"d":
                    assert consumer.progress[ZERO].offset == 0
                if len(seen) == 5:
                    break
        assert seen == [(b"a", 0), (b"b", 0), (b"c", 0), (b"d", 0), (b"a", 1)]
        assert consumer.progress[ZERO].offset == 0


async def test_what_takes_too_long_is_sent_back(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(consumer, "OVERDUE_CHECK_MS", 10)
    shelf.put(b"a", b"b")
    async with reading(client, consume_ms=1) as reader:
        batch = await one(reader)
        await cluster.until(lambda: len(cluster.asked(BACK)) == 2)
        assert {asked.fields["delayLevel"] for asked in cluster.asked(BACK)} == {"3"}
        await until(lambda: reader.progress[ZERO].offset == 2)
        with pytest.raises(UsageError, match="already"):
            await reader.confirm(batch)


@pytest.mark.parametrize("code", [24, 25, 27, 28])
async def test_a_broker_that_does_not_know_us_is_greeted(cluster, shelf, client, kit, code) -> None:
    cluster.script(PULL, kit.refuse(code), kit.refuse(code))
    shelf.put(b"a")
    async with reading(client) as consumer:
        before = len(cluster.asked(RequestCode.HEART_BEAT))
        assert (await one(consumer)).bodies() == [b"a"]
        assert len(cluster.asked(RequestCode.HEART_BEAT)) > before


async def test_refusals_and_broken_connections_pass(cluster, shelf, client, kit) -> None:
    cluster.script(PULL, kit.refuse(1), kit.refuse(16), kit.hang_up)
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_answers_without_numbers_pass(cluster, shelf, client) -> None:
    cluster.script(PULL, lambda asked: asked.answer(0, "FOUND"), lambda asked: asked.answer(20))
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_an_offset_outside_of_the_queue(cluster, shelf, client) -> None:
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
        assert await consumer.confirm(batch) == 3
    assert [asked.fields["commitOffset"] for asked in cluster.asked(STORE)] == ["3"]


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


@pytest.fixture
def pair(cluster2) -> Shelf:
    """A master, broker-a, and its slave, which calls itself broker-b here."""
    shelf = Shelf(cluster2)
    addresses = {0: cluster2.brokers["broker-a"].address, 1: cluster2.brokers["broker-b"].address}
    route = TopicRoute(
        queue_datas=[
            QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        ],
        broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs=addresses)],
    )
    cluster2.always(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda asked: asked.answer(body=route.encode())
    )
    return shelf


async def test_a_slave_is_asked_when_the_master_says_so(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d", b"e", b"f")
    pair.head = lambda next_offset, end: Shelf.head(  # type: ignore[method-assign]
        next_offset, end, broker=int(next_offset < 4)
    )
    async with connect_rocketmq(cluster2.url) as client, reading(client) as consumer:
        for _ in range(3):
            consumer.done(await one(consumer))
        await cluster2.until(lambda: len(pair.pulls()) >= 4)
    asked = [(pull.broker, int(pull.fields["sysFlag"]) & 1) for pull in pair.pulls()[:4]]
    assert [broker for broker, _ in asked] == ["broker-a", "broker-b", "broker-a", "broker-a"]
    assert asked[1][1] == 0  # slaves are not told offsets


async def test_a_slave_serves_while_its_master_is_away(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c")
    pair.offsets["demo", 0] = 1
    await cluster2.brokers["broker-a"].listener.close()
    async with connect_rocketmq(cluster2.url) as client:
        async with reading(client) as consumer:
            assert (await one(consumer)).bodies() == [b"b", b"c"]
        async with client.reader(ZERO, 0, end=3) as reader:
            batch = await reader.read()
            assert batch is not None
            assert batch.bodies() == [b"a", b"b"]
    assert {pull.broker for pull in pair.pulls()} == {"broker-b"}


async def test_what_a_slave_hears_is_not_written_down(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d")
    pair.head = lambda next_offset, end: Shelf.head(  # type: ignore[method-assign]
        next_offset, end, broker=1
    )
    async with connect_rocketmq(cluster2.url) as client, reading(client) as consumer:
        for _ in range(2):
            consumer.done(await one(consumer))
        for count in (3, 4):
            await cluster2.until(lambda count=count: len(pair.pulls()) == count)
            pair.pulls()[-1].answer(19, "NO_NEW_MESSAGE", pair.head(4, 4))
    [told] = cluster2.asked(STORE)
    assert (told.broker, told.fields["commitOffset"]) == ("broker-a", "4")


def told_of_demo(cluster: Any) -> list[str]:
    told = [asked.fields for asked in cluster.asked(STORE)]
    return [fields["commitOffset"] for fields in told if fields["topic"] == "demo"]


async def test_nothing_is_stored_beside_a_pull_that_tells(
    cluster, shelf, client, monkeypatch
) -> None:
    """Java's broker may book the pull's offset after the one that is stored."""
    monkeypatch.setattr(remote_offsets, "BOOKED_MS", 60_000)
    shelf.package = 1
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert await consumer.confirm(await one(consumer)) == 1  # the first word does not ride
        for body in (b"b", b"c"):
            shelf.put(body)
            consumer.done(await one(consumer))
        await cluster.until(lambda: shelf.pulls()[-1].fields["queueOffset"] == "3")
        telling = shelf.pulls()[-1]
        assert telling.fields["commitOffset"] == "2"
        storing = asyncio.create_task(consumer._holdings.persist())
        closing = asyncio.create_task(consumer.close())
        assert await client.offsets("demo")  # the broker has been asked something since
        assert told_of_demo(cluster) == ["1"]
        telling.answer(19, "NO_NEW_MESSAGE", shelf.head(3, 3))
        await asyncio.gather(storing, closing)
    assert told_of_demo(cluster) == ["1", "3"]


async def test_a_held_pull_delays_a_close_no_longer_than_it_must(
    cluster, shelf, client, monkeypatch
) -> None:
    monkeypatch.setattr(remote_offsets, "BOOKED_MS", 1)
    shelf.package = 1
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert await consumer.confirm(await one(consumer)) == 1
        for body in (b"b", b"c"):
            shelf.put(body)
            consumer.done(await one(consumer))
        await cluster.until(lambda: shelf.pulls()[-1].fields["commitOffset"] == "2")
    assert told_of_demo(cluster) == ["1", "3"]


async def test_what_a_cancelled_worker_had_is_received_again(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    begun = asyncio.Event()

    async def handler(batch: Any) -> None:
        batch.message(0)
        begun.set()
        await asyncio.Event().wait()

    async with reading(client) as consumer:
        running = asyncio.create_task(consumer.run(handler))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await one(consumer)).bodies() == [b"a", b"b"]


async def test_locks_of_one_broker_do_not_wait_for_another(cluster2, monkeypatch) -> None:
    monkeypatch.setattr(member, "LOCK_MS", 20)
    monkeypatch.setattr(door, "LOCK_TIMEOUT_MS", 60_000)
    pair = Shelf(cluster2)
    late: list[Any] = []

    def lock(asked: Any) -> None:
        if asked.broker == "broker-a":
            late.append(asked)
        else:
            pair.lock(asked)

    async with (
        connect_rocketmq(cluster2.url) as client,
        reading(client, orderly=True) as consumer,
    ):
        await until(lambda: len(consumer.assignment) == 4)
        monkeypatch.setitem(cluster2.constants, RequestCode.LOCK_BATCH_MQ, lock)
        await cluster2.until(lambda: late)
        await cluster2.until(
            lambda: cluster2.asked(RequestCode.LOCK_BATCH_MQ)[-1].broker == "broker-b"
        )
        late[0].answer(body=LockedBatch().encode())


async def test_queues_stay_while_the_members_are_unknown(cluster, shelf, client) -> None:
    async with reading(client) as consumer:
        await consumer.wait_assigned(5_000)
        shelf.others = ["0"]  # sorts before us, and takes the only queue
        cluster.script(MEMBERS, *[lambda asked: asked.answer(1, "no consumer")] * 4)
        asked = len(cluster.asked(MEMBERS))
        cluster.channel().notify(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "readers"}
        )
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) >= asked + 4)
        assert ZERO in consumer.assignment
        await until(lambda: ZERO not in consumer.assignment)


async def test_a_topic_that_comes_later(cluster, shelf, client, caplog) -> None:
    del cluster.topics["demo"]
    async with reading(client, rebalance_ms=30) as consumer:
        assert "Topic demo is not there yet" in caplog.text
        assert repr(consumer).startswith("<Consumer of demo in ")
        with pytest.raises(RequestTimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.wait_assigned(1)
        cluster.topics["demo"] = 1
        shelf.put(b"a")
        assert (await one(consumer)).bodies() == [b"a"]


async def test_in_order_only_what_is_locked_is_read(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(locking, "LOCK_MS", 20)
    monkeypatch.setattr(member, "LOCK_MS", 20)
    refuse: list[bool] = [True]

    def lock(asked: Any) -> None:
        if refuse[0]:
            asked.answer(body=LockedBatch().encode())
        else:
            shelf.lock(asked)

    cluster.always(RequestCode.LOCK_BATCH_MQ, lock)
    shelf.put(b"a", b"b", b"c", b"d")
    async with reading(client, orderly=True) as consumer:
        await cluster.until(lambda: len(cluster.asked(RequestCode.LOCK_BATCH_MQ)) > 2)
        assert not shelf.pulls()
        refuse[0] = False
        batch = await one(consumer)
        assert batch.bodies() == [b"a", b"b"]
        assert await consumer.receive(20) is None
        refuse[0] = True
        locks = len(cluster.asked(RequestCode.LOCK_BATCH_MQ))
        await cluster.until(lambda: len(cluster.asked(RequestCode.LOCK_BATCH_MQ)) > locks + 1)
        consumer.done(batch)
        assert await consumer.receive(20) is None  # it is not ours at the moment
        refuse[0] = False
        assert (await one(consumer)).bodies() == [b"c", b"d"]
    unlocked = LockBatch.decode(cluster.asked(RequestCode.UNLOCK_BATCH_MQ)[-1].request.body)
    assert ZERO in unlocked.queues


async def test_no_more_is_pulled_than_may_wait_here(cluster, shelf, client) -> None:
    shelf.put(*[b"%d" % number for number in range(20)])
    async with reading(client, queue_messages=5) as consumer:
        await cluster.until(lambda: len(shelf.pulls()) == 3)
        batch = await one(consumer)
        assert len(shelf.pulls()) == 3
        consumer.done(batch)
        await cluster.until(lambda: len(shelf.pulls()) == 4)


async def test_no_more_bytes_are_pulled_than_may_wait_here(cluster, client) -> None:
    shelf = Shelf(cluster, queues=2)
    shelf.put(*[b"x"] * 10, queue=0)
    shelf.put(*[b"x"] * 10, queue=1)
    async with reading(client, prefetch_bytes=1) as consumer:
        await cluster.until(lambda: len(shelf.pulls()) == 2)
        batches = [await one(consumer), await one(consumer)]
        assert len(shelf.pulls()) == 2
        for batch in batches:
            consumer.done(batch)
        await cluster.until(lambda: len(shelf.pulls()) > 2)


async def test_a_loop_that_is_left_gives_the_rest_back(cluster, shelf, client) -> None:
    shelf.package = 4
    shelf.put(b"a", b"b", b"c", b"d")
    async with reading(client) as consumer:
        async for message in consumer:
            if message.body == b"c":
                break
        assert (await one(consumer)).bodies() == [b"c", b"d"]


async def test_a_queue_that_is_gone_is_not_confirmed(cluster, shelf, client) -> None:
    shelf.put(b"a")
    async with reading(client) as consumer:
        batch = await one(consumer)
        shelf.others = ["0"]
        consumer.rebalance_soon()
        await until(lambda: ZERO not in consumer.assignment)
        with pytest.raises(RefusedError, match="not ours any more"):
            await consumer.confirm(batch)
        [message] = batch
        await message.retry()
        consumer.put_back(batch)
    assert not cluster.asked(BACK)


async def test_unknown_groups_are_answered_as_java_does(cluster, shelf, client) -> None:
    shelf.put(b"a")
    async with reading(client):
        await cluster.until(shelf.pulls)
        channel = cluster.channel()
        for code in (307, 309):
            answer = await channel.call(code, {"consumerGroup": "x", "clientId": "c"}, b"", 2_000)
            assert (answer.code, answer.remark) == (
                1,
                "The Consumer Group <x> not exist in this consumer",
            )
        answer = await channel.call(221, {"topic": "demo", "group": "x"}, b"", 2_000)
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert ConsumerStatus.decode(answer.body).message_queue_table == {}


async def test_a_message_for_which_nobody_has_time(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(answering, "DIRECTLY_MS", 20)
    shelf.put(b"a")
    async with reading(client) as consumer:
        await cluster.until(shelf.pulls)
        consumer.pause()
        record = shelf.records[0][0]
        fields = {"consumerGroup": "readers", "clientId": "c", "brokerName": "broker-a"}
        answer = await cluster.channel().call(309, fields, record, 2_000)
        result = ConsumeDirectlyResult.decode(answer.body)
        assert (answer.code, result.consume_result) == (0, "CR_THROW_EXCEPTION")
        assert await consumer.receive(0) is None


@pytest.mark.parametrize("java", [True, False])
async def test_offsets_are_reset(cluster, shelf, client, java) -> None:
    shelf.put(b"a", b"b", b"c")
    async with reading(client) as consumer:
        first, second = await one(consumer), await one(consumer)
        await consumer.confirm(first)
        table = ResetOffset(offset_table={ZERO: 1, Queue("demo", "broker-a", 5): 0})
        body = table.encode() if java else table.encode_for_c()
        fields = {"topic": "demo", "group": "readers", "timestamp": "0", "isForce": "false"}
        cluster.channel().notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        again = await one(consumer)
        assert again.offsets() == [1, 2]
        with pytest.raises(RefusedError):
            await consumer.confirm(second)
        anew = [pull for pull in shelf.pulls() if pull.fields["queueOffset"] == "1"]
        assert [(pull.fields["commitOffset"], pull.fields["sysFlag"]) for pull in anew] == [
            ("1", "3")
        ]


async def test_a_silent_queue_is_taken_anew(cluster, shelf, client, kit, monkeypatch) -> None:
    monkeypatch.setattr(holdings, "IDLE_MS", 30)
    cluster.script(PULL, kit.silence, kit.silence)
    moves: list[str] = []
    options: dict[str, Any] = {
        "on_assigned": lambda queues: moves.extend("+" for queue in queues if queue == ZERO),
        "on_revoked": lambda queues: moves.extend("-" for queue in queues if queue == ZERO),
    }
    async with reading(client, rebalance_ms=20, **options) as consumer:
        await until(lambda: moves[:3] == ["+", "-", "+"])
        shelf.put(b"a")
        monkeypatch.setattr(holdings, "IDLE_MS", 120_000)
        assert (await one(consumer)).bodies() == [b"a"]
        consumer.pause(ZERO)
        before = len(moves)
        monkeypatch.setattr(holdings, "IDLE_MS", 1)
        rounds = len(cluster.asked(MEMBERS))
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) > rounds + 8)
        assert moves[before:].count("-") <= 1  # what is not asked for anything is not silent


async def test_loops_end_with_their_consumer(cluster, shelf, client) -> None:
    shelf.put(b"a")
    got = asyncio.Event()
    async with reading(client) as consumer:

        async def loop() -> list[bytes]:
            found: list[bytes] = []
            async for message in consumer:
                found.append(message.body)
                got.set()
            return found

        looping = asyncio.create_task(loop())
        await got.wait()
        batches = asyncio.create_task(anext(consumer.batches(), None))
        await consumer.close()
        assert (await looping, await batches) == ([b"a"], None)


async def test_views_are_messages(cluster, shelf, client) -> None:
    shelf.put(b"a", TAGS="UA", KEYS="k1 k2", note="x")
    async with reading(client) as consumer:
        [view] = await one(consumer)
        message = view.detached()
        assert isinstance(view, RocketMessage)
        assert not isinstance(view, Message)
        assert type(message) is RocketMessage
        match view:
            case RocketMessage(topic="demo", body=body):
                assert body == b"a"
            case _:
                pytest.fail("a view is a message")
        assert (view, message) == (message, view)
        assert repr(view) == repr(message)
        assert pickle.loads(pickle.dumps(view)) == message
        assert (view.tag, view.keys, dict(view.properties)) == ("UA", ("k1", "k2"), {"note": "x"})
        assert (view.offset, view.partition, view.broker, view.unique_id) == (0, 0, "broker-a", "a")
        assert view.physical_offset == 1000
        with pytest.raises(AttributeError):
            _ = view.nonsense
        shelf.put(b"b")
        [other] = await one(consumer)
        assert other != view


async def test_misuse(cluster, shelf, client) -> None:
    with pytest.raises(UsageError, match="one topic"):
        client.consumer("readers", [])
    with pytest.raises(UsageError, match="no model"):
        reading(client, model="all")
    with pytest.raises(UsageError, match="not negative"):
        reading(client, poll_ms=0)
    with pytest.raises(UsageError, match="no start position"):
        reading(client, start="soon")
    with pytest.raises(UsageError, match="in order by itself"):
        client.pull_consumer("readers", "demo", orderly=True)
    consumer = reading(client)
    assert repr(consumer) == "<Consumer of demo in readers: new>"
    assert (consumer.assignment, consumer.progress, consumer.paused) == (frozenset(), {}, set())
    with pytest.raises(UsageError, match="not started"):
        await consumer.receive(0)
    async with consumer:
        await consumer.wait_assigned(5_000)
        assert repr(consumer).startswith("<Consumer of demo in readers: ")
        with pytest.raises(UsageError, match="started once"):
            await consumer.start()
        with pytest.raises(UsageError, match="worker"):
            await consumer.run(print, workers=0)
        with pytest.raises(UsageError, match="consumer of group readers already"):
            await reading(client).start()
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.receive(0)


async def test_a_pull_consumer_that_shares_cannot_be_assigned(cluster, shelf, client) -> None:
    async with client.pull_consumer("readers", "demo") as puller:
        with pytest.raises(UsageError, match="shares topics"):
            await puller.assign([ZERO])
        with pytest.raises(UsageError, match="is not ours"):
            await puller.seek(Queue("demo", "broker-a", 9), 0)
        await puller.wait_assigned(5_000)
        with pytest.raises(UsageError, match="no offset"):
            await puller.seek(ZERO, -1)
    pulled = shelf.pulls()[0].fields
    assert (pulled["sysFlag"], pulled["subscription"], pulled["subVersion"]) == ("22", "*", "0")
    beat = cluster.heartbeat().consumer_data_set[0]
    assert beat.consume_type == "CONSUME_ACTIVELY"
    assert [one.topic for one in beat.subscription_data_set] == ["demo"]


async def test_an_assigned_queue_follows_when_its_broker_is_back(cluster, shelf, client) -> None:
    shelf.put(b"a")
    cluster.script(RequestCode.QUERY_CONSUMER_OFFSET, lambda asked: asked.answer(1, "not yet"))
    async with client.pull_consumer("readers", start="earliest") as puller:
        await puller.assign([ZERO])
        assert puller.assignment == frozenset()
        batch = await puller.poll(5_000)
        assert batch is not None
        assert (batch.bodies(), puller.assignment) == ([b"a"], {ZERO})
        await puller.assign([])
        assert puller.assignment == frozenset()


async def test_a_silent_queue_of_a_pull_consumer_stays(cluster, shelf, client, monkeypatch) -> None:
    """Its position is in the head of the user; what is stored may be older, or nothing."""
    monkeypatch.setattr(holdings, "IDLE_MS", 30)
    gone: list[Any] = []
    options: dict[str, Any] = {"rebalance_ms": 10, "on_revoked": gone.extend}
    async with client.pull_consumer("readers", "demo", **options) as puller:
        await puller.wait_assigned(5_000)
        asked = len(cluster.asked(MEMBERS))
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) > asked + 6)
        assert not gone


@pytest.mark.parametrize("rest_ms", [60_000, 20])
async def test_a_pull_that_brings_us_nowhere_rests(
    cluster, shelf, client, monkeypatch, rest_ms: int
) -> None:
    """A slave that is behind, or may not be read, says "again" at once, and again."""
    monkeypatch.setattr(pulling, "STUCK_MS", rest_ms)

    def again(asked: Any) -> None:
        asked.answer(20, "", shelf.head(int(asked.fields["queueOffset"]), 5))

    cluster.always(PULL, again)
    async with reading(client) as consumer:
        await consumer.wait_assigned(5_000)
        if rest_ms == 20:
            await cluster.until(lambda: len(shelf.pulls()) == 3)
        else:
            await cluster.until(shelf.pulls)
            for _ in range(3):
                assert await client.offsets("demo")  # the broker has been asked something since
            assert len(shelf.pulls()) == 1


async def test_what_a_paused_queue_has_keeps_no_other_from_being_read(cluster, kit) -> None:
    shelf = Shelf(cluster, queues=2)
    shelf.put(b"0" * 5_000, queue=0)
    async with (
        connect_rocketmq(cluster.url) as client,
        reading(client, prefetch_bytes=1_000) as consumer,
    ):
        await until(lambda: consumer._holdings.inbox.size_bytes > 5_000)
        consumer.pause(ZERO)
        shelf.put(b"1", b"2", queue=1)
        assert (await one(consumer)).bodies() == [b"1", b"2"]
        consumer.resume()
        assert len((await one(consumer)).bodies()[0]) == 5_000


async def test_who_is_closed_while_it_starts_does_not_stay(cluster, shelf, client) -> None:
    held: list[Any] = []
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, held.append)
    consumer = reading(client)
    starting = asyncio.ensure_future(consumer.start())
    await cluster.until(lambda: held)
    await consumer.close()
    cluster._default(held[0])
    with pytest.raises(ClosedError):
        await starting
    assert client._instance.consumers == []


async def test_who_is_cancelled_while_it_leaves_has_left(cluster, shelf, client, kit) -> None:
    cluster.always(STORE, kit.silence)
    shelf.put(b"a")
    async with reading(client) as consumer:
        batch = await one(consumer)
        shelf.held.clear()
        consumer.done(batch)
        closing = asyncio.ensure_future(consumer.close())
        await cluster.until(lambda: cluster.asked(STORE))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert client._instance.consumers == []
    assert cluster.asked(RequestCode.UNREGISTER_CLIENT)


async def test_a_reader_tries_again_as_long_as_it_may(cluster, shelf, kit) -> None:
    shelf.put(b"a", b"b", b"c")
    cluster.script(PULL, kit.refuse(2), kit.hang_up)
    async with connect_rocketmq(cluster.url, timeout_ms=2_000) as client:
        async with client.reader(ZERO, 0) as reader:
            batch = await reader.read()
            assert batch is not None
            assert batch.bodies() == [b"a", b"b"]
            assert (reader.position, reader.end) == (2, 3)
            assert "at 2, to 3: open" in repr(reader)
            await cluster.until(lambda: len(shelf.pulls()) == 4)
        fields = shelf.pulls()[-1].fields
        assert (fields["consumerGroup"], fields["sysFlag"]) == ("TOOLS_CONSUMER", "4")
        with pytest.raises(ClosedError):
            await reader.read()
        with pytest.raises(UsageError, match="started once"):
            await reader.start()
        cluster.script(PULL, kit.refuse(16, "forbidden"))
        async with client.reader(ZERO, 0) as reader:
            with pytest.raises(RefusedError, match="forbidden"):
                await reader.read()
            assert await reader.read() is not None
    cluster.always(PULL, kit.refuse(2, "busy"))
    async with connect_rocketmq(cluster.url, timeout_ms=300) as client:
        async with client.reader(ZERO, 0) as reader:
            with pytest.raises(RefusedError, match="busy"):
                await reader.read()
        for start, end in ((-1, None), (5, 4)):
            with pytest.raises(UsageError, match="no range"):
                client.reader(ZERO, start, end=end)


async def test_a_reader_begins_where_there_is_something(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")

    def pull(asked: Any) -> None:
        if asked.fields["queueOffset"] == "0":
            asked.answer(21, "OFFSET_TOO_SMALL", shelf.head(2, 3))
        else:
            shelf.pull(asked)

    cluster.always(PULL, pull)
    async with client.reader(ZERO, 0) as reader:
        batch = await reader.read()
        assert batch is not None
        assert batch.offsets() == [2]
        assert await reader.read() is None


async def test_pulls_are_signed_where_they_have_to_be(cluster, shelf) -> None:
    shelf.put(b"a")
    async with (
        connect_rocketmq(cluster.url, user="key", password="secret-secret") as client,
        client.reader(ZERO, 0) as reader,
    ):
        assert await reader.read() is not None
    fields = shelf.pulls()[0].fields
    assert fields["AccessKey"] == "key"
    assert fields["Signature"]
    assert pulling.SLACK_MS > 0
