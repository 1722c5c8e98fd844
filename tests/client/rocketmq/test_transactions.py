from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from coherer._client.rocketmq import transactions
from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.transactions import Verdict
from coherer._record import layout
from coherer._record import properties as text
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.headers import CheckTransactionHeader, EndTransactionHeader, parse
from coherer.errors import CohererError, RefusedError, RequestTimeoutError, UsageError
from coherer.message import Message

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION


def unknown(message) -> Verdict:
    del message
    return Verdict.UNKNOWN


def ends(cluster) -> list[EndTransactionHeader]:
    return [parse(EndTransactionHeader, asked.fields) for asked in cluster.asked(END)]


async def test_a_transaction_is_committed(cluster, client: Client) -> None:
    async with client.producer("demo", group="banks", check=unknown) as producer:
        async with producer.transaction(Message("demo", b"x")) as transaction:
            assert not cluster.asked(END)
            [half] = cluster.asked(SEND)
            assert transaction.receipt is not None
        assert transaction.verdict is Verdict.COMMIT
    assert half.send.sys_flag == 4
    properties = text.decode(half.send.properties.encode())
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "banks")
    assert properties["UNIQ_KEY"] == transaction.id
    [end] = ends(cluster)
    assert (end.producer_group, end.commit_or_rollback) == ("banks", 8)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (0, 1)
    assert (end.msg_id, end.from_transaction_check) == (transaction.id, False)


async def test_a_transaction_is_rolled_back(cluster, client: Client) -> None:
    async with client.producer("demo", check=unknown) as producer:
        async with producer.transaction(Message("demo", b"x")) as transaction:
            await transaction.rollback()
        with pytest.raises(UsageError, match="ended"):
            await transaction.commit()
    assert [end.commit_or_rollback for end in ends(cluster)] == [12]


async def test_an_exception_leaves_the_end_open(cluster, client: Client) -> None:
    async with client.producer("demo", check=unknown) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("demo", b"x")) as transaction:
                1 / 0  # noqa: B018
        await cluster.until(lambda: cluster.asked(END))
    assert transaction.verdict is Verdict.UNKNOWN
    assert cluster.asked(END)[0].request.is_oneway
    assert [end.commit_or_rollback for end in ends(cluster)] == [0]


async def test_an_exception_is_not_hidden_by_a_broker_that_has_gone(cluster, client) -> None:
    async with client.producer("demo", check=unknown) as producer:
        transaction = producer.transaction(Message("demo", b"x"))

        async def work() -> None:
            async with transaction:
                await cluster.brokers["broker-a"].listener.close()
                1 / 0  # noqa: B018

        with pytest.raises(ZeroDivisionError):
            await work()


async def test_a_commit_that_is_refused(cluster, kit, client: Client) -> None:
    cluster.script(END, kit.refuse(1, "Find prepared transaction message failed"))
    async with client.producer("demo", check=unknown) as producer:
        transaction = producer.transaction(Message("demo", b"x"))
        with pytest.raises(UsageError, match="begun"):
            _ = transaction.id
        await transaction.begin()
        with pytest.raises(RefusedError, match="prepared"):
            await transaction.commit()


async def test_a_half_message_that_is_not_safely_stored(cluster, client: Client) -> None:
    fields = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "5"}
    cluster.script(SEND, lambda asked: asked.answer(12, None, fields))
    async with client.producer("demo", check=unknown) as producer:
        with pytest.raises(RefusedError, match="FLUSH_SLAVE_TIMEOUT"):
            async with producer.transaction(Message("demo", b"x")):
                pytest.fail("the block must not run")
    assert [end.commit_or_rollback for end in ends(cluster)] == [12]


async def test_a_transaction_needs_a_check(client: Client) -> None:
    async with client.producer("demo") as producer:
        with pytest.raises(UsageError, match="check function"):
            producer.transaction(Message("demo", b"x"))


