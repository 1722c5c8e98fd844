"""One connection, either side (docs/protocol/rocketmq.md, sections 1.1 and 1.4).

Both sides may send requests. A peer's requests and answers arrive in one stream;
`Command.is_response` distinguishes them even if their numbers are equal.
"""

from __future__ import annotations

from coherer._wire.rocketmq import command as commands
from coherer._wire.rocketmq.codes import PYTHON
from coherer._wire.rocketmq.command import INT32_MAX, INT32_MIN, ONEWAY, RESPONSE, Command
from coherer._wire.rocketmq.frame import FrameDecoder
from coherer.errors import ProtocolError


class Session:
    """One side of a connection.

    Args:
        language: the language in the headers.
        binary: write requests with the binary header. Answers are always in JSON, which all clients
            read.
        first_opaque: the number of the first request.

    >>> client, server = Session(), Session()
    >>> opaque, frame = client.request(105, {"topic": "T"})
    >>> [request] = server.receive(frame)
    >>> [answer] = client.receive(server.response(request, 17, "No such topic."))
    >>> answer.opaque == opaque, answer.is_response, answer.code, answer.remark
    (True, True, 17, 'No such topic.')
    """

    __slots__ = ("_binary", "_decoder", "_language", "_opaque")

    def __init__(
        self, language: str = PYTHON, *, binary: bool = False, first_opaque: int = 1
    ) -> None:
        self._decoder = FrameDecoder()
        self._language = language
        self._binary = binary
        self._opaque = first_opaque - 1

    def receive(self, data: bytes) -> list[Command]:
        """Take bytes from the socket.

        Args:
            data: the next bytes of the stream.

        Returns:
            Requests and answers, in order.

        Raises:
            ProtocolError: the bytes are not commands; close the connection. Commands before the
                invalid one are returned, and the next call raises.
        """
        received: list[Command] = []
        try:
            for kind, header, body in self._decoder.feed(data):
                received.append(commands.decode(kind, header, body))
        except ProtocolError as error:
            self._decoder.fail(error)
            if not received:
                raise
        return received

    @property
    def unfinished(self) -> tuple[int, int]:
        """The bytes received of an incomplete command, 0 for none, and the bytes that it lacks."""
        return self._decoder.unfinished

    def next_opaque(self) -> int:
        """Return the number of the next request: 1, 2, …, wrapping as a signed 32-bit number."""
        self._opaque = opaque = self._opaque + 1 if self._opaque < INT32_MAX else INT32_MIN
        return opaque

    def request(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        *,
        oneway: bool = False,
        remark: str | None = None,
    ) -> tuple[int, bytes]:
        """Return number and frame of a request.

        Args:
            fields: the custom header.
            oneway: the peer does not answer.
            remark: text for people.

        Raises:
            ProtocolError: the frame would be larger than any peer accepts.
        """
        opaque = self.next_opaque()
        request = Command(
            code,
            opaque,
            ONEWAY if oneway else 0,
            self._language,
            remark=remark,
            fields=fields or {},
            body=body,
        )
        return opaque, commands.encode(request, binary=self._binary)

    def response(
        self,
        request: Command,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> bytes:
        """Return the frame of an answer.

        Args:
            code: how it went.
            remark: text for people, usually an error.
            fields: the custom header.

        Raises:
            ProtocolError: the frame would be larger than any peer accepts.
        """
        return self.response_head(request, code, remark, fields, len(body)) + body

    def response_head(
        self,
        request: Command,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body_bytes: int = 0,
    ) -> bytes:
        """Return the frame of an answer up to its body, which the caller appends.

        Args:
            code: how it went.
            remark: text for people.
            fields: the custom header.
            body_bytes: size of the body.

        Raises:
            ProtocolError: the frame would be larger than any peer accepts.
        """
        answer = Command(
            code, request.opaque, RESPONSE, self._language, remark=remark, fields=fields or {}
        )
        return commands.encode_head(answer, body_bytes)
