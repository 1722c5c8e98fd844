"""One connection as seen by client or server: bytes to requests and answers, and back.

The rules (docs/protocol/tubemq.md, sections 1.2 to 1.6):

1. A request frame contains RpcConnHeader, RequestHeader and RequestBody; an answer contains
   RpcConnHeader, ResponseHeader and either RspResponseBody (status SUCCESS) or RspExceptionBody.
   Each follows its length. The actual message is a bytes field of the body.
2. The requester chooses the serial number, the answer repeats it, and answers come in any order.
3. A server answers FATAL, without a protocol version, to an unreadable request and to a reserved
   method. It answers ERROR to a method that the service does not have and when a handler fails.
   The connection continues. All other answers, refusals too, are SUCCESS with a code in the
   message.
4. ERROR answers spell Java's class names as the requester's protocol version knows them.
5. A client does not answer. An unreadable answer ends the connection.
6. A request whose timeout is not above zero is never answered, as in Java. The session does not
   know the time: the server drops requests that are too late.

How it works: `FrameDecoder` returns the frames. Almost all frames of a connection begin alike:
number and length of blocks, headers, method, timeout and the length of the message are the same
bytes for messages of the same size. So a session remembers the meaning of such a beginning, and
reads the next frame that begins alike with one dictionary lookup. It remembers a beginning only if
`envelope.match_request` or `match_response` found that the message, and nothing else, extends to
the end of the frame; then the same beginning before the same number of bytes has the same meaning.
Unrecognized frames are parsed by protobuf. Tests compare both ways.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import Message

from coherer._wire.tubemq.envelope import (
    ERROR_BEGIN,
    FATAL_BEGIN,
    failure,
    match_request,
    match_response,
    read_request,
    read_response,
    request_head,
    response_head,
)
from coherer._wire.tubemq.frame import HEAD_ONE, TOKEN, Frame, FrameDecoder, encode_frame
from coherer._wire.tubemq.methods import METHODS, VERSION, accepts
from coherer.errors import CohererError, ProtocolError, RefusedError, UnavailableError

_TOKEN_SERIAL: Final = Layout(">Ii")
_KEY_START: Final = 8  # from the number of blocks …
_KEY_STOP: Final = 35  # … to the end of the longest usual beginning
_KNOWN_MAX: Final = 2048
_LOOK_BYTES: Final = 64

JAVA_EXCEPTION: Final = "java.lang.Exception"
STANDBY: Final = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"
STOPPING: Final = "org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException"
NOT_READY: Final = "org.apache.inlong.tubemq.corerpc.exception.ServerNotReadyException"
_UNREADABLE: Final = "IPC server unable to read call parameters:"
_UNUSABLE: Final = "IPC server handle request error :"
_PACKAGES: Final = {1: "com.tencent.tubemq.", 2: "com.apache.tubemq."}


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request.

    Args:
        serial: the requester's number for it.
        method: the number of the method, one of `methods.METHODS`.
        timeout_ms: how long the requester waits; without a positive value it gets no answer.
        version: the requester's protocol version.
        body: the message, for `methods.parse`.
    """

    serial: int
    service: int
    method: int
    timeout_ms: int
    version: int
    body: bytes


