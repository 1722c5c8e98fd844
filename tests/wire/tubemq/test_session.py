"""Client and server sessions, and frames read by match functions compared with protobuf."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq import envelope, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.envelope import varint
from coherer._wire.tubemq.frame import HEAD, LENGTH, TOKEN, FrameDecoder, encode_frame
from coherer._wire.tubemq.session import (
    JAVA_EXCEPTION,
    NOT_READY,
    STANDBY,
    STOPPING,
    ClientSession,
    Failure,
    Request,
    Response,
    ServerSession,
)
from coherer.errors import CohererError, ProtocolError, RefusedError, UnavailableError

serials = st.integers(-(2**31), 2**31 - 1)
bodies = st.one_of(st.binary(max_size=300), st.integers(0, 20_000).map(bytes))
served = st.sampled_from([(m.service, m.id) for m in methods.METHODS.values()])


def in_blocks(serial: int, payload: bytes, size: int) -> bytes:
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    head = struct.pack(">Iii", TOKEN, serial, len(parts))
    return head + b"".join(struct.pack(">i", len(part)) + part for part in parts)


@st.composite
def request_frames(draw: st.DrawFn) -> bytes:
    """Requests as somebody may write them: usual, in small blocks, fields in any order."""
    service, method = draw(st.one_of(served, st.tuples(st.integers(0, 5), st.integers(-2, 30))))
    timeout_ms = draw(st.one_of(st.just(10_000), st.integers(-(2**63), 2**63 - 1)))
    version = draw(st.sampled_from([1, 2, 3, 3, 3, 200]))
    serial, body = draw(serials), draw(bodies)
    payload = envelope.request_head(service, method, timeout_ms, version, len(body)) + body
    kind = draw(st.integers(0, 4))
    if kind == 1:
        return in_blocks(serial, payload, draw(st.integers(10, 100)))
    if kind == 2:  # bytes after the body are ignored
        return encode_frame(serial, payload + draw(st.binary(max_size=5)))
    if kind == 3:  # the message in front, an unknown field behind
        text = b"\x1a" + varint(len(body)) + body + b"\x08" + varint(method) + b"\x78\x01"
        header = pb.RequestHeader(serviceType=service).SerializeToString()
        parts = [b"\x08\x00", header, text]
        return encode_frame(serial, b"".join(varint(len(part)) + part for part in parts))
    return encode_frame(serial, payload)


def by_protobuf(frames: list[bytes]) -> tuple[list[Request], list[bytes]]:
    """The result that the session must have, read by protobuf only."""
    requests: list[Request] = []
    answers: list[bytes] = []
    for frame in frames:
        for serial, payload in FrameDecoder().feed(frame):
            # An empty first block: only protobuf can tell what the frame contains.
            head = HEAD.pack(TOKEN, serial, 2)
            blocks = LENGTH.pack(0) + LENGTH.pack(len(payload)) + payload
            more_requests, more_answers = ServerSession().receive(head + blocks)
            requests += more_requests
            answers += more_answers
    return requests, answers


def received(session: ServerSession, chunks: list[bytes]) -> tuple[list[Request], list[bytes]]:
    requests: list[Request] = []
    answers: list[bytes] = []
    for chunk in chunks:
        more_requests, more_answers = session.receive(chunk)
        requests += more_requests
        answers += more_answers
    return requests, answers


@given(st.lists(request_frames(), max_size=6), st.integers(1, 100))
def test_requests_in_chunks_of_any_size(frames: list[bytes], step: int) -> None:
    expected = by_protobuf(frames)
    stream = b"".join(frames)
    session = ServerSession()
    assert received(session, [stream]) == expected
    assert received(session, [stream]) == expected  # now the beginnings are known
    assert received(session, frames) == expected
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert received(session, chunks) == expected
    assert received(ServerSession(), [bytes((byte,)) for byte in stream[:2000]])[0] == [
        request
        for request, end in zip(expected[0], _ends(frames, expected[0]), strict=True)
        if end <= 2000
    ]


def _ends(frames: list[bytes], requests: list[Request]) -> list[int]:
    ends, at = [], 0
    for frame in frames:
        at += len(frame)
        if by_protobuf([frame])[0]:
            ends.append(at)
    assert len(ends) == len(requests)
    return ends


@given(request_frames(), st.data())
def test_a_frame_that_begins_almost_like_a_remembered_one(
    frame: bytes, data: st.DataObject
) -> None:
    session = ServerSession()
    session.receive(frame)
    at = data.draw(st.integers(0, min(len(frame), 60) - 1))
    other = bytearray(frame)
    other[at] ^= 1 << data.draw(st.integers(0, 7))
    stream = bytes(other) + encode_frame(1, b"")

    def outcome(one: ServerSession) -> object:
        try:
            return one.receive(stream)
        except ProtocolError:
            return "broken"

    assert outcome(session) == outcome(ServerSession())


@given(st.binary(max_size=200))
def test_an_invalid_payload_is_answered(payload: bytes) -> None:
    session = ServerSession()
    requests, answers = session.receive(encode_frame(5, payload))
    assert len(requests) + len(answers) == 1
    for answer in answers:
        [failure] = ClientSession().receive(answer)
        assert isinstance(failure, Failure)
        assert failure.serial == 5
    # and the connection goes on
    good = ClientSession().request(3, pb.CloseRequestP2M(clientId="p"), 1000)[1]
    assert len(session.receive(good)[0]) == 1


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_raise_a_protocol_error(data: bytes) -> None:
    for session in (ServerSession(), ClientSession()):
        try:
            session.receive(data)
            session.receive(encode_frame(1, data))
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "IPC server unable to read call parameters:"),
        (b"\x02\x08\x00\x04\x08\x03\x10\x03", "IPC server unable to read call parameters:"),
        (
            b"\x02\x08\x00\x04\x08\x03\x10\x03\x02\x10\x01",
            "IPC server unable to read call parameters:RequestBody lacks method.",
        ),
        (envelope.request_head(1, 19, 1, 3, 0), "IPC server handle request error :Unsupported"),
    ],
)
def test_unreadable_requests_are_answered_fatal(payload: bytes, text: str) -> None:
    [answer] = ServerSession().receive(encode_frame(1, payload))[1]
    [failure] = ClientSession().receive(answer)
    assert isinstance(failure, Failure)
    assert failure.fatal
    assert failure.exception == JAVA_EXCEPTION
    assert failure.text.startswith(text)


def test_a_method_of_another_service_is_an_error() -> None:
    frame = encode_frame(4, envelope.request_head(methods.MASTER, methods.SEND_MESSAGE, 1, 3, 0))
    session = ServerSession()
    for _ in range(2):
        requests, [answer] = session.receive(frame)
        assert not requests
        [failure] = ClientSession().receive(answer)
        assert isinstance(failure, Failure)
        assert (failure.serial, failure.fatal, failure.exception) == (4, False, JAVA_EXCEPTION)


def test_the_read_service_accepts_sends() -> None:
    head = envelope.request_head(methods.BROKER_READ, methods.SEND_MESSAGE, 1, 3, 0)
    [request], answers = ServerSession().receive(encode_frame(4, head))
    assert (request.service, request.method, answers) == (2, 13, [])


@pytest.mark.parametrize(
    ("version", "spelled"),
    [
        (1, "com.tencent.tubemq.corerpc.exception.StandbyException"),
        (2, "com.apache.tubemq.corerpc.exception.StandbyException"),
        (3, STANDBY),
        (9, STANDBY),
    ],
)
def test_class_names_by_version(version: int, spelled: str) -> None:
    request = Request(1, 1, 1, 1000, version, b"")
    frame = ServerSession().error(request, STANDBY, "no")
    assert spelled.encode() in frame
    assert ClientSession().receive(frame) == [Failure(1, False, STANDBY, "no")]


@given(st.lists(st.tuples(serials, served, bodies), max_size=5), st.integers(1, 200))
def test_answers_in_chunks_of_any_size(
    given_answers: list[tuple[int, tuple[int, int], bytes]], step: int
) -> None:
    server = ServerSession()
    frames: list[bytes] = []
    expected: list[Response | Failure] = []
    for serial, (service, method), body in given_answers:
        request = Request(serial, service, method, 1, 3, b"")
        frames += [server.reply_raw(request, body), server.error(request, STOPPING, "bye")]
        frames.append(in_blocks(serial, envelope.response_head(method, len(body)) + body, 7_000))
        answer = Response(serial, method, body)
        expected += [answer, Failure(serial, False, STOPPING, "bye"), answer]
    stream = b"".join(frames)
    client = ClientSession()
    assert client.receive(stream) == expected
    assert client.receive(stream) == expected
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert [answer for chunk in chunks for answer in client.receive(chunk)] == expected


@given(bodies, st.integers(1, 22))
def test_matching_equals_protobuf(body: bytes, method: int) -> None:
    answer = envelope.response_head(method, len(body)) + body
    read = envelope.read_response(answer)
    assert isinstance(read, pb.RspResponseBody)
    assert (read.method, read.data) == (method, body)
    found = envelope.match_response(answer[:64], len(answer))
    assert found is not None
    assert (found[0], answer[found[1] :]) == (method, body)

    request = envelope.request_head(3, method, 10_000, 3, len(body)) + body
    service, version, request_body = envelope.read_request(request)
    seen = envelope.match_request(request[:64], len(request))
    assert seen is not None
    assert seen[:4] == (service, request_body.method, request_body.timeout, version)
    assert request[seen[4] :] == request_body.request == body


@given(st.binary(max_size=64), st.integers(0, 70))
def test_matching_accepts_nothing_that_protobuf_refuses(garbage: bytes, size: int) -> None:
    """The beginning is usual, the rest is anything."""
    for begin, usual, read in (
        (envelope.RESPONSE_BEGIN, envelope.match_response, envelope.read_response),
        (envelope.REQUEST_BEGIN, envelope.match_request, envelope.read_request),
    ):
        payload = (begin + garbage).ljust(size, b"\0")
        if usual(payload[:64], len(payload)) is not None:
            read(payload)  # raises what makes the test fail


def test_a_client_fails_on_an_invalid_answer() -> None:
    client = ClientSession()
    good = envelope.response_head(3, 0)
    stream = encode_frame(1, good) + encode_frame(2, b"\x01\x02")
    assert client.receive(stream) == [Response(1, 3, b"")]
    with pytest.raises(ProtocolError):
        client.receive(b"")


def test_serial_numbers_wrap() -> None:
    client = ClientSession()
    assert [client.next_serial(), client.next_serial()] == [1, 2]
    client = ClientSession(first_serial=2**31 - 1)
    assert [client.next_serial(), client.next_serial()] == [2**31 - 1, -(2**31)]
    serial, frame = client.request(3, pb.CloseRequestP2M(clientId="p"), 1000)
    assert serial == -(2**31) + 1
    assert ServerSession().receive(frame)[0][0].serial == serial


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(1, False, STANDBY, "b is not master"), UnavailableError),
        (Failure(1, False, STOPPING, ""), UnavailableError),
        (Failure(1, False, NOT_READY, ""), UnavailableError),
        (Failure(1, False, "java.lang.reflect.InvocationTargetException", ""), RefusedError),
        (Failure(1, True, JAVA_EXCEPTION, "cannot read"), RefusedError),
    ],
)
def test_failures_become_errors(failure: Failure, kind: type[CohererError]) -> None:
    error = failure.error("m:8715")
    assert type(error) is kind
    assert error.server == "m:8715"
    assert error.text
    assert error.hint


def test_remembered_beginnings_are_bounded() -> None:
    session, client = ServerSession(), ClientSession()
    message = pb.CloseRequestP2M(clientId="x")

    def memory_after(first: int, count: int) -> int:
        for timeout_ms in range(first, first + count):
            assert session.receive(client.request(3, message, timeout_ms)[1])[0][0].method == 3
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = memory_after(1, 2_000)
        assert memory_after(2_001, 6_000) < 1.5 * full
    finally:
        tracemalloc.stop()
