"""A client of a RocketMQ server on a bare session: sends requests, and keeps those it receives."""

from __future__ import annotations

import asyncio

from coherer import _net as net
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.rocketmq.session import Session


class Caller:
    """One connection.

    Attributes:
        connection: its bytes' way.
        session: what reads and writes it; servers that ask are answered by hand.
        asked: requests of the server, in order.
    """

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self.session = Session("JAVA")
        self.asked: asyncio.Queue[Command] = asyncio.Queue()
        self.lost = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Command]] = {}

    @classmethod
    async def dial(cls, port: int, tls: net.TlsOptions | None = None) -> Caller:
        """Connects to this machine."""
        return await net.dial("127.0.0.1", port, cls, tls=tls)

    def begin(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> asyncio.Future[Command]:
        """Send a request; the response comes later."""
        opaque, frame = self.session.request(code, fields, body)
        self.connection.write(frame)
        return self.expect(opaque)

    def expect(self, opaque: int) -> asyncio.Future[Command]:
        """The answer with this number."""
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._answers[opaque] = answer
        return answer

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Asks and waits for the answer."""
        async with asyncio.timeout(10):
            return await self.begin(code, fields, body)

    async def ask_as(self, version: int, code: int, fields: dict[str, str]) -> Command:
        """Asks as a client of another release, and waits for the answer."""
        opaque = self.session.next_opaque()
        answer = self.expect(opaque)
        self.connection.write(encode(Command(code, opaque, version=version, fields=fields)))
        async with asyncio.timeout(10):
            return await answer

    def send_oneway(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Says something one-way."""
        _, frame = self.session.request(code, fields, body, oneway=True)
        self.connection.write(frame)

    async def next_asked(self) -> Command:
        """The next request of the server."""
        async with asyncio.timeout(10):
            return await self.asked.get()

    def answer(self, request: Command, code: int = 0, body: bytes = b"") -> None:
        """Answers a request of the server."""
        self.connection.write(self.session.response(request, code, body=body))

    async def hang_up(self) -> None:
        """Closes, and waits until it is."""
        self.connection.close()
        async with asyncio.timeout(10):
            await self.lost.wait()

    def received(self, data: bytes) -> None:
        """One socket read."""
        for command in self.session.receive(data):
            if not command.is_response:
                self.asked.put_nowait(command)
                continue
            self._answers.pop(command.opaque).set_result(command)

    def closed(self, error: Exception | None) -> None:
        """The server has closed, or we have."""
        self.lost.set()
        for answer in self._answers.values():
            answer.cancel()
