"""Offsets of groups and queues, and messages by key, id and time.

See docs/protocol/rocketmq.md, sections 2.7 and 2.8.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from coherer import limits
from coherer._record.batches import encode_batch_item
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._server.core.core import GROUP_IDLE_MS
from coherer.testing import ManualClock
from tests.server.client_harness import HEARTBEAT, consumer, heartbeat, tags
from tests.server.rocket_harness import BrokerHarness, Client, bodies_of, send_fields

QUERY_MESSAGE, QUERY_OFFSET, UPDATE_OFFSET, SEARCH, MAXIMUM, MINIMUM = 12, 14, 15, 29, 30, 31
EARLIEST, VIEW, ALL_OFFSETS, SEND_BATCH = 32, 33, 43, 320


def queue(**changes: object) -> dict[str, str]:
    return {name: str(value) for name, value in {"topic": "demo", "queueId": 0, **changes}.items()}


def of_group(**changes: object) -> dict[str, str]:
    return queue(**{"consumerGroup": "g", **changes})


async def offset(peer: Client, code: int, fields: dict[str, str]) -> int:
    answer = await peer.ask(code, fields)
    assert answer.code == 0
    return int(answer.fields["offset"])


async def test_where_a_group_stands(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send()
    assert await offset(peer, QUERY_OFFSET, of_group()) == 0, "the queue begins in memory"
    for position in (7, 3):  # also back, and beyond the end
        answer = await peer.ask(UPDATE_OFFSET, of_group(commitOffset=position))
        assert (answer.code, answer.remark) == (0, None)
        assert await offset(peer, QUERY_OFFSET, of_group()) == position
    peer.send_oneway(UPDATE_OFFSET, of_group(queueId=3, commitOffset=1))
    assert await offset(peer, QUERY_OFFSET, of_group(queueId=3)) == 1
    answer = await peer.ask(ALL_OFFSETS)
    assert bytes(answer.body) == b'{"offsetTable":{"demo@g":{0:3,3:1}}}'


async def test_a_member_that_has_not_noticed_the_deletion_of_a_topic_leaves_no_position(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """A new topic of that name would begin there for its group."""
    await peer.send()
    broker_harness.broker.state.topics.remove("demo", 0)
    broker_harness.broker.state.core.remove_topic("demo")
    answer = await peer.ask(UPDATE_OFFSET, of_group(commitOffset=1))
    assert (answer.code, answer.remark) == (17, "topic[demo] not exist")
    assert bytes((await peer.ask(ALL_OFFSETS)).body) == b'{"offsetTable":{}}'


@pytest.mark.parametrize("number", [-1, 4, 2**31 - 1])
async def test_queues_that_do_not_exist_get_no_position(peer: Client, number: int) -> None:
    await peer.send()
    answer = await peer.ask(UPDATE_OFFSET, of_group(queueId=number, commitOffset=1))
    assert answer.code == 1
    assert "no such queue" in str(answer.remark)
    assert bytes((await peer.ask(ALL_OFFSETS)).body) == b'{"offsetTable":{}}'


async def test_a_queue_that_was_taken_away_can_be_read_to_its_end(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await peer.send(e=3)
    broker_harness.state.topics.put(Topic(name="demo", read_queues=4, write_queues=1), 0)
    broker_harness.state.topics.put(Topic(name="demo", read_queues=1, write_queues=1), 0)
    assert (await peer.ask(UPDATE_OFFSET, of_group(queueId=3, commitOffset=1))).code == 0


async def test_so_many_groups_have_positions(
    broker_harness: BrokerHarness, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send()
    monkeypatch.setattr(limits, "GROUPS_MAX", 1)

    async def commit(group: str, number: int = 0) -> int:
        fields = of_group(consumerGroup=group, queueId=number, commitOffset=1)
        return (await peer.ask(UPDATE_OFFSET, fields)).code

    assert await commit("first") == 0
    assert await commit("second") == 26
    assert await commit("first", 1) == 0
    broker_harness.state.groups.put(Group(group_name="second"), 0)
    assert await commit("second") == 0, "an administrator has created it"
    assert await commit("a\nb") == 26


async def test_a_client_can_ask_whether_a_group_has_an_offset(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """RocketMQ 5's field; without it, or with true, the answer is that of 4.9."""
    await peer.send()
    exact = of_group(setZeroIfNotFound="false")
    answer = await peer.ask(QUERY_OFFSET, exact)
    assert (answer.code, answer.remark) == (
        22,
        "Not found, do not set to zero, maybe this group boot first",
    )
    for fields in (of_group(), of_group(setZeroIfNotFound="true"), of_group(queueId=1)):
        answer = await peer.ask(QUERY_OFFSET, fields)
        assert (answer.code, answer.fields) == (0, {"offset": "0"})
    await peer.ask(UPDATE_OFFSET, of_group(commitOffset=0))
    answer = await peer.ask(QUERY_OFFSET, exact)
    assert (answer.code, answer.fields) == (0, {"offset": "0", "setZeroIfNotFound": "false"})


