"""Pulls: every check of section 2.6 in order, the response to each status, and long polling.

See docs/protocol/rocketmq.md, sections 2.6 and 6.2.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from coherer import limits
from coherer._record.properties import java_hash
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.pulling import PullFilter, PullFilters
from coherer._store import StoreOptions
from coherer._wire.rocketmq.codes import FAQ, RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PullHeader, parse
from coherer.testing import ManualClock
from tests.server.client_harness import consumer, heartbeat, sql, tags
from tests.server.rocket_harness import (
    COMMIT,
    SEND_V2,
    SUBSCRIPTION,
    SUSPEND,
    BrokerHarness,
    Client,
    bodies_of,
    pull_fields,
    records_of,
    running,
    send_fields,
)

FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21


def places(answer: Command) -> tuple[int, int, int]:
    fields = answer.fields
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


async def fill(peer: Client, count: int, *, tag: str = "a", body: bytes = b"x") -> None:
    answers = [
        peer.begin(SEND_V2, send_fields(i=f"TAGS\x01{tag}\x02n\x01{n}"), body + b"%d" % n)
        for n in range(count)
    ]
    async with asyncio.timeout(10):
        assert {(await answer).code for answer in answers} <= {0}


# -- messages found


async def test_messages_are_returned_as_stored(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 3)
    answer = await peer.pull()
    assert (answer.code, answer.remark) == (FOUND, "FOUND")
    assert places(answer) == (3, 0, 3)
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert bodies_of(answer) == [b"x0", b"x1", b"x2"]
    found = broker_harness.store.read("demo", 0, 0, max_bytes=1 << 20, max_count=10)
    assert bytes(answer.body) == b"".join(found.records)


async def test_the_number_of_messages_is_limited_by_the_request(peer: Client) -> None:
    await fill(peer, 10)
    for asked, got in ((4, 4), (32, 10), (0, 1)):
        answer = await peer.pull(maxMsgNums=asked)
        assert len(records_of(answer)) == got
        assert places(answer) == (got, 0, 10)


async def test_the_brokers_own_limits(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock, pull_count_max=8) as harness:
        peer = await harness.dial()
        await fill(peer, 20, body=b"x" * 1000)
        assert len(records_of(await peer.pull(maxMsgNums=1000))) == 8
        harness.change(pull_count_max=1000, pull_bytes_max=2_500)
        assert len(records_of(await peer.pull(maxMsgNums=1000))) == 2
        harness.change(pull_bytes_max=10)
        assert len(records_of(await peer.pull(maxMsgNums=1000))) == 1, "one in any case"


async def test_tags(peer: Client) -> None:
    for tag in ("a", "b", "c", ""):
        await fill(peer, 1, tag=tag)
    for text, got in (("a", 1), ("a || c", 2), ("*", 4), ("", 4), (None, 4), ("d", 0)):
        answer = await peer.pull(subscription=text)
        assert len(records_of(answer)) == got
        assert answer.code == (FOUND if got else RETRY)
        assert places(answer) == (4, 0, 4)
    answer = await peer.pull(subscription="d")
    assert answer.remark == "NO_MATCHED_MESSAGE"


async def test_expressions(peer: Client) -> None:
    await fill(peer, 600)
    answer = await peer.pull(subscription="n >= 598", expressionType="SQL92")
    assert bodies_of(answer) == [b"x598", b"x599"]
    assert places(answer) == (600, 0, 600)
    answer = await peer.pull(subscription="n < 9", expressionType="SQL92", maxMsgNums=4)
    assert bodies_of(answer) == [b"x0", b"x1", b"x2", b"x3"]
    assert places(answer)[0] == 4
    answer = await peer.pull(subscription="n < 0", expressionType="SQL92")
    assert (answer.code, places(answer)[0]) == (RETRY, 600)
    for _ in range(2):  # a wrong one lets everything pass, as Java's brokers do (section 2.6)
        answer = await peer.pull(subscription="n = ", expressionType="SQL92")
        assert len(records_of(answer)) == 32


async def test_filters_of_requests_are_cached_up_to_their_size(
    broker_harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULL_FILTERS_CHARS_CACHED", 200)
    filters, group = PullFilters(broker_harness.state), Group(group_name="g")

    def wanted(tag: str) -> PullFilter:
        return filters.wanted(parse(PullHeader, pull_fields(subscription=tag)), group)

    short = wanted("a")
    assert wanted("a") is short
    assert wanted("b" * 300) is not wanted("b" * 300)
    assert wanted("a") is short
    for letter in "cde":
        wanted(letter * 100)
    assert wanted("a") is not short


async def test_a_long_expression_does_not_stop_the_broker(
    peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of 500 comparisons took half a minute for the messages of one pull."""
    await fill(peer, 300)
    expression = "n = 50 OR n = 177" + " OR n = 999" * 1_000
    monkeypatch.setattr(limits, "SELECTOR_TESTS_CHARS", len(expression) * 20)
    offset, pulls, found = 0, 0, 0
    while offset < 300:
        answer = await peer.pull(
            queueOffset=offset, subscription=expression, expressionType="SQL92"
        )
        assert answer.code in (FOUND, RETRY)
        assert offset < places(answer)[0] <= offset + 20
        found += len(bodies_of(answer))
        offset, pulls = places(answer)[0], pulls + 1
    assert (found, pulls) == (2, 15)