class Response(msgspec.Struct, frozen=True, gc=False):
    """An answer with status SUCCESS; its message may still be a refusal."""

    serial: int
    method: int
    body: bytes


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An answer with status ERROR or FATAL: a Java class name and a text."""

    serial: int
    fatal: bool
    exception: str
    text: str

    @property
    def standby(self) -> bool:
        """Whether this master is a standby, so that the client has to try another one."""
        return "StandbyException" in self.exception

    def error(self, server: str) -> CohererError:
        """Return the exception to raise.

        Args:
            server: the server that answered, as `host:port`.

        >>> print(Failure(1, False, "a.StandbyException", "b is not master").error("b:8715"))
        b is not master [server b:8715] Another master of the list may be the active one.
        """
        text = self.text or f"The server failed with {self.exception}."
        if self.standby:
            hint = "Another master of the list may be the active one."
            return UnavailableError(text, server=server, hint=hint)
        if self.exception.endswith(("ServiceStoppingException", "ServerNotReadyException")):
            return UnavailableError(text, server=server, hint="The server is starting or stopping.")
        if text.startswith("No service"):  # masters and brokers offer different ones
            hint = "Is this the port of a master where a master is asked, of a broker where one is?"
            return RefusedError(text, server=server, hint=hint)
        return RefusedError(text, server=server, hint=f"It says {self.exception}.")


class ServerSession:
    r"""The server's end of a connection.

    >>> from coherer._wire.tubemq import messages as pb
    >>> client, server = ClientSession(), ServerSession()
    >>> serial, frame = client.request(3, pb.CloseRequestP2M(clientId="p"), timeout_ms=1000)
    >>> [request], answers = server.receive(frame)
    >>> request.method, request.timeout_ms, request.body
    (3, 1000, b'\n\x01p')
    >>> answer = pb.CloseResponseM2P(success=True, errCode=200, errMsg="OK!")
    >>> [response] = client.receive(server.reply(request, answer))
    >>> response.serial == serial
    True
    """

    __slots__ = ("_decoder", "_known")

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._known: dict[bytes, tuple[int, int, int, int, int, int]] = {}

    @property
    def unfinished(self) -> tuple[int, int]:
        """The bytes received of an incomplete request, 0 for none, and the bytes that it lacks."""
        return self._decoder.unfinished

    def receive(self, data: bytes) -> tuple[list[Request], list[bytes]]:
        """Take bytes from the socket.

        Args:
            data: the next bytes of the stream.

        Returns:
            The requests, in order, and the frames that answer requests that cannot be served.

        Raises:
            ProtocolError: the stream does not consist of frames; close the connection.
        """
        requests: list[Request] = []
        answers: list[bytes] = []
        decoder, known = self._decoder, self._known
        frame, position = decoder.complete(data)
        size = len(data)
        try:
            if frame is not None:
                self._read(frame, requests, answers)
            while position < size:
                key = data[position + _KEY_START : position + _KEY_STOP]
                meaning = known.get(key)
                if meaning is not None:
                    service, method, timeout_ms, version, start, length = meaning
                    token, serial = _TOKEN_SERIAL.unpack_from(data, position)
                    end = position + length
                    if token == TOKEN and end <= size:
                        body = data[position + start : end]
                        requests.append(Request(serial, service, method, timeout_ms, version, body))
                        position = end
                        continue
                frame = decoder.next_frame(data, position)
                if frame is None:
                    break
                self._read(frame, requests, answers, key)
                position = frame[2]
        except ProtocolError as error:
            decoder.fail(error)
            if not requests and not answers:
                raise
        else:
            decoder.keep(data, position)
        return requests, answers

    def _read(
        self, frame: Frame, requests: list[Request], answers: list[bytes], key: bytes = b""
    ) -> None:
        """Read a frame that does not begin as one before; `key` is how it begins."""
        serial, blocks, _ = frame
        size = sum(map(len, blocks))
        usual = match_request(bytes(blocks[0][:_LOOK_BYTES]), size)
        if usual is None:
            self._read_unusual(serial, b"".join(blocks), requests, answers)
            return
        service, method, timeout_ms, version, start = usual
        if len(blocks) == 1 and method in METHODS and accepts(service, method):
            length = HEAD_ONE.size + size
            start_in_frame = HEAD_ONE.size + start
            _remember(
                self._known,
                key,
                (service, method, timeout_ms, version, start_in_frame, length),
            )
        body = b"".join((blocks[0][start:], *blocks[1:]))
        request = Request(serial, service, method, timeout_ms, version, body)
        self._sort(request, requests, answers)

    def _read_unusual(
        self, serial: int, payload: bytes, requests: list[Request], answers: list[bytes]
    ) -> None:
        try:
            service, version, body = read_request(payload)
        except ProtocolError as error:
            text = _UNREADABLE + error.text
            answers.append(failure(serial, FATAL_BEGIN, JAVA_EXCEPTION, text))
            return
        request = Request(serial, service, body.method, body.timeout, version, body.request)
        self._sort(request, requests, answers)

    def _sort(self, request: Request, requests: list[Request], answers: list[bytes]) -> None:
        """Answer a request with an unknown method; append all others to `requests`."""
        method = request.method
        if method not in METHODS:
            text = f"Unsupported method ID :{method}"
            answers.append(self.fatal(request, JAVA_EXCEPTION, text))
        elif not accepts(request.service, method):
            text = f"Service {request.service} has no method {method}."
            answers.append(self.error(request, JAVA_EXCEPTION, text))
        else:
            requests.append(request)

    def reply(self, request: Request, message: Message) -> bytes:
        """Return the frame of a SUCCESS answer."""
        return self.reply_raw(request, message.SerializeToString())

    def reply_raw(self, request: Request, body: bytes) -> bytes:
        """Return the frame of a SUCCESS answer with a serialized message."""
        return encode_frame(request.serial, response_head(request.method, len(body)) + body)

    def error(self, request: Request, exception: str, text: str) -> bytes:
        """Return the frame of an ERROR answer.

        Args:
            exception: Java's class name in its current spelling (`STANDBY`, `STOPPING`, …).
            text: the error.
        """
        package = _PACKAGES.get(request.version)
        if package is not None:
            exception = exception.replace("org.apache.inlong.tubemq.", package)
        return failure(request.serial, ERROR_BEGIN, exception, text)

    def fatal(self, request: Request, exception: str, text: str) -> bytes:
        """Return the frame of a FATAL answer: the request's message is not usable."""
        return failure(request.serial, FATAL_BEGIN, exception, _UNUSABLE + text)


