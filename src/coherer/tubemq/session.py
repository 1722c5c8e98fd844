"""One connection, seen from either end: bytes to requests and answers, and back.

The rules (sections 1.2 to 1.6 of the protocol page):

1. A request frame holds RpcConnHeader, RequestHeader, RequestBody; an answer RpcConnHeader,
   ResponseHeader and either RspResponseBody (status SUCCESS) or RspExceptionBody. Each stands
   behind its length. The message that matters is a bytes field of the body.
2. The serial number is the requester's; the answer repeats it; answers come in any order.
3. A server answers FATAL, without a protocol version, to what it cannot read and to a method that
   is reserved, ERROR to a method that the named service does not have and to a handler that fails.
   The connection goes on. Everything else, refusals too, is SUCCESS with a code in the message.
4. In ERROR answers Java's class names are spelled as the requester's protocol version knows them.
5. A client does not answer. What it cannot read breaks the connection.
6. A request whose timeout is not above zero is never answered (Java's rule). The session does not
   know the time: dropping what comes too late is the server's part.

How: frames come from `FrameDecoder`. Almost all frames of a connection begin alike: block length,
headers, method, timeout and the length of the message are the same bytes for messages of the same
size. So a session remembers what such a beginning means, and reads the next frame that begins alike
by one look into a dictionary. It remembers a beginning only when the whole frame is byte for byte
what we would have written ourselves; then the same beginning before other bytes of the same number
means the same. Everything else goes through protobuf. Tests hold the two ways against each other.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final

import msgspec
from google.protobuf.message import Message

from coherer.errors import CohererError, ProtocolError, RefusedError, UnavailableError
from coherer.tubemq import messages as pb
from coherer.tubemq.frame import TOKEN, FrameDecoder, encode_frame
from coherer.tubemq.methods import METHODS, VERSION, accepts, parse
from coherer.tubemq.wire import delimited, varint

_TOKEN_SERIAL: Final = Layout(">Ii")
_FRAME_HEAD_BYTES: Final = 16
_KEY: Final = slice(8, 35)  # from the number of blocks to the end of the longest usual beginning
_KNOWN_MAX: Final = 2048

_SUCCESS: Final = pb.ResponseHeader.SUCCESS
_ANSWER: Final = bytes.fromhex("0208010408001803")
_ERROR: Final = bytes.fromhex("0208010408011803")
_FATAL: Final = bytes.fromhex("020801020802")

JAVA_EXCEPTION: Final = "java.lang.Exception"
STANDBY: Final = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"
STOPPING: Final = "org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException"
NOT_READY: Final = "org.apache.inlong.tubemq.corerpc.exception.ServerNotReadyException"
_UNREADABLE: Final = "IPC server unable to read call parameters:"
_UNUSABLE: Final = "IPC server handle request error :"
_PACKAGES: Final = {1: "com.tencent.tubemq.", 2: "com.apache.tubemq."}


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request as a server sees it.

    Args:
        serial: the requester's number for it.
        service: which service it asks.
        method: number of the method, one of `methods.METHODS`.
        timeout_ms: how long the requester waits; not above zero means that it gets no answer.
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
    """An answer with status SUCCESS: the message may still be a refusal."""

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
        """Whether this master is not the active one: the next one has to be asked."""
        return "StandbyException" in self.exception

    def error(self, server: str) -> CohererError:
        """Returns what to raise.

        Args:
            server: who answered, `host:port`.

        >>> print(Failure(1, False, "a.StandbyException", "b is not master").error("b:8715"))
        b is not master [server b:8715] Another master of the list may be the active one.
        """
        text = self.text or f"The server failed with {self.exception}."
        if self.standby:
            hint = "Another master of the list may be the active one."
            return UnavailableError(text, server=server, hint=hint)
        if self.exception.endswith(("ServiceStoppingException", "ServerNotReadyException")):
            return UnavailableError(text, server=server, hint="The server is starting or stopping.")
        return RefusedError(text, server=server, hint=f"It says {self.exception}.")


class ServerSession:
    """The server's end of a connection.

    >>> client, server = ClientSession(), ServerSession()
    >>> serial, frame = client.request(3, pb.CloseRequestP2M(clientId="p"), timeout_ms=1000)
    >>> [request], answers = server.receive(frame)
    >>> request.method, request.timeout_ms, parse(pb.CloseRequestP2M, request.body).clientId
    (3, 1000, 'p')
    >>> answer = pb.CloseResponseM2P(success=True, errCode=200, errMsg="OK!")
    >>> [response] = client.receive(server.reply(request, answer))
    >>> response.serial == serial
    True
    """

    __slots__ = ("_decoder", "_known")

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._known: dict[bytes, tuple[int, int, int, int, int, int]] = {}

    def receive(self, data: bytes) -> tuple[list[Request], list[bytes]]:
        """Takes what came from the socket.

        Args:
            data: the next bytes of the stream.

        Returns:
            The requests, in order, and ready frames for those that cannot be served.

        Raises:
            ProtocolError: the stream is not made of frames; close the connection.
        """
        requests: list[Request] = []
        answers: list[bytes] = []
        decoder = self._decoder
        buffer = decoder.take(data)
        position, size = 0, len(buffer)
        known = self._known
        try:
            while position < size:
                meaning = known.get(buffer[position + 8 : position + 35])
                if meaning is not None:
                    service, method, timeout_ms, version, start, length = meaning
                    end = position + length
                    token, serial = _TOKEN_SERIAL.unpack_from(buffer, position)
                    if token == TOKEN and end <= size:
                        body = buffer[position + start : end]
                        requests.append(Request(serial, service, method, timeout_ms, version, body))
                        position = end
                        continue
                frame = decoder.cut(buffer, position)
                if frame is None:
                    break
                self._read(buffer, position, frame[0], frame[1], requests, answers)
                position = frame[2]
        except ProtocolError as error:
            decoder.fail(error, later=bool(requests or answers))
        else:
            decoder.keep(buffer, position)
        return requests, answers

    def _read(
        self,
        buffer: bytes,
        position: int,
        serial: int,
        payload: bytes,
        requests: list[Request],
        answers: list[bytes],
    ) -> None:
        try:
            service, version, body = _read_request(payload)
        except ProtocolError as error:
            answers.append(_failure(serial, _FATAL, JAVA_EXCEPTION, _UNREADABLE + error.text))
            return
        method, timeout_ms = body.method, body.timeout
        request = Request(serial, service, method, timeout_ms, version, body.request)
        if method not in METHODS:
            text = f"Unsupported method ID :{method}"
            answers.append(self.fatal(request, JAVA_EXCEPTION, text))
        elif not accepts(service, method):
            text = f"Service {service} has no method {method}."
            answers.append(self.error(request, JAVA_EXCEPTION, text))
        else:
            requests.append(request)
            self._learn(buffer, position, payload, request)

    def _learn(self, buffer: bytes, position: int, payload: bytes, request: Request) -> None:
        size = len(request.body)
        head = request_head(
            request.service, request.method, request.timeout_ms, request.version, size
        )
        start = _FRAME_HEAD_BYTES + len(head)
        if (
            start <= _KEY.stop
            and len(payload) == len(head) + size
            and payload.startswith(head)
            and _is_one_block(buffer, position)
        ):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[buffer[position + _KEY.start : position + _KEY.stop]] = (
                request.service,
                request.method,
                request.timeout_ms,
                request.version,
                start,
                _FRAME_HEAD_BYTES + len(payload),
            )

    def reply(self, request: Request, message: Message) -> bytes:
        """Returns the frame of a SUCCESS answer."""
        return self.reply_raw(request, message.SerializeToString())

    def reply_raw(self, request: Request, body: bytes) -> bytes:
        """Returns the frame of a SUCCESS answer whose message is serialized already."""
        return encode_frame(request.serial, answer_head(request.method, len(body)) + body)

    def error(self, request: Request, exception: str, text: str) -> bytes:
        """Returns the frame of an ERROR answer.

        Args:
            request: what is answered.
            exception: Java's class name in today's spelling (`STANDBY`, `STOPPING`, …).
            text: what happened.
        """
        package = _PACKAGES.get(request.version)
        if package is not None:
            exception = exception.replace("org.apache.inlong.tubemq.", package)
        return _failure(request.serial, _ERROR, exception, text)

    def fatal(self, request: Request, exception: str, text: str) -> bytes:
        """Returns the frame of a FATAL answer: the message of the request could not be used."""
        return _failure(request.serial, _FATAL, exception, _UNUSABLE + text)


class ClientSession:
    """The client's end of a connection; example at `ServerSession`."""

    __slots__ = ("_decoder", "_known", "_serial")

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._serial = 0
        self._known: dict[bytes, tuple[int, int, int]] = {}

    def next_serial(self) -> int:
        """Returns the next serial number: 1, 2, … and on as a signed 32-bit number."""
        self._serial = serial = self._serial + 1 if self._serial < 0x7FFFFFFF else -0x80000000
        return serial

    def request(self, method: int, message: Message, timeout_ms: int) -> tuple[int, bytes]:
        """Returns serial number and frame of a request.

        Args:
            method: number of the method; it decides the service.
            message: what to send; all its required fields must be set.
            timeout_ms: how long the server may take, above zero.
        """
        serial = self.next_serial()
        body = message.SerializeToString()
        service = METHODS[method].service
        head = request_head(service, method, timeout_ms, VERSION, len(body))
        return serial, encode_frame(serial, head + body)

    def receive(self, data: bytes) -> list[Response | Failure]:
        """Takes what came from the socket and returns the answers in it.

        Raises:
            ProtocolError: these are no answers; close the connection.
        """
        answers: list[Response | Failure] = []
        decoder = self._decoder
        buffer = decoder.take(data)
        position, size = 0, len(buffer)
        known = self._known
        try:
            while position < size:
                meaning = known.get(buffer[position + 8 : position + 35])
                if meaning is not None:
                    method, start, length = meaning
                    end = position + length
                    token, serial = _TOKEN_SERIAL.unpack_from(buffer, position)
                    if token == TOKEN and end <= size:
                        answers.append(Response(serial, method, buffer[position + start : end]))
                        position = end
                        continue
                frame = decoder.cut(buffer, position)
                if frame is None:
                    break
                answer = _read_answer(frame[0], frame[1])
                answers.append(answer)
                if isinstance(answer, Response):
                    self._learn(buffer, position, frame[1], answer)
                position = frame[2]
        except ProtocolError as error:
            decoder.fail(error, later=bool(answers))
        else:
            decoder.keep(buffer, position)
        return answers

    def _learn(self, buffer: bytes, position: int, payload: bytes, answer: Response) -> None:
        head = answer_head(answer.method, len(answer.body))
        start = _FRAME_HEAD_BYTES + len(head)
        if (
            start <= _KEY.stop
            and len(payload) == len(head) + len(answer.body)
            and payload.startswith(head)
            and _is_one_block(buffer, position)
        ):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            meaning = answer.method, start, _FRAME_HEAD_BYTES + len(payload)
            self._known[buffer[position + _KEY.start : position + _KEY.stop]] = meaning


