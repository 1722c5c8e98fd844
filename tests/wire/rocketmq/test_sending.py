from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.ids import encode_offset_id
from coherer._wire.rocketmq.command import ONEWAY, RESPONSE, Command, encode
from coherer._wire.rocketmq.headers import SendHeader, SendResult, parse, with_broker
from coherer._wire.rocketmq.sending import SendEncoder, SendResponseEncoder
from coherer._wire.rocketmq.session import Session
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

int32 = st.integers(-(2**31), 2**31 - 1)
HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=9)


@given(
    group=texts,
    topic=texts,
    broker=texts,
    queue_id=int32,
    sys_flag=int32,
    born_ms=int64,
    flag=int32,
    properties=texts | st.just("A\x01%d\x02B\x01\ud800"),
    reconsume_times=int32,
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | int32,
    batch=st.booleans(),
    code=st.sampled_from((310, 320, 325)),
    oneway=st.booleans(),
)
def test_sends_equal_encoded_commands(
    group: str,
    topic: str,
    broker: str,
    queue_id: int,
    sys_flag: int,
    born_ms: int,
    flag: int,
    properties: str,
    reconsume_times: int,
    unit_mode: bool,
    max_reconsume_times: int | None,
    batch: bool,
    code: int,
    oneway: bool,
) -> None:
    encoder = SendEncoder(group, topic, broker, unit_mode=unit_mode)
    frame = encoder.encode(
        77,
        queue_id,
        b"body",
        properties,
        born_ms=born_ms,
        sys_flag=sys_flag,
        flag=flag,
        reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
        code=code,
        batch=batch,
        oneway=oneway,
    )
    header = SendHeader(
        group,
        topic,
        "TBW102",
        4,
        queue_id,
        sys_flag,
        born_ms,
        flag,
        properties,
        reconsume_times,
        unit_mode,
        max_reconsume_times,
        batch,
    )
    fields = dict(with_broker(code, header.fields(), broker))
    command = Command(code, 77, ONEWAY if oneway else 0, fields=fields, body=b"body")
    assert frame == encode(command)


@given(
    int32,
    st.text("0123456789ABCDEF,", max_size=40),
    int32,
    int64,
    st.sampled_from((0, 10, 11, 12)),
    st.none() | texts,
    texts,
    st.booleans(),
)
def test_answers_equal_encoded_commands(
    opaque: int,
    msg_id: str,
    queue_id: int,
    queue_offset: int,
    code: int,
    transaction_id: str | None,
    region: str,
    trace_on: bool,
) -> None:
    answers = SendResponseEncoder(region, trace_on=trace_on)
    frame = answers.encode(
        opaque, msg_id, queue_id, queue_offset, code=code, transaction_id=transaction_id
    )
    result = SendResult(
        msg_id, queue_id, queue_offset, transaction_id, region, "true" if trace_on else "false"
    )
    assert frame == encode(Command(code, opaque, RESPONSE, fields=result.fields()))
    [answer] = Session().receive(frame)
    assert parse(SendResult, answer.fields) == result


@given(int32, st.integers(0, 1 << 50), st.integers(0, 1 << 20), st.integers(0, 1 << 50))
def test_encode_success_equals_encode(
    opaque: int, physical_offset: int, queue_id: int, queue_offset: int
) -> None:
    answers = SendResponseEncoder("100%", store_host=HOST)
    pieces = answers.encode_success(opaque, physical_offset, queue_id, queue_offset)
    msg_id = encode_offset_id(HOST, physical_offset)
    assert b"".join(pieces) == answers.encode(opaque, msg_id, queue_id, queue_offset)


def test_a_too_large_message_is_refused() -> None:
    encoder = SendEncoder("g", "t")
    with pytest.raises(ProtocolError):
        encoder.encode(1, 0, bytes(REMOTING_BYTES_MAX - 8), "", born_ms=0)
    head = len(encoder.encode(1, 0, b"", "", born_ms=0))
    frame = encoder.encode(1, 0, bytes(REMOTING_BYTES_MAX - head), "", born_ms=0)
    assert len(frame) == REMOTING_BYTES_MAX
