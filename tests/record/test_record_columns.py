"""The fast ways of parsing texts give the same result as the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from coherer._record import properties
from coherer._record.columns import (
    ParsedColumns,
    TextFormat,
    instants,
    parse_aligned,
    parse_each,
    parse_texts,
)
from coherer._wire.tubemq.columns import FORM as TUBEMQ

ROCKETMQ = TextFormat(
    b"\x02", b"\x01", properties.decode, ("$msgType$", "$msgTime$"), frozenset(["b"]), False
)
FORMS = [pytest.param(TUBEMQ, id="tubemq"), pytest.param(ROCKETMQ, id="rocketmq")]

names = st.sampled_from(["$msgType$", "$msgTime$", "a", "b", "ä", "", "\0"])
values = st.text("xyä=\0", max_size=3)
items = st.one_of(
    st.tuples(names, values).map("=".join), st.sampled_from(["", "a", "\0", "a=1,\0,a=2", "a=,"])
)


@st.composite
def texts(draw: st.DrawFn) -> list[bytes | None]:
    """Texts that mostly have the same names."""
    keys = draw(st.lists(names, min_size=1, max_size=4))
    size = draw(st.integers(1, 8))
    rows: list[bytes | None] = [
        ",".join(f"{key}={draw(values)}" for key in keys).encode() for _ in range(size)
    ]
    for _ in range(draw(st.integers(0, 2))):
        odd = st.lists(items, min_size=1, max_size=5).map(",".join).map(str.encode)
        row = draw(st.integers(0, size - 1))
        rows[row] = draw(st.none() | odd | st.binary(min_size=1, max_size=6))
    return rows


def written(rows: list[bytes | None], form: TextFormat) -> list[bytes | None]:
    """The same texts with the separators of a format."""
    if form is TUBEMQ:
        return rows
    return [
        row if row is None else row.replace(b"=", b"\x01").replace(b",", b"\x02") for row in rows
    ]


def content(columns: ParsedColumns) -> list[object]:
    for column in (*columns.named, columns.others):
        column.validate(full=True)
    return [column.to_pylist() for column in (*columns.named, columns.others)]


@pytest.mark.parametrize("form", FORMS)
@given(texts())
def test_parse_aligned_equals_parse_each(form: TextFormat, rows: list[bytes | None]) -> None:
    rows = written(rows, form)
    found = parse_aligned(rows, form)
    assert found is None or content(found) == content(parse_each(rows, form))


@pytest.mark.parametrize("form", FORMS)
@given(texts(), st.integers(1, 6))
def test_parse_texts_equals_parse_each(
    form: TextFormat, rows: list[bytes | None], times: int
) -> None:
    rows = written(rows * times, form)
    assert content(parse_texts(rows, form)) == content(parse_each(rows, form))


@pytest.mark.parametrize("form", FORMS)
def test_parse_aligned_accepts_texts_of_a_producer(form: TextFormat) -> None:
    rows = [f"$msgType$=UA,$msgTime$=202401020304,k={n},b=1".encode() for n in range(100)]
    found = parse_aligned(written([*rows], form), form)
    assert found is not None
    types, times, others = content(found)
    assert types == ["UA"] * 100
    assert times == ["202401020304"] * 100
    hidden = [] if form.hidden else [("b", "1")]
    assert others == [[("k", str(n)), *hidden] for n in range(100)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("row", [b"a=\xff", b"\xff=a", b"a=\xff,\xfe=b"])
def test_texts_that_are_not_utf8(form: TextFormat, row: bytes) -> None:
    rows = written([row, row], form)
    found = parse_aligned(rows, form)
    assert found is None or content(found) == content(parse_each(rows, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"a=1", None], id="one without"),
        pytest.param([b"a=1", b"c=1"], id="other names"),
        pytest.param([b"a=1,c=2", b"c=2,a=1"], id="another order"),
        pytest.param([b"a=1,a=2"], id="a name twice"),
        pytest.param([b"a=1", b"a"], id="no value"),
        pytest.param([b"a=1,c=1", b"a=2"], id="fewer items"),
        pytest.param([b"a=1", b"a=2,\0,a=3"], id="a mark inside"),
    ],
)
def test_texts_that_are_not_aligned(form: TextFormat, rows: list[bytes | None]) -> None:
    rows = written(rows, form)
    assert parse_aligned(rows, form) is None
    assert content(parse_texts(rows, form)) == content(parse_each(rows, form))


def test_a_blank_value_is_ignored_with_rocketmq() -> None:
    assert parse_aligned([b"a=", b"a="], TUBEMQ) is not None
    rows: list[bytes | None] = [b"a\x01", b"a\x01x"]
    assert parse_aligned(rows, ROCKETMQ) is None
    assert content(parse_texts(rows, ROCKETMQ))[2] == [[], [("a", "x")]]


@given(
    st.lists(
        st.none() | st.sampled_from(["201301011000", "20130101100000007", "2013", ""]), max_size=9
    )
)
def test_instants(rows: list[str | None]) -> None:
    known = {
        "201301011000": "2013-01-01 10:00:00+00:00",
        "20130101100000007": "2013-01-01 10:00:00.007000+00:00",
    }
    found = instants(pa.array(rows, pa.string())).to_pylist()
    assert [one and str(one) for one in found] == [known.get(row or "") for row in rows]
