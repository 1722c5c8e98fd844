"""Payloads and records: translation in both directions, byte for byte."""

from __future__ import annotations

import time
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record import compression, layout, properties
from coherer._record.properties import java_hash
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.payload import checksum

FIRST_ID = 7 << 48
PHYSICAL = 123_456


def stored(
    body: bytes, text: bytes, flag: int, *, sys_flag: int = 0, born_host: bytes = bytes(8)
) -> memoryview:
    return memoryview(
        layout.encode(
            "demo",
            body,
            text,
            queue_id=3,
            queue_offset=9,
            physical_offset=PHYSICAL,
            store_ms=1,
            flag=flag,
            sys_flag=sys_flag,
            born_host=born_host,
        )
    )


def delivered(mapper: Mapper, *records: memoryview) -> list[pb.TransferedMessage]:
    connection = b"".join(mapper.deliver(list(records), len("demo"), FIRST_ID).chunks)
    return list(pb.GetMessageResponseB2C.FromString(connection).messages)


def block(attributes: str) -> bytes:
    data = attributes.encode()
    return len(data).to_bytes(4, "big") + data


words = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02=,"),
    min_size=1,
    max_size=8,
)
names = words | st.sampled_from(["KEYS", "TAGS", "TUBE", "DELAY", "$msgTime$", "$msgType$"])
items = st.lists(st.tuples(names, words), max_size=4)
blocks = st.builds(lambda pairs: block(",".join(f"{name}={value}" for name, value in pairs)), items)
payloads = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.builds(bytes.__add__, blocks, st.binary(max_size=40)),
    st.builds(lambda b, cut: b[:cut] or b"x", blocks, st.integers(1, 60)),
)
flags = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 1)


@given(st.lists(st.tuples(payloads, flags, words | st.just("")), min_size=1, max_size=6))
def test_every_payload_comes_back_as_it_was_sent(sent: list[tuple[bytes, int, str]]) -> None:
    mapper = Mapper(cached_max=3)
    for data, flag, tag in sent * 2:  # the second time from the caches
        body, text, code, keys = mapper.to_record(data, flag, tag.strip())
        assert len(text) <= 32767
        found = properties.decode(text)
        assert keys == properties.index_keys({"KEYS": found.get("KEYS", "")})
        assert code == (java_hash(tag.strip()) if tag.strip() else 0)
        [message] = delivered(mapper, stored(body, text, flag))
        assert message.payLoadData == data
        assert message.flag == flag
        assert message.checkSum == crc32(data) & 0x7FFFFFFF
        assert message.messageId == FIRST_ID + PHYSICAL


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4, unique_by=lambda item: item[0]))
def test_attributes_become_properties(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name + "_", value) for name, value in pairs]  # no reserved name has this suffix
    text = ",".join(f"{name}={value}" for name, value in [("$msgType$", "A"), *pairs])
    body, stored_text, code, _ = Mapper().to_record(block(text) + b"hello", 1, "A")
    assert body == b"hello"
    assert code == java_hash("A")
    assert properties.decode(stored_text) == {"TAGS": "A", **dict(pairs), "TUBE": "a"}


@pytest.mark.parametrize(
    ("attributes", "tag"),
    [
        (b"k", ""),
        (b"k=", ""),
        (b"=v", ""),
        (b"k=a=b", ""),
        (b"k=a,k=b", ""),
        (b"k=a,,l=b", ""),
        (b"k=\xff", ""),
        (b"k=\x01", ""),
        (b"k=\x02", ""),
        (b"TAGS=A", ""),
        (b"DELAY=3", ""),
        (b"TUBE=a", ""),
        (b"$msgType$=A", ""),
        (b"$msgType$=A", "B"),
        (b"k=v,$msgType$=A", "A"),
        (b"k=v", "A"),
        (b"k=" + b"v" * 33_000, ""),
    ],
)
def test_irreversible_attributes_stay_in_the_body(attributes: bytes, tag: str) -> None:
    data = len(attributes).to_bytes(4, "big") + attributes + b"hello"
    mapper = Mapper()
    body, text, code, keys = mapper.to_record(data, 1, tag)
    assert body == data
    assert properties.decode(text) == ({"TAGS": tag} if tag else {}) | {"TUBE": "r"}
    assert code == (java_hash(tag) if tag else 0)
    assert keys == ()
    [message] = delivered(mapper, stored(body, text, 1))
    assert (message.payLoadData, message.flag) == (data, 1)


