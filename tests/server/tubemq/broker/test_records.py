"""Stored records contain the same messages as mapped answers; which gets are answered so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer import limits
from coherer._record import compression, layout
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._store import Draft, Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.delivery import MessageBatch, encode_get_response, encode_records
from coherer._wire.tubemq.session import ClientSession, Response
from coherer._wire.tubemq.stored import read_records
from tests.server.broker_harness import BrokerClient

pytest.importorskip("pyarrow")

FIRST_ID = 7 << 48
FIRST_OFFSET = 100
V6 = bytes(15) + b"\x01" + bytes(4)

blocks = st.sampled_from(
    [
        b"$msgType$=UA,$msgTime$=202401020304,k=v",
        b"$msgType$=UA",
        b"$msgTime$=noon,k=v,l=w",
        b"k=v",
        b"k",
        b",,",
        b"k=v,k=w",
        "k=ü".encode(),
        b"\xff",
        b"",
    ]
)
property_texts = st.sampled_from(
    [
        b"",
        b"TAGS\x01UA",
        b"TAGS\x01a,b",
        b"UNIQ_KEY\x010B\x02TAGS\x01UA\x02k\x01v",
        b"UNIQ_KEY\x010C\x02TAGS\x01UA\x02k\x01v",
        b"KEYS\x01a b\x02$msgTime$\x01202401020304\x02list\x01a,b=c\x02WAIT\x01true\x02",
        b"RETRY_TOPIC\x01demo\x02REAL_TOPIC\x01%RETRY%g\x02k\x01",
        b"xTUBE\x01r",
        b"\xff\x01\xfe",
    ]
)
bodies = st.binary(max_size=20) | st.integers(0, 300).map(bytes)


@st.composite
def records(draw: st.DrawFn, offset: int) -> bytes:
    """A record that one of the protocols may have written, or that the disk has damaged."""
    sys_flag = 0
    if draw(st.booleans()):
        block, body = draw(blocks), draw(bodies)
        length = draw(st.sampled_from([len(block)] * 9 + [0, -1, 1000]))
        tag = draw(st.sampled_from(["UA", ""]))
        flag = draw(st.sampled_from([0, 1, 1, 1, 3]))
        payload = (length & 0xFFFFFFFF).to_bytes(4, "big") + block + body if flag else body
        body, text, _, _ = Mapper().to_record(payload, flag, tag)
    else:
        text, flag, body = draw(property_texts), draw(st.integers(0, 3)), draw(bodies)
        kind = draw(st.sampled_from(["plain", "plain", "compressed", "flagged"]))
        if kind != "plain":
            sys_flag = compression.COMPRESSED
            body = compression.compress(body) if kind == "compressed" else body
    record = layout.encode(
        "demo",
        body,
        text,
        queue_id=3,
        queue_offset=offset,
        physical_offset=offset * 1000,
        store_ms=1,
        flag=flag,
        sys_flag=sys_flag,
        born_host=draw(st.sampled_from([layout.NO_HOST, layout.NO_HOST, V6])),
        store_host=draw(st.sampled_from([layout.NO_HOST, layout.NO_HOST, V6])),
    )
    if body and not draw(st.integers(0, 9)):
        at = layout.spans(record).body_begin
        record = record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]
    return record


@st.composite
def stretches(draw: st.DrawFn) -> list[bytes]:
    """The records of one read."""
    count = draw(st.integers(1, 8))
    repeated = draw(st.integers(1, 20))
    return [draw(records(FIRST_OFFSET + n)) for n in range(count)] + [
        layout.encode(
            "demo", b"x", b"TAGS\x01UA\x02TUBE\x01a", flag=1, queue_id=3, physical_offset=7,
            queue_offset=FIRST_OFFSET + count + n, store_ms=1,
        )
        for n in range(repeated)
    ]  # fmt: skip


def batch_of(frame: bytes) -> MessageBatch:
    [answer] = ClientSession().receive(frame)
    assert isinstance(answer, Response)
    return MessageBatch(answer.body, topic="demo", broker="7", partition=3, exact_offsets=True)


def mapped(found: list[bytes]) -> MessageBatch:
    delivery = Mapper().deliver([memoryview(one) for one in found], 4, FIRST_ID)
    assert delivery.taken == len(found)
    left_out = [range(FIRST_OFFSET + n, FIRST_OFFSET + n + 1) for n in delivery.left_out]
    end = FIRST_OFFSET + len(found)
    return batch_of(
        encode_get_response(
            1, delivery.chunks, offset=FIRST_OFFSET, backlog_bytes=5, max_offset=end + 9,
            require_slow=False, left_out=left_out, next_offset=end,
        )
    )  # fmt: skip


def raw(found: Sequence[bytes], end: int | None = None) -> MessageBatch:
    end = FIRST_OFFSET + len(found) if end is None else end
    pieces = encode_records(
        1, found, offset=FIRST_OFFSET, next_offset=end, backlog_bytes=5, max_offset=end + 9,
        first_id=FIRST_ID,
    )  # fmt: skip
    return batch_of(b"".join(pieces))


@given(stretches(), st.booleans())
def test_records_contain_the_mapped_messages(found: list[bytes], columns: bool) -> None:
    one, other = mapped(found), raw(found)
    if columns:
        assert other.to_arrow().to_pylist() == one.to_arrow().to_pylist()
    assert other.intact
    assert [*other] == [*one]
    assert (other.left_out, other.skipped) == (one.left_out, one.skipped)
    for name in ("offset", "next_offset", "max_offset", "backlog_bytes", "code"):
        assert getattr(other, name) == getattr(one, name)
    assert len(other.bad_records()) == other.skipped
    again = raw(found)
    assert again.to_arrow().num_rows == len(other)
    assert again.bad_records() == other.bad_records()


@given(stretches(), st.integers(FIRST_OFFSET, FIRST_OFFSET + 30))
def test_part_of_the_records(found: list[bytes], end: int) -> None:
    one, other = mapped(found).before(end), raw(found).before(end)
    assert other.to_arrow().to_pylist() == one.to_arrow().to_pylist()
    assert (other.left_out, other.next_offset) == (one.left_out, one.next_offset)


@given(stretches(), st.data())
def test_other_records_are_noticed(found: list[bytes], data: st.DataObject) -> None:
    count = len(found)
    assert not raw(found, FIRST_OFFSET + count + 1).intact
    assert not raw(found, FIRST_OFFSET + count - 1).intact
    number = data.draw(st.integers(0, count - 1))
    at = data.draw(st.sampled_from([0, 3, 4, 7, 15, 27]))  # size, magic, queue, offset
    bad = bytearray(found[number])
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    other = raw([*found[:number], bytes(bad), *found[number + 1 :]])
    columns = data.draw(st.booleans())
    assert not (columns and other.to_arrow().num_rows)
    assert not other.intact
    assert len(other) == other.to_arrow().num_rows == 0


def test_bodies_that_are_too_large_together_are_not_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 3000)
    body = compression.compress(bytes(1000))
    found = [
        layout.encode(
            "demo", body, b"", queue_id=3, queue_offset=number, physical_offset=9, store_ms=1,
            sys_flag=compression.COMPRESSED,
        )
        for number in range(4)
    ]  # fmt: skip
    few = read_records(b"".join(found[:3]), range(3), 3, FIRST_ID)
    assert few is not None
    assert few.bodies == [bytes(1000)] * 3
    assert read_records(b"".join(found), range(4), 3, FIRST_ID) is None


def test_bodies_that_fail_at_their_end_are_not_all_tried() -> None:
    body = compression.compress(bytes(1000))[:-1]
    found = [
        layout.encode(
            "demo", body, b"", queue_id=3, queue_offset=number, physical_offset=9, store_ms=1,
            sys_flag=compression.COMPRESSED,
        )
        for number in range(9)
    ]  # fmt: skip
    few = read_records(found[0], range(1), 3, FIRST_ID)
    assert few is not None
    assert [*few.bad] == [0]
    assert read_records(b"".join(found), range(9), 3, FIRST_ID) is None


def good(count: int, size: int = 100, topic: str = "demo") -> list[Draft]:
    return [Draft(topic, 0, b"%d" % number * size, b"") for number in range(count)]


def answer_of(client: BrokerClient, **fields: object) -> pb.GetMessageResponseB2C:
    return client.get(lastPackConsumed=True, **fields)


def offsets_of(answer: pb.GetMessageResponseB2C) -> list[int]:
    batch = MessageBatch(
        answer.SerializeToString(), topic="demo", broker="7", partition=0, exact_offsets=True
    )
    assert batch.intact
    return [*batch.offsets()]


async def test_a_get_returns_the_records_that_fit(store: Store, client: BrokerClient) -> None:
    pairs = zip(good(50), good(50, topic="other"), strict=True)
    store.append([draft for pair in pairs for draft in pair])
    client.register()
    sizes: list[int] = []
    seen: list[int] = []
    while len(seen) < 50:
        answer = answer_of(client, recordBytes=2000)
        assert not answer.messages
        sizes.append(len(answer.records))
        seen += offsets_of(answer)
    assert seen == [*range(50)]
    assert max(sizes) <= 2000
    assert len(sizes) > 3


async def test_the_broker_limits_what_a_consumer_gets(store: Store, client: BrokerClient) -> None:
    store.append(good(5000))
    client.register()
    assert answer_of(client, recordBytes=-1).messages
    answer = answer_of(client, recordBytes=0)
    assert not answer.messages
    assert 256 * 1024 < len(answer.records) <= 512 * 1024
    assert offsets_of(answer)[-1] < 4999


async def test_a_get_returns_no_record_after_the_end(store: Store, client: BrokerClient) -> None:
    store.append(good(50))
    client.register()
    assert offsets_of(answer_of(client, recordBytes=1 << 20, recordEnd=7)) == [*range(7)]
    assert offsets_of(answer_of(client, recordBytes=1 << 20, recordEnd=9)) == [7, 8]
    assert answer_of(client, recordBytes=1 << 20, recordEnd=9).messages
    assert client.commit().currOffset == 50


async def test_one_record_is_returned_in_any_case(store: Store, client: BrokerClient) -> None:
    store.append(good(2, 10_000))
    client.register()
    assert offsets_of(answer_of(client, recordBytes=1)) == [0]
    assert offsets_of(answer_of(client, recordBytes=1)) == [1]


async def test_a_read_without_acknowledgement_is_repeated(
    store: Store, client: BrokerClient
) -> None:
    store.append(good(9))
    client.register()
    assert offsets_of(answer_of(client, recordBytes=1 << 20)) == [*range(9)]
    again = client.get(lastPackConsumed=False)
    assert len(again.messages) == 9
    assert offsets_of(again) == [*range(9)]


async def test_filters_are_applied_by_the_broker(store: Store, client: BrokerClient) -> None:
    store.append(good(9))
    client.register(filterCondStr=["UA"])
    found = client.got(client.post_get(recordBytes=1 << 20))
    assert found is None or not found.HasField("records")


async def test_other_clients_get_messages(
    store: Store, client: BrokerClient, broker: Broker
) -> None:
    store.append(good(9))
    client.register()
    answer = answer_of(client)
    assert not answer.HasField("records")
    assert len(answer.messages) == 9
    assert broker.gets.held_count == 0


async def test_a_held_get_is_answered_with_records(client: BrokerClient) -> None:
    client.register()
    held = client.post_get(lastPackConsumed=False, recordBytes=1 << 20)
    assert client.got(held) is None
    await client.send(data=b"behind")
    answer = client.got(held)
    assert answer is not None
    assert offsets_of(answer) == [0]
