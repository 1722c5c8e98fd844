"""The quick ways of taking attributes apart against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from coherer.tubemq import columns

names = st.sampled_from(["$msgType$", "$msgTime$", "a", "b", "ä", "", "\0"])
values = st.text("xyä=\0", max_size=3)
items = st.one_of(
    st.tuples(names, values).map("=".join), st.sampled_from(["", "a", "\0", "a=1,\0,a=2", "a=,"])
)


@st.composite
def texts(draw: st.DrawFn) -> list[bytes | None]:
    """Texts with the same names, mostly, and some that are not."""
    keys = draw(st.lists(names, min_size=1, max_size=4))
    size = draw(st.integers(1, 8))
    rows: list[bytes | None] = [
        ",".join(f"{key}={draw(values)}" for key in keys).encode() for _ in range(size)
    ]
    for _ in range(draw(st.integers(0, 2))):
        odd = st.lists(items, min_size=1, max_size=5).map(",".join).map(str.encode)
        place = draw(st.integers(0, size - 1))
        rows[place] = draw(st.none() | odd | st.binary(min_size=1, max_size=6))
    return rows


def plain(attributes: list[bytes | None]) -> list[object]:
    return [column.to_pylist() for column in columns._one_by_one(attributes)]


@given(texts())
def test_in_step_finds_what_one_by_one_finds(attributes: list[bytes | None]) -> None:
    found = columns._in_step(attributes)
    if found is not None:
        for column in found:
            column.validate(full=True)
        assert [column.to_pylist() for column in found] == plain(attributes)


@given(texts(), st.integers(1, 6))
def test_whichever_way_is_taken(attributes: list[bytes | None], times: int) -> None:
    attributes = attributes * times
    found = columns._take_apart(attributes)
    assert [column.to_pylist() for column in found] == plain(attributes)


def test_in_step_takes_what_a_producer_writes() -> None:
    attributes = [f"$msgType$=UA,$msgTime$=202401020304,k={n},l=".encode() for n in range(100)]
    found = columns._in_step(attributes)
    assert found is not None
    tags, times, properties = found
    assert tags.to_pylist() == ["UA"] * 100
    assert times.to_pylist() == ["202401020304"] * 100
    assert properties.to_pylist()[7] == [("k", "7"), ("l", "")]


@pytest.mark.parametrize(
    "attributes",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"a=1", None], id="one without"),
        pytest.param([b"a=1", b"b=1"], id="other names"),
        pytest.param([b"a=1,b=2", b"b=2,a=1"], id="another order"),
        pytest.param([b"a=1,a=2"], id="a name twice"),
        pytest.param([b"a=1", b"a"], id="no value"),
        pytest.param([b"a=1,b=1", b"a=2"], id="fewer items"),
        pytest.param([b"a=1", b"a=2,\0,a=3"], id="a mark inside"),
        pytest.param([b"a=\xff"], id="no UTF-8"),
        pytest.param([b"\xff=a"], id="no UTF-8 in a name"),
    ],
)
def test_what_is_not_in_step(attributes: list[bytes | None]) -> None:
    assert columns._in_step(attributes) is None
    found = columns._take_apart(attributes)
    assert [column.to_pylist() for column in found] == plain(attributes)


def test_the_schema() -> None:
    batch = columns.record_batch(
        topic="t", broker="b", partition=1, offsets=[2], ids=[3], attributes=[None], bodies=[b"x"]
    )
    assert batch.schema == columns.SCHEMA
    assert batch.to_pylist() == [
        {
            "topic": "t",
            "broker": "b",
            "partition": 1,
            "offset": 2,
            "id": 3,
            "tag": None,
            "time": None,
            "value": b"x",
            "properties": [],
        }
    ]