async def test_groups_that_read_are_not_forgotten(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send()
    subscribed = heartbeat("me", [consumer("online", tags("demo"))])
    await peer.ask(HEARTBEAT, body=msgspec.json.encode(subscribed))
    for group in ("online", "commits", "rests"):
        await peer.ask(UPDATE_OFFSET, of_group(consumerGroup=group, commitOffset=1))
    broker_harness.core.clean()
    clock.advance(GROUP_IDLE_MS)
    await peer.ask(UPDATE_OFFSET, of_group(consumerGroup="commits", commitOffset=1))
    broker_harness.core.clean()
    broker_harness.core.clean()
    assert broker_harness.core.offsets.groups() == {"online", "commits"}


async def test_a_new_group_of_a_queue_with_an_old_beginning(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    for _ in range(20):
        await peer.send(b"x" * 1000)
    broker_harness.state.memory_bytes = 1_000
    answer = await peer.ask(QUERY_OFFSET, of_group())
    assert (answer.code, answer.remark) == (
        22,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )
    assert await offset(peer, QUERY_OFFSET, of_group(queueId=1)) == 0, "nothing was sent there"


async def test_where_a_queue_begins_and_ends(peer: Client, clock: ManualClock) -> None:
    assert (await peer.ask(EARLIEST, queue())).fields == {"timestamp": "-1"}
    assert await offset(peer, MAXIMUM, queue()) == 0
    assert await offset(peer, MINIMUM, queue(topic="unknown")) == 0
    stored_ms = clock.now_ms()
    for _ in range(3):
        await peer.send()
        clock.advance(10_000)
    assert await offset(peer, MAXIMUM, queue()) == 3
    assert await offset(peer, MINIMUM, queue()) == 0
    answer = await peer.ask(EARLIEST, queue())
    assert answer.fields == {"timestamp": str(stored_ms)}


@pytest.mark.parametrize(
    ("after_ms", "expected"),
    [(-99_000, 0), (0, 0), (4_000, 0), (5_000, 0), (6_000, 1), (99_000, 2)],
)
async def test_the_nearest_message(
    peer: Client, clock: ManualClock, after_ms: int, expected: int
) -> None:
    begin_ms = clock.now_ms()
    for _ in range(3):
        await peer.send()
        clock.advance(10_000)
    assert await offset(peer, SEARCH, queue(timestamp=begin_ms + after_ms)) == expected
    assert await offset(peer, SEARCH, queue(timestamp=begin_ms, topic="unknown")) == 0


async def test_messages_by_their_keys(peer: Client, clock: ManualClock) -> None:
    begin_ms = clock.now_ms()
    for number in range(70):
        await peer.send(b"%d" % number, i=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01U{number}")
        clock.advance(1_000)

    async def query(key: str, **changes: object) -> tuple[int, list[bytes]]:
        fields = {
            "topic": "demo",
            "key": key,
            "maxNum": 10,
            "beginTimestamp": 0,
            "endTimestamp": 1 << 62,
            **changes,
        }
        answer = await peer.ask(QUERY_MESSAGE, {n: str(value) for n, value in fields.items()})
        if answer.code == 0:
            assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0
            assert int(answer.fields["indexLastUpdateTimestamp"]) >= begin_ms
        return answer.code, bodies_of(answer)

    assert await query("k7") == (0, [b"7"])
    assert await query("U8") == (0, [b"8"])
    assert len((await query("all"))[1]) == 10
    assert len((await query("all", maxNum=1000))[1]) == 64
    assert len((await query("all", maxNum=1000, _UNIQUE_KEY_QUERY="true"))[1]) == 32
    code, found = await query("all", beginTimestamp=begin_ms, endTimestamp=begin_ms + 2_000)
    assert (code, sorted(found)) == (0, [b"0", b"1", b"2"])
    assert await query("nothing") == (22, [])
    assert await query("k7", topic="other") == (22, [])


async def test_others_are_served_while_a_key_is_searched(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """The keys of 200,000 messages with the hash of another key stopped the broker for 11 s."""
    await peer.send()
    items = encode_batch_item(b"x", b"KEYS\x01Aa") * 10_000
    assert (await peer.ask(SEND_BATCH, send_fields(m="true", i=""), items)).code == 0
    await peer.send(i="KEYS\x01BB")
    fields = {"topic": "demo", "key": "BB", "maxNum": "3"}
    fields |= {"beginTimestamp": "0", "endTimestamp": str(2**62)}
    other = await broker_harness.dial()
    searches = [peer.begin(QUERY_MESSAGE, fields) for _ in range(2)]
    await other.settle()
    assert not any(search.done() for search in searches)
    async with asyncio.timeout(20):
        for search in searches:
            found = await search
            assert len(bodies_of(found)) == 1


async def test_a_message_by_its_offset(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send(b"one")
    answer = await peer.send(b"two")
    position = int(answer.fields["msgId"][16:], 16)
    answer = await peer.ask(VIEW, {"offset": str(position)})
    assert (answer.code, bodies_of(answer)) == (0, [b"two"])
    for wrong in (position + 1, -5, broker_harness.store.end_offset, 1 << 60):
        answer = await peer.ask(VIEW, {"offset": str(wrong)})
        assert (answer.code, answer.remark) == (
            1,
            f"can not find message by the offset, {wrong}",
        )
