"""Requests to other servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coherer import _net as net
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._server.rocketmq.remoting_client import RemotingClient, host_and_port
from coherer._wire.rocketmq.command import Command
from coherer.errors import ConnectError, RequestTimeoutError, UsageError

ECHO, SILENT = 1, 2


@pytest.fixture
async def remoting() -> RemotingServer:
    def echo(channel: Channel, request: Command) -> Command:
        return Command(0, fields=request.fields, body=request.body)

    return RemotingServer({ECHO: echo}, silent=True)


@pytest.fixture
async def address(remoting: RemotingServer) -> AsyncIterator[str]:
    listener = await net.listen("127.0.0.1", 0, remoting.make)
    yield f"127.0.0.1:{listener.port}"
    await listener.close()


@pytest.fixture
async def outgoing() -> AsyncIterator[RemotingClient]:
    outgoing = RemotingClient()
    yield outgoing
    outgoing.close()


async def test_one_connection_carries_all_requests(
    outgoing: RemotingClient, address: str, remoting: RemotingServer
) -> None:
    asked = [outgoing.ask(address, ECHO, {"n": str(n)}, b"body") for n in range(10)]
    answers = await asyncio.gather(*asked)
    assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(10)]
    assert len(remoting.channels) == 1


async def test_a_server_that_does_not_answer_is_hung_up_on(
    outgoing: RemotingClient, address: str
) -> None:
    with pytest.raises(RequestTimeoutError, match="20 ms"):
        await outgoing.ask(address, SILENT, timeout_ms=20)
    assert (await outgoing.ask(address, ECHO)).code == 0, "over a new connection"


async def test_a_server_that_is_not_there(outgoing: RemotingClient) -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        await outgoing.ask("127.0.0.1:1", ECHO)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:port"])
def test_an_invalid_address(address: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        host_and_port(address)
