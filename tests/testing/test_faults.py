"""The kit as it is meant to be used: a node, a client, and a network between them that fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

import coherer
from coherer import _net as net
from coherer.errors import CohererError, ConnectError, UnavailableError, UsageError
from coherer.testing import FaultProxy, async_embedded_node
from coherer.testing.rewriting import Addresses, find_addresses

BODY = os.urandom(10_000)  # incompressible
PROTOCOLS = pytest.mark.parametrize("proxy", ["tubemq", "rocketmq"], indirect=True)


@pytest.fixture
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[FaultProxy]:
    async with async_embedded_node() as node:
        node.create_topic("t", 1)
        url = node.url if request.param == "tubemq" else node.rocketmq_url
        async with FaultProxy.before(url) as proxy:
            yield proxy


@PROTOCOLS
async def test_all_traffic_goes_through(proxy: FaultProxy) -> None:
    async with coherer.connect(proxy.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", BODY))
        assert proxy.requests.passed_bytes > 10_000
        async with client.consumer("g", "t", start="earliest") as consumer:
            batch = await consumer.receive(timeout_ms=10_000)
            assert batch is not None
            assert batch.bodies() == [BODY]
            await consumer.commit(batch)
        assert proxy.answers.passed_bytes > 10_000


@PROTOCOLS
async def test_a_cut_before_the_receipt_is_said_and_healed(proxy: FaultProxy) -> None:
    async with coherer.connect(proxy.url) as client, client.producer("t") as producer:
        first = await producer.send(coherer.Message("t", b"first"))
        passed = proxy.requests.passed_bytes
        proxy.answers.black_hole = True
        lost = producer.submit(coherer.Message("t", b"lost receipt" * 100))
        await proxy.until(lambda: proxy.requests.passed_bytes > passed + 1_200)
        await proxy.until(lambda: proxy.answers.lost_bytes)
        proxy.cut()
        with pytest.raises(UnavailableError):
            await lost
        await proxy.heal()
        async with asyncio.timeout(10):
            again = await producer.send(coherer.Message("t", b"again"))
        assert again.offset == first.offset + 2, "the second was stored; its receipt was lost"


@PROTOCOLS
async def test_sends_end_while_the_cluster_is_away(proxy: FaultProxy) -> None:
    async with (
        coherer.connect(proxy.url, timeout_ms=500) as client,
        client.producer("t") as producer,
    ):
        first = await producer.send(coherer.Message("t", b"first"))
        await proxy.refuse()
        with pytest.raises(CohererError):
            await producer.send(coherer.Message("t", b"away"))
        await proxy.heal()
        again = coherer.Message("t", b"again")
        async with asyncio.timeout(20):
            assert await sent(producer, again) == first.offset + 1


@PROTOCOLS
async def test_a_consumer_comes_back_after_the_cluster_was_away(proxy: FaultProxy) -> None:
    async with coherer.connect(proxy.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"before"))
        async with client.consumer("g", "t", start="earliest") as consumer:
            batch = await consumer.receive(timeout_ms=10_000)
            assert batch is not None
            await consumer.commit(batch)
            await proxy.refuse()
            await proxy.heal()
            async with asyncio.timeout(20):
                await sent(producer, coherer.Message("t", b"after"))
                batch = await consumer.receive()
            assert batch is not None
            assert batch.bodies() == [b"after"]


async def sent(producer: coherer.Producer, message: coherer.Message) -> int:
    """Send a message until the cluster takes it."""
    while True:
        try:
            receipt = await producer.send(message)
        except CohererError:
            continue
        assert receipt.offset is not None
        return receipt.offset


@pytest.mark.parametrize(
    "url", ["tubemq://127.0.0.1:1,127.0.0.1:2", "rocketmqs://127.0.0.1:1", "http://127.0.0.1:1"]
)
def test_urls_that_it_cannot_stand_before(url: str) -> None:
    with pytest.raises(UsageError):
        FaultProxy.before(url)


@PROTOCOLS
async def test_a_heal_that_fails_can_be_tried_again(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have taken the port of a broker meanwhile."""
    async with coherer.connect(proxy.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"1"))
    await proxy.refuse()
    listen, taken = net.listen, 0

    async def in_use(host: str, port: int, *others: Any) -> net.Listener:
        nonlocal taken
        taken += 1
        if taken == 2:
            raise UsageError("The port of the broker is in use.")
        return await listen(host, port, *others)

    with monkeypatch.context() as patch:
        patch.setattr(net, "listen", in_use)
        with pytest.raises(UsageError, match="of the broker"):
            await proxy.heal()
    with pytest.raises(ConnectError):
        await net.dial(proxy.host, proxy.port, Closing)
    await proxy.heal()
    async with coherer.connect(proxy.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"2"))


class Closing:
    """A receiver that wants nothing."""

    def __init__(self, connection: net.Connection) -> None:
        connection.close()

    def received(self, data: bytes) -> None:
        """Take bytes."""

    def closed(self, error: Exception | None) -> None:
        """Take the end."""


def test_a_proxy_before_a_port_has_no_url() -> None:
    with pytest.raises(UsageError, match=r"FaultProxy\.before"):
        _ = FaultProxy("127.0.0.1", 1).url


async def test_a_broker_with_a_short_port_is_refused() -> None:
    async def open_port(host: str, port: int, wanted: int) -> int:
        raise AssertionError((host, port, wanted))

    with pytest.raises(UsageError, match=r"the broker 127\.0\.0\.1:443: .* need 3 digits"):
        await Addresses(open_port).hide(b'{0:"127.0.0.1:443"}')


@pytest.mark.parametrize("following", [b"2\n\x08", b"8\x01", b"", b"#t:0"])
def test_a_port_ends_where_the_text_ends(following: bytes) -> None:
    """The byte behind a text of protobuf may look like a digit."""
    text = b"1:127.0.0.1:8123"
    data = b"*" + bytes([len(text)]) + text + following
    if following.startswith(b"#"):
        data = b"*" + bytes([len(text) + 4]) + text + following
    (place,) = find_addresses(data)
    assert data[slice(*place)] == b"127.0.0.1:8123"
