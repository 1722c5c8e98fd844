"""Reading messages from bytes."""

from __future__ import annotations

import io
from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer.cli import reading
from coherer.cli.reading import Envelope, Stamp, chunks, lines, messages
from coherer.errors import UsageError
from coherer.message import ReceivedMessage

DAY = datetime.fromisoformat("2024-05-06")  # TubeMQ keeps no zone
STAMP = Stamp("t", "tag", DAY, {"a": "1", "b": "2"})


@given(st.binary(), st.lists(st.integers(1, 8)))
def test_lines_do_not_depend_on_chunk_boundaries(data: bytes, cuts: list[int]) -> None:
    parts: list[bytes] = []
    rest = data
    for cut in cuts:
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts.append(rest)
    found = [line for batch in lines(part for part in parts if part) for line in batch]
    wanted = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    assert found == (wanted if wanted[-1] else wanted[:-1])  # a last line needs no end


def test_lines_are_returned_as_soon_as_they_are_complete() -> None:
    batches = lines(iter([b"one\ntw", b"o\n", b"three"]))
    assert [next(batches), next(batches), next(batches)] == [[b"one"], [b"two"], [b"three"]]


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="raw"):
        list(lines([b"x" * 6, b"x" * 6]))


def test_chunks_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 4)
    assert list(chunks(io.BytesIO(b"abcdefghij"))) == [b"abcd", b"efgh", b"ij"]
    assert list(chunks(io.BufferedReader(io.BytesIO(b"abcde")))) == [b"abcd", b"e"]


def test_options_apply_to_lines() -> None:
    ((one, two),) = messages([b"x\ny\n"], "lines", STAMP, "f")
    assert (one.topic, one.body, one.tag, one.time) == ("t", b"x", "tag", DAY)
    assert (two.body, two.properties) == (b"y", {"a": "1", "b": "2"})


def test_a_raw_file_is_one_message() -> None:
    ((one,),) = messages([b"x\n", b"y\n"], "raw", STAMP, "f")
    assert one.body == b"x\ny\n"
    assert list(messages([], "raw", STAMP, "f")) == []


def test_json_overrides_the_options() -> None:
    line = b'{"body": "\xc3\xa4", "tag": "own", "properties": {"b": "3"}, "extra": 1}\n'
    ((one,),) = messages([line], "json", STAMP, "f")
    assert (one.body, one.tag) == ("ä".encode(), "own")
    assert one.properties == {"a": "1", "b": "3"}
    ((two,),) = messages([b'{"base64": "AP8=", "time": "2020-01-02T03:04:00"}'], "json", STAMP, "f")
    assert (two.body, two.tag, two.time) == (
        b"\0\xff",
        "tag",
        datetime.fromisoformat("2020-01-02T03:04"),
    )


@pytest.mark.parametrize(
    "line",
    [b"plain text", b"{}", b'{"body": 1}', b'{"base64": "%"}', b'{"body": "x', b"[1]", b"\xff"],
)
def test_a_malformed_message_is_quoted(line: bytes) -> None:
    with pytest.raises(UsageError, match=r"^f, line 2 is not a JSON message"):
        list(messages([b"\n" + line], "json", STAMP, "f"))


@given(
    st.builds(
        ReceivedMessage,
        topic=st.just("t"),
        body=st.binary(min_size=1),
        tag=st.none() | st.text(),
        time=st.none() | st.datetimes().map(lambda t: t.replace(second=0, microsecond=0)),
        properties=st.dictionaries(st.text(min_size=1), st.text()),
        broker=st.just("1"),
        partition=st.integers(0, 9),
        offset=st.none() | st.integers(0, 2**62),
        id=st.text("0123456789"),
    )
)
def test_produce_accepts_the_output_of_consume(message: ReceivedMessage) -> None:
    line = msgspec.json.encode(Envelope.of(message)) + b"\n"
    ((again,),) = messages([line], "json", Stamp("t"), "f")
    assert (again.topic, again.body, again.tag) == (message.topic, message.body, message.tag)
    assert (again.time, again.properties) == (message.time, message.properties)
