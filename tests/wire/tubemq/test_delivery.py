"""Answers to gets: written like protobuf's, and read as Java's client reads them."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.delivery import MessageBatch, encode_get_response, message_envelope
from coherer._wire.tubemq.payload import checksum, decode_attributes, split_payload
from coherer._wire.tubemq.session import ClientSession, Request, Response, ServerSession
from coherer.errors import ProtocolError

pytest.importorskip("pyarrow")

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
words = st.text(st.characters(codec="utf-8"), max_size=10)
attribute_texts = st.one_of(
    st.sampled_from(
        [
            "$msgType$=UA,$msgTime$=202401020304,k=v",
            "$msgType$=AA,$msgTime$=202401020305,k=w",
            "$msgTime$=noon",
            "$msgType$=UA",
            "k=v",
            "k",
            ",,",
            "\0,k=\0",
        ]
    ),
    words,
    st.text("ab,=$\0", max_size=12),
)


@st.composite
def transfers(draw: st.DrawFn) -> pb.TransferedMessage:
    body = draw(st.binary(max_size=20) | st.integers(0, 300).map(bytes))
    kind = draw(st.integers(0, 9))
    flag, data = 0, body
    if kind <= 6:
        text = draw(attribute_texts).encode()
        flag, data = draw(st.sampled_from([1, 1, 3])), len(text).to_bytes(4, "big") + text + body
    elif kind == 7:
        flag = 1  # a length that is none
    elif kind == 8:
        text = draw(st.binary(max_size=9))
        flag, data = 1, len(text).to_bytes(4, "big") + text + body
    crc = checksum(data) if draw(st.integers(0, 9)) else draw(int32)
    return pb.TransferedMessage(messageId=draw(int64), checkSum=crc, payLoadData=data, flag=flag)


def answer_of(messages: list[pb.TransferedMessage], offset: int = 100) -> bytes:
    return pb.GetMessageResponseB2C(
        success=True,
        errCode=200,
        errMsg="OK!",
        messages=messages,
        currOffset=offset,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=7,
        requireSlow=True,
        maxOffset=offset + 1000,
    ).SerializeToString()


def batch_of(
    body: bytes, *, exact: bool = True, accepted: frozenset[str] | None = None
) -> MessageBatch:
    return MessageBatch(
        body, topic="demo", broker="1", partition=10001, exact_offsets=exact, accepted_tags=accepted
    )


@given(st.lists(transfers(), max_size=5), int32, int64, int64, int64, st.booleans())
def test_answers_equal_protobuf(
    messages: list[pb.TransferedMessage],
    serial: int,
    offset: int,
    backlog_bytes: int,
    max_offset: int,
    slow: bool,
) -> None:
    message = pb.GetMessageResponseB2C(
        success=True,
        errCode=200,
        errMsg="OK!",
        messages=messages,
        currOffset=offset,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=backlog_bytes,
        requireSlow=slow,
        maxOffset=max_offset,
    )
    request = Request(serial, methods.BROKER_READ, methods.GET_MESSAGES, 1, 3, b"")
    chunks: list[bytes | memoryview] = []
    for one in messages:
        data = one.payLoadData
        before, after = message_envelope(one.messageId, one.checkSum, len(data), one.flag)
        chunks += [before, memoryview(data), after]
    frame = encode_get_response(
        serial,
        chunks,
        offset=offset,
        backlog_bytes=backlog_bytes,
        max_offset=max_offset,
        require_slow=slow,
    )
    assert frame == ServerSession().reply(request, message)


def test_a_large_answer_is_split_into_blocks() -> None:
    data = bytes(1024)
    before, after = message_envelope(5, checksum(data), len(data), 0)
    frame = encode_get_response(
        1, [before, data, after] * 500, offset=0, backlog_bytes=0, max_offset=9, require_slow=False
    )
    assert int.from_bytes(frame[8:12], "big") > 60
    [answer] = ClientSession().receive(frame)
    assert isinstance(answer, Response)
    assert batch_of(answer.body).bodies() == [data] * 500


def expected_of(
    messages: list[pb.TransferedMessage], accepted: frozenset[str] | None
) -> tuple[list[tuple[object, ...]], int]:
    """The messages by the rules of 4.8.1, one after the other, and how many are damaged."""
    rows: list[tuple[object, ...]] = []
    skipped = 0
    for index, one in enumerate(messages):
        parts = split_payload(one.payLoadData, one.flag)
        if checksum(one.payLoadData) != one.checkSum or parts is None:
            skipped += 1
            continue
        attributes, body = parts
        tag, time, properties = decode_attributes((attributes or b"").decode(errors="replace"))
        if accepted is None or tag in accepted:
            rows.append((100 + index, str(one.messageId), tag, time, body, properties))
    return rows, skipped


@given(
    st.lists(transfers(), max_size=12), st.sampled_from([None, frozenset({"UA"}), frozenset({""})])
)
def test_batches_contain_the_messages_that_java_delivers(
    messages: list[pb.TransferedMessage], accepted: frozenset[str] | None
) -> None:
    batch = batch_of(answer_of(messages), accepted=accepted)
    rows, skipped = expected_of(messages, accepted)
    assert [(m.offset, m.id, m.tag, m.time, m.body, m.properties) for m in batch] == rows
    assert {(m.topic, m.broker, m.partition) for m in batch} <= {("demo", "1", 10001)}
    assert batch.bodies() == [row[4] for row in rows]
    assert (len(batch), batch.skipped) == (len(rows), skipped)


@given(
    st.lists(transfers(), max_size=12), st.sampled_from([None, frozenset({"UA"})]), st.booleans()
)
def test_columns_equal_iteration(
    messages: list[pb.TransferedMessage], accepted: frozenset[str] | None, exact: bool
) -> None:
    batch = batch_of(answer_of(messages), exact=exact, accepted=accepted)
    other = batch_of(answer_of(messages), exact=exact, accepted=accepted)
    columns = other.to_arrow().to_pylist()
    assert (other.left_out, other.skipped) == (batch.left_out, batch.skipped)
    assert other.bad_records() == batch.bad_records()
    assert [*other] == [*batch]
    assert len(columns) == len(batch)
    for row, message in zip(columns, batch, strict=True):
        properties = dict(message.properties)
        time = properties.pop("$msgTime$", None)  # one that is no time
        if message.time is not None:
            time = message.time.strftime("%Y%m%d%H%M").zfill(12)
        assert row == {
            "topic": "demo",
            "broker": "1",
            "partition": 10001,
            "offset": 100 if message.offset is None else message.offset,
            "id": int(message.id),
            "tag": message.tag,
            "time": time,
            "value": message.body,
            "properties": list(properties.items()),
        }
        assert (message.offset is None) == (not exact)


def test_attributes_of_messages_and_batches() -> None:
    data = bytes.fromhex("00000029") + b"$msgType$=t1,$msgTime$=202401020304,k1=v1hello"
    one = pb.TransferedMessage(messageId=5, checkSum=checksum(data), payLoadData=data, flag=1)
    body = answer_of([one])
    batch = batch_of(body)
    [message] = batch
    assert (message.tag, message.time) == ("t1", datetime.fromisoformat("2024-01-02T03:04"))
    assert (message.properties, message.body, message.id) == ({"k1": "v1"}, b"hello", "5")
    assert (batch.code, batch.offset, batch.max_offset) == (200, 100, 1100)
    assert (batch.backlog_bytes, batch.require_slow, batch.size_bytes) == (7, True, len(body))
    assert "1:demo:10001 from 100: 1 messages" in repr(batch)


def test_a_refusal_is_an_empty_batch() -> None:
    body = pb.GetMessageResponseB2C(
        success=False, errCode=452, errMsg="slow down", minLimitTime=300
    ).SerializeToString()
    batch = batch_of(body)
    assert (batch.code, batch.text, batch.wait_ms) == (452, "slow down", 300)
    assert (len(batch), list(batch), batch.bodies(), batch.skipped) == (0, [], [], 0)
    assert (batch.offset, batch.max_offset, batch.backlog_bytes) == (-1, -2, -1)
    assert batch.to_arrow().num_rows == 0
    assert "452 slow down" in repr(batch)


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda b: answer_of([]) + b))
def test_any_bytes_are_a_batch_or_a_protocol_error(body: bytes) -> None:
    try:
        batch = batch_of(body)
    except ProtocolError:
        return
    assert len(list(batch)) == len(batch) == batch.to_arrow().num_rows