def ask_about(cluster, group: str = "banks", unique_id: str = "0A0B") -> None:
    record = layout.encode(
        "demo",
        b"x",
        text.encode({"UNIQ_KEY": unique_id, "PGROUP": group, "TRAN_MSG": "true"}),
        queue_id=2,
        queue_offset=5,
        physical_offset=77,
        store_ms=0,
    )
    header = CheckTransactionHeader(5, 77, unique_id, unique_id, "7F00")
    cluster.channel().notify(RequestCode.CHECK_TRANSACTION_STATE, header.fields(), record)


async def verdict(message) -> Verdict:
    assert (message.body, message.unique_id) == (b"x", "0A0B")
    return Verdict.ROLLBACK


def failing(message) -> Verdict:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("check", "number", "remark"),
    [
        (lambda message: Verdict.COMMIT, 8, None),
        (verdict, 12, None),
        (failing, 0, "checkLocalTransactionState Exception: no idea"),
        (
            lambda message: True,
            0,
            (
                "checkLocalTransactionState Exception: "
                "The check function returned True, not a Verdict."
            ),
        ),
    ],
)
async def test_a_transaction_check(cluster, client: Client, check, number, remark) -> None:
    async with client.producer("demo", group="banks", check=check) as producer:
        await producer.send(Message("demo", b"x"))
        ask_about(cluster)
        await cluster.until(lambda: cluster.asked(END))
    [asked] = cluster.asked(END)
    assert asked.request.is_oneway
    assert asked.request.remark == remark
    [end] = ends(cluster)
    assert end == EndTransactionHeader("banks", 5, 77, number, True, "0A0B", "0A0B")