class ClientSession:
    """The client's end of a connection; example at `ServerSession`.

    Args:
        first_serial: the serial number of the first request.
    """

    __slots__ = ("_decoder", "_known", "_serial")

    def __init__(self, first_serial: int = 1) -> None:
        self._decoder = FrameDecoder()
        self._serial = first_serial - 1
        self._known: dict[bytes, tuple[int, int, int]] = {}

    def next_serial(self) -> int:
        """Return the next serial number, wrapping as a signed 32-bit number."""
        self._serial = serial = self._serial + 1 if self._serial < 0x7FFFFFFF else -0x80000000
        return serial

    def request(self, method: int, message: Message, timeout_ms: int) -> tuple[int, bytes]:
        """Return serial number and frame of a request.

        Args:
            method: the number of the method, which determines the service.
            message: the message; all its required fields must be set.
            timeout_ms: time in which the server has to answer, above zero.
        """
        serial = self.next_serial()
        body = message.SerializeToString()
        service = METHODS[method].service
        head = request_head(service, method, timeout_ms, VERSION, len(body))
        return serial, encode_frame(serial, head + body)

    def receive(self, data: bytes) -> list[Response | Failure]:
        """Take bytes from the socket and return the answers in them.

        Raises:
            ProtocolError: the bytes are not answers; close the connection.
        """
        answers: list[Response | Failure] = []
        decoder, known = self._decoder, self._known
        frame, position = decoder.complete(data)
        size = len(data)
        try:
            if frame is not None:
                answers.append(self._read(frame))
            while position < size:
                key = data[position + _KEY_START : position + _KEY_STOP]
                meaning = known.get(key)
                if meaning is not None:
                    method, start, length = meaning
                    token, serial = _TOKEN_SERIAL.unpack_from(data, position)
                    end = position + length
                    if token == TOKEN and end <= size:
                        answers.append(Response(serial, method, data[position + start : end]))
                        position = end
                        continue
                frame = decoder.next_frame(data, position)
                if frame is None:
                    break
                answers.append(self._read(frame, key))
                position = frame[2]
        except ProtocolError as error:
            decoder.fail(error)
            if not answers:
                raise
        else:
            decoder.keep(data, position)
        return answers

    def _read(self, frame: Frame, key: bytes = b"") -> Response | Failure:
        """Read a frame that does not begin as one before; `key` is how it begins."""
        serial, blocks, _ = frame
        size = sum(map(len, blocks))
        usual = match_response(bytes(blocks[0][:_LOOK_BYTES]), size)
        if usual is None:
            return _read_unusual(serial, b"".join(blocks))
        method, start = usual
        if len(blocks) == 1:
            length = HEAD_ONE.size + size
            _remember(self._known, key, (method, HEAD_ONE.size + start, length))
        # A view of the first block, so that its bytes are copied once.
        return Response(serial, method, b"".join((memoryview(blocks[0])[start:], *blocks[1:])))


def _read_unusual(serial: int, payload: bytes) -> Response | Failure:
    answer = read_response(payload)
    if isinstance(answer, tuple):
        fatal, trouble = answer
        return Failure(serial, fatal, _modern(trouble.exceptionName), trouble.stackTrace)
    return Response(serial, answer.method, answer.data)


def _modern(exception: str) -> str:
    """Replace the package of old servers' class names by the current one."""
    for package in ("com.tencent.tubemq.", "com.apache.tubemq.", "org.apache.tubemq."):
        exception = exception.replace(package, "org.apache.inlong.tubemq.")
    return exception


_M = TypeVar("_M", bound=tuple[int, ...])


def _remember(known: dict[bytes, _M], key: bytes, meaning: _M) -> None:
    """Store the meaning of a beginning, if the message begins inside it."""
    if meaning[-2] <= _KEY_START + len(key):
        if len(known) >= _KNOWN_MAX:
            known.clear()
        known[key] = meaning
