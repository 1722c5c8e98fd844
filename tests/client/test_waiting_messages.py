"""Messages that wait for a connection to their broker."""

from __future__ import annotations

import asyncio

import pytest

import coherer
from coherer.errors import ConnectError
from coherer.message import Message
from coherer.testing import SimulatedNode


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_slow_attempt_to_connect_does_not_lengthen_their_timeout(
    coherer_simulated: SimulatedNode, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coherer_simulated.create_topic("orders")
    url = coherer_simulated.url if protocol == "tubemq" else coherer_simulated.rocketmq_url
    loop = asyncio.get_running_loop()

    async def never(*args: object, **options: object) -> None:
        del args, options
        await asyncio.sleep(3600)

    async with (
        coherer.connect(url, connect_timeout_ms=60_000) as client,
        client.producer("orders", timeout_ms=500) as producer,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "create_connection", never)
            coherer_simulated.faults.reset()
            await asyncio.sleep(0.1)
            first = producer.submit(Message("orders", b"1"))
            await asyncio.sleep(0.2)
            second = producer.submit(Message("orders", b"2"))
            for sent, waits_s in ((first, 0.3), (second, 0.2)):
                began = loop.time()
                with pytest.raises(ConnectError, match="the message was not sent"):
                    await sent
                assert loop.time() - began == pytest.approx(waits_s, abs=0.01)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_their_error_says_why_there_is_no_connection(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    coherer_simulated.create_topic("orders")
    url = coherer_simulated.url if protocol == "tubemq" else coherer_simulated.rocketmq_url
    async with (
        coherer.connect(url) as client,
        client.producer("orders", timeout_ms=500) as producer,
        coherer_simulated.down(),
    ):
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectError, match=r"not sent.*Connection refused.*Is the server up"):
            await producer.send(Message("orders", b"1"))
