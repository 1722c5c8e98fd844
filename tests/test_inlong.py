"""InLongMsg: what Java's encoder wrote, what an encoder written for these tests writes, damage."""

from __future__ import annotations

import contextlib
import struct
import sys
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer.errors import ProtocolError, UsageError
from coherer.inlong import InLongMessage, decode, is_envelope
from tests.inlong_java import JAVA, JavaEnvelope


@pytest.mark.parametrize("java", JAVA)
def test_envelopes_of_java(java: JavaEnvelope) -> None:
    found = decode(bytes.fromhex(java.envelope))
    assert (found.version, found.created_ms) == (java.version, java.created_ms)
    assert found.messages == [InLongMessage(*message) for message in java.messages]
    assert found.count is None or found.version == 3 or found.count == len(found.messages)


class Written(NamedTuple):
    """An envelope, and what it holds."""

    data: bytes
    messages: list[InLongMessage]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="&=\0"), max_size=9)
KEYS = TEXTS.filter(bool)
MAPS = st.dictionaries(KEYS, TEXTS, min_size=1, max_size=3)
BODIES = st.lists(st.binary(max_size=80), max_size=4)


def text_of(attributes: dict[str, str]) -> bytes:
    return "&".join(f"{key}={value}" for key, value in attributes.items()).encode()


def java_utf(attributes: dict[str, str]) -> bytes:
    """Text as `writeUTF` writes it: each surrogate in three bytes."""
    units = text_of(attributes).decode().encode("utf-16-be")
    pairs = (units[at : at + 2] for at in range(0, len(units), 2))
    encoded = b"".join(
        pair.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass") for pair in pairs
    )
    return struct.pack(">H", len(encoded)) + encoded


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def block(data: bytes, snappy: bool) -> bytes:
    return pa.compress(data, codec="snappy", asbytes=True) if snappy else data


@st.composite
def grouped(draw: st.DrawFn) -> Written:
    version = draw(st.integers(0, 3))
    groups: list[bytes] = []
    messages: list[InLongMessage] = []
    for common, bodies in draw(st.lists(st.tuples(MAPS, BODIES), max_size=3)):
        snappy = draw(st.booleans())
        if version == 3:
            own = {"own": draw(TEXTS)}
            joined = b"".join(sized(body) + sized(text_of(own)) for body in bodies)
            plain = sized(joined)
        else:
            own = {}
            plain = b"".join(map(sized, bodies))
        messages += [InLongMessage(common | own, body) for body in bodies]
        count = struct.pack(">I", len(bodies)) if version == 2 else b""
        packed = sized(bytes([snappy]) + block(plain, snappy))
        groups.append(java_utf(common) + count + packed)
    magic = bytes([15, version])
    time = struct.pack(">q", 1366070580224) if version >= 1 else b""
    count = struct.pack(">I", len(messages)) if version >= 2 else b""
    head = magic + time + count + struct.pack(">I", len(groups))
    return Written(head + b"".join(groups) + magic, messages)


@st.composite
def binary(draw: st.DrawFn) -> Written:
    snappy, own, numeric = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    common, bodies = draw(MAPS), draw(BODIES)
    ids = {"groupId": "65535", "streamId": "0"} if numeric else {}
    added = common | {"dt": "4294967295000", **ids, "cnt": str(len(bodies))}
    messages, plain = [], b""
    for number, body in enumerate(bodies):
        private = {"own": str(number)} if own else {}
        messages.append(InLongMessage(private | added, body))
        plain += sized(body) + (sized(text_of(private)) if own else b"")
    packed, text = block(plain, snappy), text_of(common)
    head = struct.pack(
        ">IBHHHIHII",
        len(packed) + len(text) + 25,
        7 | snappy << 5,
        65535,
        0,
        own | (not numeric) << 2,
        2**32 - 1,
        len(bodies),
        9,
        len(packed),
    )
    tail = struct.pack(">H", len(text)) + text + b"\xee\x01"
    return Written(b"\x0f\x04" + head + packed + tail + b"\x0f\x04", messages)


ENVELOPES = grouped() | binary()


@given(ENVELOPES)
def test_what_is_written_is_read(written: Written) -> None:
    assert is_envelope(written.data)
    for data in (written.data, bytearray(written.data), memoryview(written.data)):
        assert decode(data).messages == written.messages


@given(ENVELOPES, st.data())
def test_damage_is_a_protocol_error_or_another_envelope(
    written: Written, data: st.DataObject
) -> None:
    """Envelopes have no check sum; but no damage raises anything else, or allocates much."""
    damaged = bytearray(written.data)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (damaged, damaged[:cut] + damaged[-2:]):
        with contextlib.suppress(ProtocolError):
            decode(candidate)


@given(st.binary(max_size=60))
def test_other_bytes_are_no_envelope(data: bytes) -> None:
    if not is_envelope(data):
        with pytest.raises(ProtocolError, match="not an InLongMsg"):
            decode(data)


PLAIN = bytes.fromhex("0f010000013e1026d4000000000100036b3d76000000080000000003616263")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PLAIN + b"x\x0f\x01", "1 bytes after its end"),
        (PLAIN[:-1] + b"\x0f\x01", "8 bytes are announced, 7 are left"),
        (PLAIN.replace(b"k=v", b"k&v") + b"\x0f\x01", "attribute 'k&v' without a value"),
        (PLAIN[:-8] + b"\2" + PLAIN[-7:] + b"\x0f\x01", "unknown compression 2"),
        (PLAIN[:-8] + b"\1\xff\xff\xff\xff\x0f" + PLAIN[-2:] + b"\x0f\x01", "announces 4294967295"),
        (PLAIN[:-8] + b"\1" + b"\xff" * 7 + b"\x0f\x01", "has no size"),
        (PLAIN[:-8] + b"\1\x08" + PLAIN[-6:] + b"\x0f\x01", "a Snappy block: "),
    ],
)
def test_errors_name_the_damage(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(data)


def test_compression_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert decode(PLAIN + b"\x0f\x01").messages == [InLongMessage({"k": "v"}, b"abc")]
    with pytest.raises(UsageError, match="pip install pyarrow"):
        decode(bytes.fromhex(JAVA[1].envelope))
