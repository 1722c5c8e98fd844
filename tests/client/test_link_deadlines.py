"""Requests whose time is over before they are noted: a process that lags behind."""

from __future__ import annotations

import asyncio

import pytest

from coherer import _net as net
from coherer._client.engine.connections import ServerConnection
from coherer.errors import CohererError, RequestTimeoutError


class Waiter:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.over: asyncio.Future[CohererError] = asyncio.get_running_loop().create_future()

    def answered(self, answer: object) -> None:
        raise AssertionError(answer)

    def failed(self, error: CohererError) -> None:
        self.over.set_result(error)


class Silent(ServerConnection[object]):
    """Nothing comes."""

    def received(self, data: bytes) -> None:
        raise AssertionError(data)


class Listening:
    def received(self, data: bytes) -> None:
        raise AssertionError(data)

    def closed(self, error: Exception | None) -> None:
        pass


async def late_and_later() -> list[CohererError]:
    listener = await net.listen("127.0.0.1", 0, lambda _: Listening())
    address = f"127.0.0.1:{listener.port}"
    link = await net.dial("127.0.0.1", listener.port, lambda wire: Silent(wire, address))
    now = asyncio.get_running_loop().time()
    waiters = [Waiter(now + after_s) for after_s in (-0.2, -0.3, 0.05, -0.1)]
    for serial, waiter in enumerate(waiters):
        link.send_frame(serial, waiter, b"")
    errors = [await waiter.over for waiter in waiters]
    await link.close()
    await listener.close()
    return errors


def test_they_time_out_by_asyncio() -> None:
    errors = asyncio.run(late_and_later())
    assert [type(error) for error in errors] == [RequestTimeoutError] * 4


def test_they_time_out_by_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        errors = runner.run(late_and_later())
    assert [type(error) for error in errors] == [RequestTimeoutError] * 4
