"""What an account may reach with its permissions, request by request.

`mine` is allowed to the account, `secret` is not. The group `readers` is, `others` is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from coherer._record.ids import encode_offset_id
from coherer._record.properties import encode
from coherer._rules.rocketmq.delays import delayed
from coherer._rules.rocketmq.transactions import half
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.namesrv.nameserver import NameServer
from coherer._server.rocketmq.namesrv.settings import NameServerOptions
from coherer._server.rocketmq.permissions import NEEDED, check_complete
from coherer._store import AppendResult, Draft
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.acl import signer
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer.testing import ManualClock
from tests.private import write_private
from tests.server.client_harness import consumer, heartbeat, tags
from tests.server.rocket_harness import (
    BrokerHarness,
    Client,
    long_fields,
    pull_fields,
    running,
    send_fields,
)
from tests.waiting import until

FILE = """\
accounts:
- accessKey: account-1
  secretKey: account-secret
  defaultTopicPerm: DENY
  topicPerms: [mine=PUB|SUB, read=SUB]
  groupPerms: [readers=SUB, more=SUB]
- accessKey: stranger
  secretKey: stranger-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [secret=DENY]
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""
ACCOUNT, STRANGER = ("account-1", "account-secret"), ("stranger", "stranger-secret")
OPERATOR = ("operator", "operator-secret")
REPLIES = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
async def harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[BrokerHarness]:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    write_private(conf / "plain_acl.yml", FILE)
    access = Access(conf.parent, clock.now_ms())
    async with running(tmp_path / "store", clock, access=access) as harness:
        for topic in ("mine", "read", "secret"):
            harness.state.topics.create_for_send(topic, "TBW102", 4, 0, 0, auto_create=True)
        await harness.core.files.flush()
        yield harness