def test_keys_are_indexed() -> None:
    _, text, _, keys = Mapper().to_record(block("KEYS=order-1 order-2,k=v") + b"x", 1, "")
    assert keys == ("order-1", "order-2")
    assert properties.decode(text)["KEYS"] == "order-1 order-2"


def test_a_type_with_separators_is_only_filtered_by() -> None:
    body, text, code, _ = Mapper().to_record(b"hello", 0, "a\x01b")
    assert (body, properties.decode(text), code) == (b"hello", {"TUBE": "r"}, java_hash("a\x01b"))


def test_a_cached_block_in_a_truncated_payload() -> None:
    mapper = Mapper()
    whole = block("k=v")
    assert mapper.to_record(whole, 1, "")[0] == b""
    lying = (9).to_bytes(4, "big") + b"k=v"
    body, text, _, _ = mapper.to_record(lying, 1, "")
    assert body == lying
    [message] = delivered(mapper, stored(body, text, 1))
    assert message.payLoadData == lying


def test_rocketmqs_records_get_attributes() -> None:
    text = properties.encode(
        {"k": "v", "UNIQ_KEY": "0A", "CLUSTER": "C", "KEYS": "x y", "TAGS": "A", "bad": "a=b,c"}
        | {"$msgTime$": "202401020304"}
    )
    [message] = delivered(Mapper(), stored(b"hello", text, 6))
    expected = block("$msgType$=A,$msgTime$=202401020304,k=v,KEYS=x y") + b"hello"
    assert (message.payLoadData, message.flag) == (expected, 1)
    assert message.checkSum == crc32(expected) & 0x7FFFFFFF


def test_a_rocketmq_flag_does_not_claim_attributes() -> None:
    [message] = delivered(Mapper(), stored(b"hello", b"", 3))
    assert (message.payLoadData, message.flag) == (b"hello", 2)


def test_rocketmqs_compressed_bodies_and_ipv6_hosts() -> None:
    body = compression.compress(b"hello" * 1000)
    text = properties.encode({"TAGS": "A"})
    plain = block("$msgType$=A") + b"hello"
    records = [
        stored(body, text, 0, sys_flag=compression.COMPRESSED),
        stored(b"hello", text, 0, born_host=bytes(20)),
        stored(b"hello", b"", 0, born_host=bytes(20)),
    ]
    first, second, third = delivered(Mapper(), *records)
    assert first.payLoadData == block("$msgType$=A") + b"hello" * 1000
    assert first.checkSum == crc32(first.payLoadData) & 0x7FFFFFFF
    assert (second.payLoadData, second.checkSum) == (plain, crc32(plain) & 0x7FFFFFFF)
    assert (third.payLoadData, third.flag) == (b"hello", 0)


def longer_than_it_is(record: memoryview, length: int) -> memoryview:
    """The record with a changed body length."""
    damaged = bytearray(record)
    damaged[84:88] = length.to_bytes(4, "big")
    return memoryview(bytes(damaged))