async def test_an_end_that_was_accepted_is_repeated(
    cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDED_KEPT", 1)
    asked: list[str] = []

    def check(message) -> Verdict:
        asked.append(message.unique_id)
        return Verdict.UNKNOWN

    async with client.producer("demo", group="banks", check=check) as producer:
        first, second = (producer.transaction(Message("demo", b"x")) for _ in range(2))
        await first.begin()
        await first.commit()
        await second.begin()
        await second.rollback()
        for transaction in (first, second):
            ask_about(cluster, unique_id=transaction.id)
        await cluster.until(lambda: len(cluster.asked(END)) == 4)
    verdicts = {end.msg_id: end.commit_or_rollback for end in ends(cluster)[2:]}
    assert verdicts == {first.id: 0, second.id: 12}
    assert asked == [first.id]  # the older one is forgotten


async def test_an_end_that_was_not_accepted_is_left_to_the_check(
    cluster, kit, client: Client
) -> None:
    cluster.script(END, kit.refuse(1))
    async with client.producer("demo", group="banks", check=verdict_of_x) as producer:
        transaction = producer.transaction(Message("demo", b"x"))
        await transaction.begin()
        with pytest.raises(RefusedError):
            await transaction.commit()
        ask_about(cluster, unique_id=transaction.id)
        await cluster.until(lambda: len(cluster.asked(END)) == 2)
    assert ends(cluster)[1].commit_or_rollback == 12


def verdict_of_x(message) -> Verdict:
    assert message.body == b"x"
    return Verdict.ROLLBACK


async def test_a_transaction_check_of_another_group(cluster, client: Client, caplog) -> None:
    async with client.producer("demo", group="banks", check=unknown) as producer:
        await producer.send(Message("demo", b"x"))
        ask_about(cluster, "shops")
        ask_about(cluster)
        await cluster.until(lambda: cluster.asked(END))
    assert [end.producer_group for end in ends(cluster)] == ["banks"]
    assert "group shops" in caplog.text


async def test_a_request_and_its_reply(cluster, client: Client) -> None:
    async with client.producer("demo", group="askers") as producer:

        def reply(asked) -> None:
            cluster.default(asked)
            stored = text.decode(asked.send.properties.encode())
            assert stored["TTL"] == "1000"
            assert stored["REPLY_TO_CLIENT"] == cluster.heartbeat().client_id
            carried = f"CORRELATION_ID\x01{stored['CORRELATION_ID']}\x02MSG_TYPE\x01reply"
            fields = {
                "producerGroup": "g",
                "topic": "cluster_REPLY_TOPIC",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4",
                "queueId": "0",
                "sysFlag": "0",
                "bornTimestamp": "1650000000000",
                "flag": "0",
                "properties": carried,
                "bornHost": "/127.0.0.1:1",
                "storeHost": "/127.0.0.1:2",
            }
            answers.append(asyncio.ensure_future(asked.channel.call(326, fields, b"pong")))

        answers: list = []
        cluster.script(SEND, reply)
        message = await producer.request(Message("demo", b"ping"), timeout_ms=1_000)
        assert message.body == b"pong"
        assert message.born_ms == 1650000000000
        assert (await answers[0]).code == 0


async def test_a_reply(cluster, client: Client) -> None:
    cluster.topics["cluster_REPLY_TOPIC"] = 1
    record = layout.encode(
        "demo",
        b"x",
        text.encode(
            {"CLUSTER": "cluster", "REPLY_TO_CLIENT": "me@1", "CORRELATION_ID": "7", "TTL": "9"}
        ),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_ms=0,
    )
    from coherer._wire.rocketmq.delivery import decode_messages

    [request] = decode_messages(record, "broker-a")
    async with client.producer("demo") as producer:
        await producer.reply(request, b"pong")
        with pytest.raises(UsageError, match="not a request"):
            await producer.reply(
                decode_messages(
                    layout.encode(
                        "demo",
                        b"x",
                        b"",
                        queue_id=0,
                        queue_offset=0,
                        physical_offset=0,
                        store_ms=0,
                    )
                )[0],
                b"pong",
            )
    [asked] = cluster.asked(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert asked.send.topic == "cluster_REPLY_TOPIC"
    stored = text.decode(asked.send.properties.encode())
    del stored["UNIQ_KEY"]
    assert stored == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "me@1",
        "TTL": "9",
    }


def replied(cluster: Any, answers: list[Any], body: bytes, **changed: str | None) -> Any:
    """The broker answers a request with a reply; None leaves a field out."""

    def reply(asked: Any) -> None:
        stored = text.decode(asked.send.properties.encode())
        fields = {
            "producerGroup": "answerers",
            "topic": "cluster_REPLY_TOPIC",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "1",
            "bornTimestamp": "1650000000000",
            "flag": "0",
            "properties": text.encode({"CORRELATION_ID": stored["CORRELATION_ID"]}).decode(),
            "bornHost": "/127.0.0.1:1",
            "storeHost": "/127.0.0.1:2",
            **changed,
        }
        cluster.default(asked)
        told = {name: value for name, value in fields.items() if value is not None}
        answers.append(asyncio.ensure_future(asked.channel.call(326, told, body)))

    return reply


@pytest.mark.parametrize(
    "body", [b"pong", b"", b"x\x9cpong", zlib.compress(b"pong" * 99)[:-5], zlib.compress(b"pong")]
)
async def test_a_reply_with_a_wrong_compression_flag(cluster, client: Client, body: bytes) -> None:
    answers: list[Any] = []
    cluster.script(SEND, replied(cluster, answers, body))
    async with client.producer("demo") as producer:
        message = await producer.request(Message("demo", b"ping"), timeout_ms=5_000)
    assert message.body == (b"pong" if body == zlib.compress(b"pong") else body)
    assert (await answers[0]).code == 0


@pytest.mark.parametrize(
    ("body", "changed", "why"),
    [
        (zlib.compress(bytes(17 << 20)), {}, "exceeds"),
        (b"pong", {"bornTimestamp": None}, "bornTimestamp"),
        (b"pong", {"queueId": "x"}, "queueId"),
    ],
)
async def test_an_invalid_reply_fails_the_request_at_once(
    cluster, client: Client, body: bytes, changed: dict[str, str | None], why: str
) -> None:
    answers: list[Any] = []
    cluster.script(SEND, replied(cluster, answers, body, **changed))
    async with client.producer("demo") as producer, asyncio.timeout(10):
        with pytest.raises(CohererError, match=why) as raised:
            await producer.request(Message("demo", b"ping"), timeout_ms=60_000)
    assert not isinstance(raised.value, RequestTimeoutError)
    assert (await answers[0]).code == 1


async def test_no_reply(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        with pytest.raises(RequestTimeoutError, match="No reply"):
            await producer.request(Message("demo", b"ping"), timeout_ms=30)