class Signed:
    """A client that signs with an account."""

    def __init__(self, client: Client, account: tuple[str, str]) -> None:
        self.client = client
        self._sign = signer(*account)

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        return await self.client.ask(code, self._sign(fields or {}, body), body)

    async def fault(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> str:
        """The missing permission; "" if the request was not refused for lack of one."""
        found = (await self.ask(code, fields, body)).remark or ""
        return found.partition("AclException: ")[2]

    async def beat(self, name: str, consumers: dict[str, list[str]], *producers: str) -> None:
        data = heartbeat(
            name, [consumer(group, *map(tags, of)) for group, of in consumers.items()], *producers
        )
        answer = await self.ask(Code.HEART_BEAT, body=msgspec.json.encode(data))
        assert answer.code == 0, answer.remark


async def signed(harness: BrokerHarness, account: tuple[str, str] = ACCOUNT) -> Signed:
    return Signed(await harness.dial(), account)


def stored(harness: BrokerHarness, topic: str, **properties: str) -> AppendResult:
    return harness.store.append([Draft(topic, 0, topic.encode(), encode(properties))])[0]


def message_id(harness: BrokerHarness, placed: AppendResult) -> str:
    return encode_offset_id(harness.state.options.store_host, placed.physical_offset)


def no_topic(topic: str) -> str:
    return f"No default permission for topic:{topic}"


def no_group(group: str) -> str:
    return f"No default permission for group:{group}"


async def test_the_table_has_every_code_that_is_served(
    broker_harness: BrokerHarness, tmp_path: Path
) -> None:
    options = NameServerOptions(port=9876, directory=str(tmp_path))
    files = DeferredSaver(lambda *_: None)
    names = NameServer(options, lambda _: None, files, now_ms=lambda: 0)
    served = broker_harness.broker.codes | names.handlers.keys()
    assert set(map(int, NEEDED)) == served
    with pytest.raises(RuntimeError, match="9999"):
        check_complete([*served, 9999])


@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
async def test_replies(harness: BrokerHarness, code: int) -> None:
    fields = long_fields if code == Code.SEND_REPLY_MESSAGE else send_fields
    client = await signed(harness)
    assert await client.fault(code, fields(b="secret"), b"x") == no_topic("secret")
    assert await client.fault(code, fields(b="fresh"), b"x") == no_topic("fresh")
    assert harness.records("secret") == []
    assert harness.state.topics.get("fresh") is None, "nor is the topic created"
    for topic in (REPLIES, "mine"):
        assert await client.fault(code, fields(b=topic), b"x") == ""
        assert len(harness.records(topic)) == 1


async def test_messages_that_are_sent_back(harness: BrokerHarness) -> None:
    client = await signed(harness)
    placed = stored(harness, "secret", REAL_TOPIC="mine")
    fields = {
        "offset": str(placed.physical_offset),
        "group": "readers",
        "delayLevel": "-1",
        "originTopic": "mine",
    }
    assert await client.fault(Code.CONSUMER_SEND_MSG_BACK, fields) == no_topic("secret")
    waiting = harness.store.append([delayed(Draft("secret", 0, b"", b""), 1)])[0]
    fields["offset"] = str(waiting.physical_offset)
    assert (await client.ask(Code.CONSUMER_SEND_MSG_BACK, fields)).code == 1
    assert harness.records("%DLQ%readers") == []
    for topic in ("mine", "%RETRY%readers"):
        offset = str(stored(harness, topic, REAL_TOPIC="secret").physical_offset)
        answer = await client.ask(Code.CONSUMER_SEND_MSG_BACK, {**fields, "offset": offset})
        assert answer.code == 0, answer.remark
    assert len(harness.records("%DLQ%readers")) == 2


async def test_reading_a_message_by_id(harness: BrokerHarness) -> None:
    client = await signed(harness)
    code = Code.VIEW_MESSAGE_BY_ID
    placed = stored(harness, "secret", REAL_TOPIC="mine")
    fields = {"offset": str(placed.physical_offset)}
    assert await client.fault(code, fields) == no_topic("secret"), "the property is its sender's"
    placed = harness.store.append([delayed(Draft("mine", 0, b"", b""), 1)])[0]
    assert (await client.ask(code, {"offset": str(placed.physical_offset)})).code == 0


async def test_keys_with_the_hash_of_another_topics_key(harness: BrokerHarness) -> None:
    # "secret#Aa" and "secret#BB" have one hash; so have these two, of two topics.
    topics = ("mineAa", "mineBB")
    for topic in topics:
        draft = Draft(topic, 0, topic.encode(), encode({"KEYS": "k"}), keys=("k",))
        harness.store.append([draft])
    client = await signed(harness, OPERATOR)
    for topic in topics:
        fields = {"topic": topic, "key": "k", "maxNum": "10"}
        fields |= {"beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        answer = await client.ask(Code.QUERY_MESSAGE, fields)
        other = topics[topic == topics[0]].encode()
        assert topic.encode() in bytes(answer.body)
        assert other not in bytes(answer.body)


async def test_handing_a_message_to_a_consumer(harness: BrokerHarness) -> None:
    client, joined = await signed(harness), await signed(harness, STRANGER)
    await client.beat("honest", {"readers": ["mine"]})
    await joined.beat("intruder", {"readers": ["mine"]})
    secret, mine = (message_id(harness, stored(harness, topic)) for topic in ("secret", "mine"))
    fields = {"consumerGroup": "readers", "clientId": "honest", "msgId": secret}
    assert await client.fault(Code.CONSUME_MESSAGE_DIRECTLY, fields) == no_topic("secret")
    operator = await signed(harness, OPERATOR)
    for name in ("honest", "intruder"):
        refused = await operator.ask(Code.CONSUME_MESSAGE_DIRECTLY, {**fields, "clientId": name})
        assert refused.remark == f"The Consumer <readers> <{name}> may not read topic secret"
    pending = client.client.begin(
        Code.CONSUME_MESSAGE_DIRECTLY, signer(*ACCOUNT)({**fields, "msgId": mine}, b"")
    )
    while (asked := await client.client.next_asked()).code != Code.CONSUME_MESSAGE_DIRECTLY:
        assert asked.code == Code.NOTIFY_CONSUMER_IDS_CHANGED
    assert b"mine" in bytes(asked.body)
    client.client.answer(asked)
    assert (await pending).code == 0


async def test_checks_of_transactions_go_to_producers_that_may_send(
    harness: BrokerHarness, clock: ManualClock
) -> None:
    intruder, honest = await signed(harness, STRANGER), await signed(harness, OPERATOR)
    text = encode({"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": "0A"})
    harness.store.append([half(Draft("secret", 0, b"money", text, born_ms=clock.wall_ms()))])

    async def check() -> None:
        clock.advance(130_000)
        for _ in range(3):
            harness.broker.transactions.tick()
            await harness.core.appender.close()

    await intruder.beat("intruder", {}, "payers")
    await check()
    await honest.beat("honest", {}, "payers")
    await check()
    assert (await honest.client.next_asked()).code == Code.CHECK_TRANSACTION_STATE
    assert (await intruder.ask(999_999)).code == 3, "all that it was sent before has arrived"
    assert intruder.client.asked.empty()


async def test_replies_do_not_go_to_a_client_of_another_account_with_the_same_id(
    harness: BrokerHarness,
) -> None:
    """Every account may learn the ids of producers (328)."""
    honest, intruder = await signed(harness), await signed(harness, STRANGER)
    await honest.beat("asker@1", {}, "askers")
    body = msgspec.json.encode(heartbeat("asker@1", None, "thieves"))
    refused = await intruder.ask(Code.HEART_BEAT, body=body)
    assert refused.code == 1
    assert "another account" in str(refused.remark)
    assert harness.state.producers.members("thieves") is None
    again = await signed(harness)
    await again.beat("asker@1", {}, "askers")  # a connection that broke unnoticed
    await honest.client.hang_up()
    await again.client.hang_up()
    await until(lambda: harness.state.producers.find("asker@1") is None)
    await intruder.beat("asker@1", {}, "thieves")


async def test_positions_in_topics_that_a_request_does_not_name(harness: BrokerHarness) -> None:
    client, offsets = await signed(harness), harness.state.offsets
    offsets.open("more", "mine", 0).move_to(5)
    fields = {"srcGroup": "more", "destGroup": "readers", "topic": "", "offline": "true"}
    offsets.open("more", "secret", 0).move_to(7)
    for named in (fields, {k: v for k, v in fields.items() if k != "topic"}):
        assert "topic:" in await client.fault(Code.CLONE_GROUP_OFFSET, named)
        assert offsets.topics_of("readers") == []
    offsets.remove("more", frozenset(["secret"]))
    del fields["topic"]
    assert (await client.ask(Code.CLONE_GROUP_OFFSET, fields)).code == 0
    assert offsets.topics_of("readers") == ["mine"]


@pytest.mark.parametrize("code", [Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ])
async def test_locks(harness: BrokerHarness, code: int) -> None:
    def body(group: str, *topics: str) -> bytes:
        queues = [Queue(topic, "broker-a", 0) for topic in topics]
        return bodies.LockBatch(consumer_group=group, client_id="me", queues=queues).encode()

    client = await signed(harness)
    assert await client.fault(code, body=body("others", "mine")) == no_group("others")
    assert await client.fault(code, body=body("readers", "mine", "secret")) == no_topic("secret")
    assert (await client.ask(code, body=body("readers", "mine", "%RETRY%readers"))).code == 0


@pytest.mark.parametrize(
    ("code", "fields", "topic", "group"),
    [
        (Code.QUERY_CONSUMER_OFFSET, {"queueId": "0", "consumerGroup": "any"}, "topic", ""),
        (Code.UPDATE_CONSUMER_OFFSET, {"queueId": "0"}, "topic", "consumerGroup"),
        (Code.SEARCH_OFFSET_BY_TIMESTAMP, {"queueId": "0", "timestamp": "0"}, "topic", ""),
        (Code.GET_MAX_OFFSET, {"queueId": "0"}, "topic", ""),
        (Code.GET_MIN_OFFSET, {"queueId": "0"}, "topic", ""),
        (Code.GET_EARLIEST_MSG_STORETIME, {"queueId": "0"}, "topic", ""),
        (Code.QUERY_CONSUME_QUEUE, {"queueId": "0"}, "topic", ""),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, {}, "topic", "group"),
        (Code.QUERY_CORRECTION_OFFSET, {}, "topic", "compareGroup"),
        (Code.CLONE_GROUP_OFFSET, {"srcGroup": "readers"}, "topic", "destGroup"),
        (Code.CLONE_GROUP_OFFSET, {"destGroup": "readers"}, "topic", "srcGroup"),
        (Code.UNREGISTER_CLIENT, {}, "", "consumerGroup"),
        (Code.GET_CONSUMER_LIST_BY_GROUP, {}, "", "consumerGroup"),
        (Code.GET_CONSUMER_CONNECTION_LIST, {}, "", "consumerGroup"),
        (Code.QUERY_TOPIC_CONSUME_BY_WHO, {}, "topic", ""),
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {}, "topic", "group"),
        (Code.GET_CONSUMER_RUNNING_INFO, {}, "", "consumerGroup"),
        (Code.GET_TOPIC_CONFIG, {}, "topic", ""),
        (Code.GET_TOPIC_STATS_INFO, {}, "topic", ""),
        (Code.GET_CONSUME_STATS, {}, "topic", "consumerGroup"),
        (Code.QUERY_CONSUME_TIME_SPAN, {}, "topic", "group"),
    ],
)
async def test_what_a_request_names(
    harness: BrokerHarness, code: int, fields: dict[str, str], topic: str, group: str
) -> None:
    client = await signed(harness)
    allowed = {**fields}
    allowed |= ({topic: "mine"} if topic else {}) | ({group: "more"} if group else {})
    assert await client.fault(code, allowed) == ""
    if topic:
        assert await client.fault(code, {**allowed, topic: "secret"}) == no_topic("secret")
    if group:
        assert await client.fault(code, {**allowed, group: "others"}) == no_group("others")


