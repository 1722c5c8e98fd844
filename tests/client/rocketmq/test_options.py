"""Options do what they say, and what is wrong with one names it."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from coherer import _net as net
from coherer._client.engine.assigned import FetchLimits
from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.options import ConsumerOptions, ProducerOptions, fetch_limits
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._wire.rocketmq.codes import FAQ, RequestCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError
from coherer.message import Message
from coherer.rocketmq import connect as connect_rocketmq

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (ConsumerOptions, {"queue_bytes": 0}, "queue_bytes is 1 or more, not 0"),
        (ConsumerOptions, {"release_ms": -1}, "release_ms is 0 or more, not -1"),
        (ConsumerOptions, {"max_attempts": 0}, "1 or more, or -1"),
        (ConsumerOptions, {"max_attempts": -2}, "max_attempts is -1 or more, not -2"),
        (ProducerOptions, {"retries": -1}, "retries is 0 or more, not -1"),
        (ProducerOptions, {"max_bytes": 0}, "max_bytes is 1 or more, not 0"),
    ],
)
def test_errors_name_invalid_options(kind: type, options: dict[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        kind(**options)


def test_errors_name_invalid_client_options() -> None:
    with pytest.raises(UsageError, match="route_ms is 1 or more, not 0"):
        connect_rocketmq("rocketmq://a", route_ms=0)


def test_when_a_queue_is_full() -> None:
    options: dict[str, Any] = {"queue_messages": 1, "queue_bytes": 2, "queue_span": 3}
    assert fetch_limits(ConsumerOptions(**options)) == FetchLimits(messages=1, size_bytes=2, span=3)
    assert fetch_limits(ConsumerOptions(**options, orderly=True)).span == 0


async def test_the_compression_level(cluster, client: Client) -> None:
    body = b"".join(b"%d,%d;" % (number, number * number) for number in range(4_000))
    for level in (1, 9):
        async with client.producer("demo", compress_level=level) as producer:
            await producer.send(Message("demo", body))
    quick, hard = (bytes(asked.request.body) for asked in cluster.asked(SEND))
    assert (quick, hard) == (zlib.compress(body, 1), zlib.compress(body, 9))
    assert quick != hard


async def two_ports(main: RemotingServer, fast: RemotingServer) -> list[net.Listener]:
    """A main port, and a fast port two below it."""
    while True:
        listener = await net.listen("127.0.0.1", 0, main.make)
        try:
            return [listener, await net.listen("127.0.0.1", listener.port - 2, fast.make)]
        except CohererError:
            await listener.close()


async def test_sends_use_the_vip_port_and_heartbeats_do_not(cluster) -> None:
    codes: dict[str, set[int]] = {"main": set(), "fast": set()}

    def port(name: str) -> RemotingServer:
        def asked(channel: Channel, request: Command) -> None:
            codes[name].add(request.code)
            cluster.receive("broker-a", channel, request)

        return RemotingServer(dict.fromkeys(RequestCode, asked))

    listeners = await two_ports(port("main"), port("fast"))
    broker = cluster.brokers["broker-a"]
    await broker.listener.close()
    broker.listener = listeners[0]  # closed by the cluster
    async with (
        connect_rocketmq(cluster.url, vip=True) as client,
        client.consumer("readers", "demo"),
        client.producer("demo") as producer,
    ):
        await producer.send(Message("demo", b"x"))
    assert codes["fast"] == {SEND}
    assert RequestCode.HEART_BEAT in codes["main"]
    await listeners[1].close()


async def test_unsent_messages_go_to_another_broker(cluster2, client2) -> None:
    gone, back = cluster2.brokers.values()
    async with client2.producer("demo", retry_lost=True) as producer:
        for broker in (gone, back):
            await broker.listener.close()
        sends = [producer.submit(Message("demo", b"x")) for _ in range(8)]
        stays = producer.submit(Message("demo", b"x"), order_by="a")
        assert producer.in_flight == 9
        handlers = {code: lambda c, r: cluster2.receive(back.name, c, r) for code in RequestCode}
        listener = await net.listen("127.0.0.1", back.listener.port, RemotingServer(handlers).make)
        receipts = await asyncio.gather(*sends)
        assert {receipt.broker for receipt in receipts} == {back.name}
        stays.cancel()
        await listener.close()


async def test_an_unregistered_broker(cluster, client: Client) -> None:
    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    cluster.always(code, lambda asked: asked.answer(fields={"wipeTopicCount": "0"}))
    with pytest.raises(UnavailableError, match="No master of nobody") as caught:
        await client.admin().brokers.set_writable("nobody", writable=False)
    assert caught.value.server == f"127.0.0.1:{cluster.names.port}"
    cluster.always(code, lambda asked: asked.answer(fields={"wipeTopicCount": "9"}))
    await client.admin().brokers.set_writable("broker-a", writable=False)


async def test_errors_name_the_topic(cluster, kit, client: Client) -> None:
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, kit.refuse(17, f"No route: t{FAQ}"))
    with pytest.raises(RefusedError) as caught:
        await client.partitions("t")
    assert (caught.value.text, caught.value.topic) == ("No route: t", "t")
