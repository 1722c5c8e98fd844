"""A client of TubeMQ's raw protocol for tests over sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from coherer import _net as net
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import ClientSession, Failure, Response


class RawClient:
    """Asks, and waits for the answer: `await net.dial(host, port, RawClient)`."""

    def __init__(self, wire: net.Connection) -> None:
        self.wire = wire
        self.session = ClientSession()
        self.waiting: dict[int, asyncio.Future[Response | Failure]] = {}
        self.gone = asyncio.Event()

    def received(self, data: bytes) -> None:
        for answer in self.session.receive(data):
            self.waiting.pop(answer.serial).set_result(answer)

    def closed(self, error: Exception | None) -> None:
        self.gone.set()

    def post(self, method: int, message: Any) -> asyncio.Future[Response | Failure]:
        serial, frame = self.session.request(method, message, 10_000)
        self.wire.write(frame)
        self.waiting[serial] = asyncio.get_running_loop().create_future()
        return self.waiting[serial]

    async def ask(self, method: int, message: Any) -> Any:
        async with asyncio.timeout(10):
            response = await self.post(method, message)
        assert isinstance(response, Response), response
        return methods.parse(methods.METHODS[method].response, response.body)