def test_undeliverable_messages_are_omitted_and_reported() -> None:
    sound = stored(b"hello", properties.encode({"TAGS": "A"}), 0)
    damaged_v6 = bytearray(stored(b"hello", b"", 0, born_host=bytes(20)))
    damaged_v6[100] ^= 1
    records = [
        stored(b"no zlib", b"", 0, sys_flag=compression.COMPRESSED),
        sound,
        longer_than_it_is(sound, 6),
        longer_than_it_is(sound, 0x7FFFFFFF),
        memoryview(bytes(damaged_v6)),
        stored(compression.compress(b"cut short" * 99)[:-4], b"", 0, sys_flag=1),
        sound,
    ]
    found = Mapper().deliver(records, len("demo"), FIRST_ID)
    answer = pb.GetMessageResponseB2C.FromString(b"".join(found.chunks))
    whole = [one for one in answer.messages if checksum(one.payLoadData) == one.checkSum]
    assert [one.payLoadData for one in whole] == [block("$msgType$=A") + b"hello"] * 2
    # A length that is only a little wrong is for the reader's check sum to find.
    assert len(answer.messages) + len(found.left_out) == len(records)
    assert set(found.left_out) >= {0, 3, 4, 5}
    assert found.taken == len(records)


def test_inflated_bodies_of_one_answer_are_bounded() -> None:
    large = stored(compression.compress(bytes(3_000_000)), b"", 0, sys_flag=1)
    mapper = Mapper()
    assert mapper.deliver([large] * 5, 4, FIRST_ID).taken == 1
    assert mapper.deliver([large] * 5, 4, FIRST_ID, inflated_max=7_000_000).taken == 3
    too_large = stored(compression.compress(bytes(21 << 20)), b"", 0, sys_flag=1)
    found = mapper.deliver([too_large, too_large, large], 4, FIRST_ID)
    assert (found.taken, found.left_out, found.chunks) == (1, [0], [])


def test_an_oversized_attribute_block_is_not_parsed() -> None:
    data = block("," * (16 << 20)) + b"x"
    took_s: list[float] = []
    for _ in range(3):  # the best counts: another test's garbage may be collected meanwhile
        began = time.thread_time()
        body, text, _, _ = Mapper().to_record(data, 1, "")
        took_s.append(time.thread_time() - began)
        assert (body == data, properties.decode(text)) == (True, {"TUBE": "r"})
    assert min(took_s) < 0.33


def test_a_damaged_body_keeps_its_wrong_check_sum() -> None:
    mapper = Mapper()
    body, text, _, _ = mapper.to_record(block("k=v") + b"hello", 1, "")
    record = bytearray(stored(body, text, 1))
    record[record.index(b"hello")] ^= 1
    [message] = delivered(mapper, memoryview(bytes(record)))
    assert message.checkSum != crc32(message.payLoadData) & 0x7FFFFFFF


BATCH_PIECES = st.sampled_from(
    ["TAGS\x01a", "TAGS\x01é", "$msgTime$\x01202401020304", "k\x01v", "k\x01w", "KEYS\x01x y",
     "k\x01", "a=b\x01c", "a\x01b,c", "UNIQ_KEY\x010A", "TUBE\x01r"]
)  # fmt: skip


@given(st.lists(st.lists(BATCH_PIECES, max_size=3).map("\x02".join), min_size=1, max_size=4))
def test_a_batch_is_stored_as_single_messages_are(texts: list[str]) -> None:
    """The texts of a batch become the records that the same attributes become by themselves."""
    wanted: list[tuple[bytes, bytes, int, tuple[str, ...]] | None] = []
    for text in texts:
        tag = text.removeprefix("TAGS\x01").partition("\x02")[0] if text[:5] == "TAGS\x01" else ""
        attributes = text.replace("\x01", "=").replace("\x02", ",")
        if tag:
            attributes = "$msgType$" + attributes.removeprefix("TAGS")
        one = Mapper().to_record(block(attributes) + b"x" if text else b"x", int(bool(text)), tag)
        clear = text.count("\x02") < text.count("\x01") and "=" not in text and "," not in text
        wanted.append(one if not text or (one[0] == b"x" and clear) else None)
    found = Mapper().to_records([text.encode() for text in texts])
    if found is None:
        assert None in wanted
    else:
        rows = list(zip(*found, strict=True))
        assert rows == [one[1:] for one in wanted if one is not None]