async def test_pulls_are_woken_if_testing_them_would_take_long(
    peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(peer, 1)
    asked = waiting(queueOffset=1, subscription="n = 5", expressionType="SQL92")
    pulls = [peer.begin_pull(**asked) for _ in range(3)]
    await peer.settle()
    monkeypatch.setattr(limits, "SELECTOR_TESTS_CHARS", 0)
    assert (await peer.send(i="n\x014")).code == 0
    async with asyncio.timeout(10):
        answers = [await pull for pull in pulls]
    assert {answer.code for answer in answers} == {RETRY}
    assert {places(answer)[0] for answer in answers} == {2}


async def test_expressions_and_the_limit_of_bytes(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock, pull_bytes_max=2_500) as harness:
        peer = await harness.dial()
        await fill(peer, 6, body=b"x" * 1000)
        answer = await peer.pull(subscription="n > 1", expressionType="SQL92")
        assert [body[1000:] for body in bodies_of(answer)] == [b"2", b"3"]
        assert places(answer)[0] == 4


# -- no messages


@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "remark"),
    [
        (5, NOT_FOUND, 5, "OFFSET_OVERFLOW_ONE"),
        (6, MOVED, 0, "OFFSET_OVERFLOW_BADLY"),
        (-1, MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
async def test_offsets_beside_the_queue(
    peer: Client, offset: int, code: int, next_offset: int, remark: str
) -> None:
    await fill(peer, 5)
    answer = await peer.pull(queueOffset=offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert places(answer) == (next_offset, 0, 5)
    assert not answer.body


@pytest.mark.parametrize(("offset", "code"), [(0, NOT_FOUND), (3, MOVED), (-3, MOVED)])
async def test_a_queue_without_messages(peer: Client, offset: int, code: int) -> None:
    await fill(peer, 1)
    answer = await peer.pull(queueId=1, queueOffset=offset)
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert places(answer) == (0, 0, 0)


async def test_a_queue_that_does_not_begin_at_zero(tmp_path: Path, clock: ManualClock) -> None:
    small = StoreOptions(
        segment_bytes=4096, queue_segment_bytes=200, index_enabled=False, retention_hours=1
    )
    async with running(tmp_path, clock, store_options=small) as harness:
        peer = await harness.dial()
        await fill(peer, 60, body=b"x" * 200)
        clock.advance(2 * 3_600_000)
        await fill(peer, 5, body=b"x" * 200)
        assert harness.store.delete_expired(clock.now_ms()) > 0
        first, end = harness.store.queue_range("demo", 0)
        assert first > 0
        answer = await peer.pull(queueOffset=first - 1)
        assert (answer.code, places(answer)) == (MOVED, (first, first, end))
        answer = await peer.pull(queueOffset=end + 1)
        assert (answer.code, places(answer)) == (MOVED, (end, first, end))


async def test_a_slave_may_only_be_late(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 5)
    broker_harness.change(role="SLAVE")
    for changes in ({"queueOffset": 9}, {"queueOffset": 9, "queueId": 1}, {"queueOffset": -1}):
        answer = await peer.pull(**changes)
        assert (answer.code, places(answer)[0]) == (RETRY, changes["queueOffset"])
    assert broker_harness.records("OFFSET_MOVED_EVENT") == []


async def test_a_message_tells_of_a_moved_offset(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await fill(peer, 5)
    await peer.pull(queueOffset=9)
    await peer.settle()
    [event] = broker_harness.records("OFFSET_MOVED_EVENT")
    assert bytes(event.body) == (
        b'{"consumerGroup":"g","messageQueue":{"brokerName":"broker-a","queueId":0,'
        b'"topic":"demo"},"offsetNew":0,"offsetRequest":9}'
    )
    assert event.properties == b"TAGS\x01g\x02KEYS\x01g"


# -- the checks


async def test_the_checks_in_their_order(broker_harness: BrokerHarness, peer: Client) -> None:
    state = broker_harness.state

    async def refused(code: int, remark: str, **changes: object) -> None:
        answer = await peer.pull(**changes)
        assert (answer.code, answer.remark) == (code, remark)

    broker_harness.change(perm=2, auto_create_groups=False)
    state.topics.put(Topic(name="demo", read_queues=2, write_queues=4, perm=2), 0)
    wrong = {"topic": "none", "queueId": 2, "subscription": "||"}
    await refused(16, "the broker[127.0.0.1] pulling message is forbidden", **wrong)
    broker_harness.change(perm=6)
    await refused(26, f"subscription group [g] does not exist, {FAQ}", **wrong)
    state.groups.put(Group(group_name="g", consume_enable=False), 0)
    await refused(16, "subscription group no permission, g", **wrong)
    state.groups.put(Group(group_name="g", consume_broadcast_enable=False), 0)
    await refused(17, f"topic[none] not exist, apply first please! {FAQ}", **wrong)
    wrong["topic"] = "demo"
    await refused(16, "the topic[demo] pulling message is forbidden", **wrong)
    state.topics.put(Topic(name="demo", read_queues=2, write_queues=4), 0)
    for queue in (-1, 2):
        wrong["queueId"] = queue
        answer = await peer.pull(**wrong)
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith(
            f"queueId[{queue}] is illegal, topic:[demo] topicConfig.readQueueNums:[2] consumer:[/"
        )
    wrong["queueId"] = 1
    await refused(23, "parse the consumer's subscription failed", **wrong)
    await refused(
        23, "parse the consumer's subscription failed", subscription="", expressionType="SQL92"
    )
    broker_harness.change(property_filter=False)
    text = "The broker does not support consumer to filter message by SQL92"
    for _ in range(2):
        await refused(1, text, subscription="a = 1", expressionType="SQL92")
    assert (await peer.pull(queueId=1)).code == NOT_FOUND


async def test_subscriptions_of_the_group(broker_harness: BrokerHarness, peer: Client) -> None:
    for tag in ("a", "b"):
        await fill(peer, 1, tag=tag)
    state = broker_harness.state
    said = {"sysFlag": 0, "subVersion": 5, "subscription": None}

    async def pull() -> tuple[int, str | None]:
        answer = await peer.pull(**said)
        return answer.code, answer.remark

    async def beat(*topics: dict[str, object], **changes: object) -> None:
        data = heartbeat("me", [consumer("g", *topics, **changes)])
        assert (await peer.ask(34, body=msgspec.json.encode(data))).code == 0

    assert await pull() == (24, f"the consumer's group info not exist{FAQ}")
    state.groups.put(Group(group_name="g", consume_broadcast_enable=False), 0)
    await beat(tags("other"), messageModel="BROADCASTING")
    assert await pull() == (16, "the consumer group[g] can not consume by broadcast way")
    await beat(tags("other"))
    assert await pull() == (24, f"the consumer's subscription not exist{FAQ}")
    await beat(tags("demo", 4))
    assert await pull() == (25, "the consumer's subscription not latest")
    await beat(tags("demo", 5, subString="b", tagsSet=["b"], codeSet=[java_hash("b")]))
    assert await pull() == (0, "FOUND")
    assert len(records_of(await peer.pull(**said))) == 1
    await beat(sql("demo", "n = ", 6))
    assert (await pull())[0] == 27
    await beat(sql("demo", "n = 0", 7))
    assert len(records_of(await peer.pull(**said))) == 2
    await beat(sql("demo", "TAGS = 'b'", 8))
    assert len(records_of(await peer.pull(**said))) == 1
    broker_harness.change(property_filter=False)
    assert (await pull())[0] == 1


async def test_an_invalid_pull(peer: Client) -> None:
    for name in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"):
        answer = await peer.pull(**{name: None})
        assert answer.code == 1
        assert answer.remark is not None
        assert "NullPointerException" in answer.remark


@pytest.mark.parametrize("offset", [None, "", "x"])
async def test_a_pull_without_the_offset_that_it_announces_stores_none(
    broker_harness: BrokerHarness, peer: Client, offset: str | None
) -> None:
    await fill(peer, 3)
    await peer.pull(commitOffset=2, sysFlag=COMMIT | SUBSCRIPTION)
    answer = await peer.pull(commitOffset=offset, sysFlag=COMMIT | SUBSCRIPTION)
    assert answer.code == 1
    position = broker_harness.core.offsets.find("g", "demo", 0)
    assert position is not None
    assert position.offset == 2
    # The field is optional without the flag; so is the time to wait.
    assert (await peer.pull(commitOffset=offset, suspendTimeoutMillis=offset)).code == 0
    flags = SUSPEND | SUBSCRIPTION
    assert (await peer.pull(suspendTimeoutMillis=offset, sysFlag=flags)).code == 1


async def test_a_negative_number_of_messages(peer: Client) -> None:
    await fill(peer, 1)
    assert (await peer.pull(maxMsgNums=-1)).code == 1
    asked = {"topic": "demo", "key": "0F", "beginTimestamp": "0", "endTimestamp": "9"}
    assert (await peer.ask(12, {**asked, "maxNum": "-1"})).code == 1
    assert (await peer.ask(12, {**asked, "maxNum": "1"})).code == 22


async def test_redelivered_messages_pass_the_filter_of_their_topic(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    retry = "%RETRY%g"
    wanted = [sql("demo", "n > 1", 1), tags(retry, 1)]  # as from Java's clients
    assert (
        await peer.ask(34, body=msgspec.json.encode(heartbeat("me", [consumer("g", *wanted)])))
    ).code == 0
    for body, text in (
        (b"other", "n\x010\x02RETRY_TOPIC\x01other"),
        (b"small", "n\x010\x02RETRY_TOPIC\x01demo"),
        (b"large", "n\x012\x02RETRY_TOPIC\x01demo\x02TAGS\x01a"),
    ):
        await peer.send(body, b=retry, i=text)
    of_group = {"topic": retry, "sysFlag": 0, "subVersion": 1, "subscription": None}
    by_text = {"topic": retry, "subscription": "n < 1", "expressionType": "SQL92"}
    assert bodies_of(await peer.pull(**of_group)) == [b"other", b"small", b"large"]
    assert bodies_of(await peer.pull(**by_text)) == [b"other", b"small"]
    broker_harness.change(filter_retries=True)
    assert bodies_of(await peer.pull(**of_group)) == [b"other", b"large"]
    assert bodies_of(await peer.pull(**by_text)) == [b"other", b"large"]
    assert bodies_of(await peer.pull(topic=retry, subscription="a")) == [b"large"]


async def test_a_filter_class_filters_nothing_here(peer: Client) -> None:
    await fill(peer, 2)
    data = heartbeat(
        "me", [consumer("g", tags("demo", subString="x.Filter", classFilterMode=True))]
    )
    assert (await peer.ask(34, body=msgspec.json.encode(data))).code == 0
    answer = await peer.pull(sysFlag=0, subVersion=1, subscription=None)
    assert len(records_of(answer)) == 2


async def test_a_pull_can_commit_an_offset(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 3)
    await peer.pull(commitOffset=2)
    assert broker_harness.core.offsets.find("g", "demo", 0) is None
    await peer.pull(commitOffset=2, sysFlag=COMMIT | SUBSCRIPTION)
    position = broker_harness.core.offsets.find("g", "demo", 0)
    assert position is not None
    assert position.offset == 2
    flags = COMMIT | SUBSCRIPTION | SUSPEND
    waits = peer.begin_pull(commitOffset=3, queueOffset=3, sysFlag=flags)
    await peer.settle()
    assert (position.offset, waits.done()) == (3, False)
    broker_harness.change(role="SLAVE")
    await peer.pull(commitOffset=1, sysFlag=COMMIT | SUBSCRIPTION)
    assert position.offset == 3


async def test_a_lagging_consumer_is_redirected_to_a_slave(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await fill(peer, 100, body=b"x" * 1000)
    broker_harness.change(slave_reads=True)
    assert (await peer.pull()).fields["suggestWhichBrokerId"] == "0"
    broker_harness.state.memory_bytes = 1_000
    assert (await peer.pull()).fields["suggestWhichBrokerId"] == "1"
    assert (await peer.pull(queueOffset=99)).fields["suggestWhichBrokerId"] == "0"


# -- waiting


def waiting(**changes: object) -> dict[str, object]:
    return {"sysFlag": SUSPEND | SUBSCRIPTION, **changes}


async def test_a_pull_waits_for_a_message(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 1)
    first = peer.begin_pull(**waiting(queueOffset=1))
    empty = peer.begin_pull(**waiting(queueId=1))
    other = await broker_harness.dial()
    await peer.settle()
    assert len(broker_harness.broker.pulls.suspended) == 2
    await fill(other, 1, body=b"new")
    async with asyncio.timeout(10):
        answer = await first
    assert bodies_of(answer) == [b"new0"]
    assert not empty.done()
    await other.send(b"there", e=1)
    async with asyncio.timeout(10):
        assert bodies_of(await empty) == [b"there"]
    assert len(broker_harness.broker.pulls.suspended) == 0


async def test_only_messages_that_are_wanted_wake(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await fill(peer, 1)
    tagged = peer.begin_pull(**waiting(queueOffset=1, subscription="b"))
    tested = peer.begin_pull(**waiting(queueOffset=1, subscription="n > 3", expressionType="SQL92"))
    await fill(peer, 2, tag="a")
    await peer.settle()
    assert not tagged.done()
    assert not tested.done()
    await fill(peer, 5, tag="b")
    async with asyncio.timeout(10):
        answer = await tagged
        assert (len(records_of(answer)), places(answer)[0]) == (5, 8)
        answer = await tested
        assert (len(records_of(answer)), places(answer)[0]) == (1, 8)


async def test_a_pull_waits_so_long_as_it_says(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1, suspendTimeoutMillis=2_000))
    longer = peer.begin_pull(**waiting(queueOffset=1, subscription="b"))
    await fill(peer, 1, tag="a")
    async with asyncio.timeout(10):
        assert bodies_of(await waits) == [b"x0"]
    clock.advance(14_999)
    broker_harness.broker.tick()
    await peer.settle()
    assert not longer.done()
    clock.advance(1)
    broker_harness.broker.tick()
    async with asyncio.timeout(10):
        answer = await longer
    assert (answer.code, places(answer)) == (RETRY, (2, 0, 2)), "it was read again"


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_setting_the_clock_does_not_affect_suspended_pulls(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock, by_ms: int
) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1, suspendTimeoutMillis=20_000))
    await peer.settle()
    clock.turn(by_ms)
    clock.advance(19_999)
    broker_harness.broker.tick()
    await peer.settle()
    assert not waits.done()
    clock.advance(1)
    broker_harness.broker.tick()
    async with asyncio.timeout(10):
        assert (await waits).code == NOT_FOUND


async def test_a_pull_that_has_waited_does_not_bring_its_group_back(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1, suspendTimeoutMillis=2_000))
    woken = peer.begin_pull(**waiting(queueId=1, suspendTimeoutMillis=60_000))
    await peer.settle()
    deleted = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert deleted.code == 0
    clock.advance(2_000)
    broker_harness.broker.tick()
    await peer.send(b"there", e=1)
    async with asyncio.timeout(10):
        for answer in (await waits, await woken):
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker_harness.state.groups.get("g") is None


async def test_nothing_after_all(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1, suspendTimeoutMillis=2_000))
    await peer.settle()
    broker_harness.change(long_polling=False)
    short = peer.begin_pull(**waiting(queueOffset=1))
    await peer.settle()
    clock.advance(1_000)
    broker_harness.broker.tick()
    async with asyncio.timeout(10):
        answer = await short
    assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert not waits.done()


async def test_a_closed_connection_has_no_suspended_pulls(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await fill(peer, 1)
    other = await broker_harness.dial()
    other.begin_pull(**waiting(queueOffset=1))
    waits = peer.begin_pull(**waiting(queueOffset=1))
    await other.settle()
    await other.hang_up()
    await peer.settle()
    assert len(broker_harness.broker.pulls.suspended) == 1
    await fill(peer, 1)
    async with asyncio.timeout(10):
        assert (await waits).code == FOUND


async def test_a_waiting_pull_is_checked_again(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1))
    await peer.settle()
    broker_harness.state.groups.put(Group(group_name="g", consume_enable=False), 0)
    await fill(peer, 1)
    async with asyncio.timeout(10):
        assert (await waits).code == 16


async def test_half_messages_resume_no_pulls(broker_harness: BrokerHarness, peer: Client) -> None:
    await fill(peer, 1)
    waits = peer.begin_pull(**waiting(queueOffset=1))
    await peer.send(b"maybe", f=4)  # a client's own: it is in no queue (section 6.2)
    await peer.settle()
    assert not waits.done()
    await fill(peer, 1)
    async with asyncio.timeout(10):
        assert places(await waits) == (2, 0, 2)
