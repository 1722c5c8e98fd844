from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import coherer
from coherer._client.rocketmq.client import Client
from coherer._net import TlsOptions
from coherer._record import layout
from coherer._record.properties import encode
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.delivery import decode_messages
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError, UsageError
from coherer.rocketmq import ConnectKeywords as RocketmqKeywords
from coherer.rocketmq import connect as connect_rocketmq
from coherer.tubemq import connect as connect_tubemq

MIN, MAX = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET


def test_the_scheme_decides() -> None:
    client = coherer.connect("rocketmq://10.0.0.1:9876;10.0.0.2", timeout_ms=5_000)
    assert isinstance(client, Client)
    assert client.options.addresses == (("10.0.0.1", 9876), ("10.0.0.2", 9876))
    assert (client.options.timeout_ms, client.options.tls) == (5_000, None)
    secure = coherer.connect("rocketmqs://a")
    assert secure.options.tls == TlsOptions()
    own = TlsOptions(verify=False)
    assert connect_rocketmq("rocketmqs://a", tls=own).options.tls is own


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("rocketmq://a", {"admin": "http://a:8080"}, "no option admin"),
        ("tubemq://a", {"namespace": "n", "vip": True}, "no option namespace, vip"),
        ("kafka://a", {}, "not a valid URL"),
        ("rocketmq://", {}, "not a valid host"),
        ("rocketmq://a;;b", {}, "not a valid host"),
        ("rocketmq://a", {"user": "u"}, "go together"),
    ],
)
def test_invalid_urls_and_options(url: str, options: RocketmqKeywords, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        coherer.connect(url, **options)


def test_a_protocols_connect_refuses_the_other_protocol() -> None:
    with pytest.raises(UsageError, match="not a URL of rocketmq"):
        connect_rocketmq("tubemq://a")
    with pytest.raises(UsageError, match="not a URL of tubemq"):
        connect_tubemq("rocketmq://a")


async def test_an_invalid_reset_position(client: Client) -> None:
    with pytest.raises(UsageError, match=r"`to` is 'earliest' or 'latest' .*, not 'erliest'"):
        await client.admin().groups.reset_offsets("g", "demo", "erliest")


async def test_queues_and_offsets(cluster, client: Client) -> None:
    cluster.topics["demo"] = 2
    cluster.always(MIN, lambda asked: asked.answer(fields={"offset": "3"}))
    cluster.always(MAX, lambda asked: asked.answer(fields={"offset": "7"}))
    queues = [Queue("demo", "broker-a", 0), Queue("demo", "broker-a", 1)]
    assert await client.partitions("demo") == queues
    assert await client.offsets("demo") == dict.fromkeys(queues, (3, 7))
    assert await client.exists("demo")


async def test_a_missing_topic(cluster, kit, client: Client) -> None:
    with pytest.raises(RefusedError) as caught:
        await client.partitions("nothing")
    assert caught.value.code == 17
    assert not await client.exists("nothing")
    cluster.topics["empty"] = 0
    with pytest.raises(RefusedError, match="no queues"):
        await client.partitions("empty")
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, kit.refuse(1, "broken"))
    with pytest.raises(RefusedError, match="broken"):
        await client.exists("demo")


@pytest.mark.parametrize(
    ("said", "meant"),
    [(b"0", "CR_SUCCESS"), (b"4", "CR_THROW_EXCEPTION"), (b'"cr_later"', "CR_LATER")],
)
async def test_a_numeric_result_of_consume_directly(
    cluster, client: Client, said: bytes, meant: str
) -> None:
    body = b'{"consumeResult":' + said + b',"order":1,"remark":7,"spentTimeMills":"12"}'
    cluster.always(RequestCode.CONSUME_MESSAGE_DIRECTLY, lambda asked: asked.answer(body=body))
    record = layout.encode(
        "demo",
        b"x",
        b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_ms=0,
        store_host=bytes([127, 0, 0, 1])
        + next(iter(cluster.brokers.values())).listener.port.to_bytes(4, "big"),
    )
    [message] = decode_messages(record)
    result = await client.admin().messages.consume_directly("readers", message)
    assert (result.outcome, result.orderly, result.remark, result.spent_ms) == (
        meant,
        True,
        "7",
        12,
    )


async def test_a_key_is_found_in_the_second_of_the_time(cluster: Any, client: Client) -> None:
    """The index of Java's broker counts whole seconds from its beginning, rounded down."""
    first_ms = 1_700_000_000_100
    times_ms = (first_ms, first_ms + 900, first_ms + 1_999)
    indexed = [(first_ms + (one - first_ms) // 1_000 * 1_000, one) for one in times_ms]

    def find(asked: Any) -> None:
        begin, end = int(asked.fields["beginTimestamp"]), int(asked.fields["endTimestamp"])
        asked.answer(
            body=b"".join(
                layout.encode(
                    "demo",
                    b"%d" % time_ms,
                    encode({"KEYS": "k"}),
                    queue_id=0,
                    queue_offset=number,
                    physical_offset=number,
                    store_ms=time_ms,
                )
                for number, (read_ms, time_ms) in enumerate(indexed)
                if begin <= read_ms <= end
            )
        )

    cluster.always(RequestCode.QUERY_MESSAGE, find)
    for begin_ms in times_ms:
        for end_ms in times_ms:
            found = await client.admin().messages.find(
                "demo",
                "k",
                begin=datetime.fromtimestamp(begin_ms / 1_000, UTC),
                end=datetime.fromtimestamp(end_ms / 1_000, UTC),
            )
            wanted = [one for one in times_ms if begin_ms <= one <= end_ms]
            assert [one.stored_ms for one in found] == wanted
