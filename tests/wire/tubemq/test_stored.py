"""Property texts that are translated or parsed together give what each alone gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq.stored import all_attributes, attributes_of, is_raw

pytest.importorskip("pyarrow")

import pyarrow as pa

from coherer._record.columns import ParsedColumns, parse_each
from coherer._wire.tubemq.columns import FORM, CodedTexts

NAMES = [
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "WAIT",
    "$msgTime$",
    "$msgType$",
    "TUBE",
    "k",
    "a,b",
    "a=b",
    "é",
]
VALUES = ["x", "y", "a", "a,b", "a=b", "202401020304", "", "é", "\0", "\0\n\0"]

pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES))


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Texts of one producer: the same names, and mostly plain values."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    plain = draw(st.booleans())
    values = st.sampled_from(VALUES[:3] if plain else VALUES)
    rows = draw(st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=8))
    end = draw(st.sampled_from(["", "\x02", "\x02TUBE\x01a"]))
    return [
        (
            "\x02".join(f"{name}\x01{value}" for name, value in zip(names, row, strict=False)) + end
        ).encode()
        for row in rows
    ]


@st.composite
def mixed(draw: st.DrawFn) -> list[bytes | None]:
    rows = draw(st.lists(st.lists(pairs, max_size=4), max_size=6))
    texts: list[bytes | None] = [
        "\x02".join(f"{name}\x01{value}" for name, value in row).encode() for row in rows
    ]
    return texts + draw(st.lists(st.sampled_from([None, b"", b"\xff", b"k\x01\xff"]), max_size=2))


def alone(text: bytes | None) -> bytes | None:
    return attributes_of(text or b"").block[4:] or None


def without_raw(texts: list[bytes] | list[bytes | None]) -> list[bytes | None]:
    return [text for text in texts if text is None or not is_raw(text)]


@given(st.one_of(alike(), mixed()))
def test_texts_are_translated_together_as_alone(texts: list[bytes | None]) -> None:
    texts = without_raw(texts)
    assert all_attributes(texts) == [*map(alone, texts)]


@given(st.one_of(alike(), mixed()), st.booleans())
def test_texts_are_parsed_together_as_alone(texts: list[bytes | None], coded: bool) -> None:
    texts = without_raw(texts)
    rows = pa.array(range(len(texts)), pa.int32()) if coded else None
    found = CodedTexts(texts, rows, all_attributes).parse()
    expected = parse_each([*map(alone, texts)], FORM)
    assert _content(found) == _content(expected)


def _content(parsed: ParsedColumns) -> list[object]:
    for column in (*parsed.named, parsed.others):
        column.validate(full=True)
    return [column.to_pylist() for column in (*parsed.named, parsed.others)]
