"""Sends and replies assembled by hand equal those of protobuf and the session."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods, sending
from coherer._wire.tubemq.session import ClientSession, Request, ServerSession
from coherer.errors import ProtocolError

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
words = st.text(st.characters(codec="utf-8"), max_size=40)
data_sizes = st.one_of(
    st.integers(0, 300), st.integers(8000, 8200), st.integers(16_200, 16_600), st.just(100_000)
)


@st.composite
def sends(draw: st.DrawFn) -> tuple[pb.SendMessageRequestP2B, int, int]:
    message = pb.SendMessageRequestP2B(
        clientId=draw(words),
        topicName=draw(words),
        partitionId=draw(int32),
        data=bytes(draw(data_sizes)),
        flag=draw(st.one_of(st.sampled_from([0, 1]), int32)),
        checkSum=-1,
        sentAddr=draw(int32),
        msgType=draw(st.none() | words),
        msgTime=draw(st.none() | words),
    )
    if draw(st.booleans()):
        message.authInfo.visitAuthorizedToken = draw(int64)
    return message, draw(int32), draw(st.sampled_from([1, 10_000, 600_000, 2**40]))


def encoded(
    encoder: sending.SendEncoder, message: pb.SendMessageRequestP2B, serial: int, timeout_ms: int
) -> bytes:
    return encoder.encode(
        serial,
        message.data,
        message.flag,
        message.msgType if message.HasField("msgType") else None,
        message.msgTime if message.HasField("msgTime") else None,
        message.authInfo.SerializeToString() if message.HasField("authInfo") else b"",
        timeout_ms,
    )


@given(sends())
def test_the_encoder_equals_protobuf(
    send: tuple[pb.SendMessageRequestP2B, int, int],
) -> None:
    message, serial, timeout_ms = send
    encoder = sending.SendEncoder(
        message.clientId, message.topicName, message.partitionId, message.sentAddr
    )
    _, expected = ClientSession(serial).request(methods.SEND_MESSAGE, message, timeout_ms)
    assert encoded(encoder, message, serial, timeout_ms) == expected
    assert encoded(encoder, message, serial, timeout_ms) == expected  # from its caches
    message.data += b"x"
    _, expected = ClientSession(serial).request(methods.SEND_MESSAGE, message, timeout_ms)
    assert encoded(encoder, message, serial, timeout_ms) == expected


def test_the_caches_of_the_encoder_are_bounded() -> None:
    encoder = sending.SendEncoder("p", "t", 0, 0)

    def memory_after(first: int, count: int) -> int:
        for number in range(first, first + count):
            encoder.encode(1, b"", 0, str(number), None, b"", number)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = memory_after(1, 4_000)
        assert memory_after(4_001, 12_000) < 1.5 * full
    finally:
        tracemalloc.stop()


@given(int32, int64, int64, int64)
def test_replies_equal_protobuf(serial: int, message_id: int, append_ms: int, offset: int) -> None:
    message = pb.SendMessageResponseB2P(
        success=True,
        errCode=200,
        errMsg=str(message_id),
        requireAuth=False,
        messageId=message_id,
        appendTime=append_ms,
        appendOffset=offset,
    )
    request = Request(serial, methods.BROKER_WRITE, methods.SEND_MESSAGE, 1, 3, b"")
    expected = ServerSession().reply(request, message)
    assert sending.encode_send_response(serial, message_id, append_ms, offset) == expected
    reply = sending.parse_send_response(message.SerializeToString())
    assert reply == sending.SendResponse(True, 200, "", message_id, append_ms, offset)


def test_a_reply_of_an_old_broker_is_parsed() -> None:
    body = pb.SendMessageResponseB2P(success=True, errCode=200, errMsg="77").SerializeToString()
    assert sending.parse_send_response(body).message_id == 77


def test_a_refusal_is_parsed() -> None:
    body = pb.SendMessageResponseB2P(success=False, errCode=403, errMsg="no").SerializeToString()
    assert sending.parse_send_response(body) == sending.SendResponse(False, 403, "no")


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_a_protocol_error(body: bytes) -> None:
    try:
        sending.parse_send_response(body)
    except ProtocolError:
        return
    assert pb.SendMessageResponseB2P.FromString(body).IsInitialized()


def test_a_truncated_reply_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="lacks errCode"):
        sending.parse_send_response(b"\x08\x01")