def request_head(service: int, method: int, timeout_ms: int, version: int, size: int) -> bytes:
    """Returns what stands before a serialized message of `size` bytes in a request's payload."""
    header = b"\x08%b\x10%b" % (varint(service), varint(version))
    body = b"\x08%b\x10%b\x1a%b" % (varint(method), varint(timeout_ms), varint(size))
    sizes = varint(len(header)), varint(len(body) + size)
    return b"\x02\x08\x00%b%b%b%b" % (sizes[0], header, sizes[1], body)


def answer_head(method: int, size: int) -> bytes:
    """Returns what stands before a serialized message of `size` bytes in a SUCCESS answer."""
    body = b"\x08%b\x12%b" % (varint(method), varint(size))
    return b"%b%b%b" % (_ANSWER, varint(len(body) + size), body)


def _failure(serial: int, head: bytes, exception: str, text: str) -> bytes:
    body = pb.RspExceptionBody(exceptionName=exception, stackTrace=text).SerializeToString()
    return encode_frame(serial, b"%b%b%b" % (head, varint(len(body)), body))


def _read_request(payload: bytes) -> tuple[int, int, pb.RequestBody]:
    """Reads service, version and body out of the payload of a request frame."""
    part, position = delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = delimited(payload, position)
    header = parse(pb.RequestHeader, part)
    part, position = delimited(payload, position)
    return header.serviceType, header.protocolVer, parse(pb.RequestBody, part)


def _read_answer(serial: int, payload: bytes) -> Response | Failure:
    """Reads an answer out of the payload of its frame."""
    part, position = delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = delimited(payload, position)
    status = parse(pb.ResponseHeader, part).status
    part, position = delimited(payload, position)
    if status == _SUCCESS:
        body = parse(pb.RspResponseBody, part)
        return Response(serial, body.method, body.data)
    trouble = parse(pb.RspExceptionBody, part)
    fatal = status == pb.ResponseHeader.FATAL
    return Failure(serial, fatal, _modern(trouble.exceptionName), trouble.stackTrace)


def _modern(exception: str) -> str:
    """Turns the class names of old servers into today's."""
    for package in ("com.tencent.tubemq.", "com.apache.tubemq.", "org.apache.tubemq."):
        exception = exception.replace(package, "org.apache.inlong.tubemq.")
    return exception


def _is_one_block(buffer: bytes, position: int) -> bool:
    return buffer[position + 8 : position + 12] == b"\x00\x00\x00\x01"