@pytest.mark.parametrize(
    "code",
    [
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC,
        Code.RESUME_CHECK_HALF_MESSAGE,
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    ],
)
async def test_changes_for_others_need_an_administrator(harness: BrokerHarness, code: int) -> None:
    client, operator = await signed(harness), await signed(harness, OPERATOR)
    assert "Need admin permission" in await client.fault(code)
    assert await operator.fault(code) == ""


async def test_each_of_two_needs_of_one_name_counts(harness: BrokerHarness) -> None:
    """A topic may be named like the retry topic of a group that the same request names."""
    fields = {"offset": "0", "group": "readers", "delayLevel": "0"}
    fields["originTopic"] = "%RETRY%readers"
    client = await signed(harness)
    assert await client.fault(Code.CONSUMER_SEND_MSG_BACK, fields) == no_group("readers")


async def test_a_default_does_not_open_topics_that_hold_messages_of_others(
    harness: BrokerHarness,
) -> None:
    harness.store.append([delayed(Draft("secret", 0, b"secret", b""), 1)])
    stranger = await signed(harness, STRANGER)
    fields = pull_fields(topic="SCHEDULE_TOPIC_XXXX", consumerGroup="any")
    fault = await stranger.fault(Code.PULL_MESSAGE, fields)
    assert fault == no_topic("SCHEDULE_TOPIC_XXXX")
