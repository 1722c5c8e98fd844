"""Offsets: starting positions, commits, and the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.common.offsets import OffsetTable, Position, Start
from coherer.errors import DamagedStoreError

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("had", "start", "exact", "expected"),
    [
        (-1, Start.FIRST, None, 10),
        (-1, Start.LATEST, None, 20),
        (-1, Start.ALWAYS_LATEST, None, 20),
        (15, Start.FIRST, None, 15),
        (15, Start.LATEST, None, 15),
        (15, Start.ALWAYS_LATEST, None, 20),
        (-1, Start.FIRST, 12, 12),
        (15, Start.LATEST, 12, 12),
        (15, Start.LATEST, 3, 10),
        (15, Start.LATEST, 99, 20),
        (15, Start.LATEST, -1, 15),
        (15, Start.ALWAYS_LATEST, 12, 20),
    ],
)
def test_the_starting_offset_of_a_reader(
    had: int, start: Start, exact: int | None, expected: int
) -> None:
    position = Position(had)
    position.delta = 4
    assert position.begin(start, exact, 10, 20) == expected
    assert (position.offset, position.delta) == (expected, 0)


def test_dropping_a_read_does_not_move_the_offset() -> None:
    position = Position(5)
    position.delta = 3
    assert position.commit(consumed=False) == 5
    assert position.commit() == 5


def test_an_uncommitted_read_is_dropped_with_its_reader() -> None:
    table = OffsetTable()
    position = table.open("g", "t", 0)
    position.begin(Start.FIRST, None, 0, 9)
    position.delta = 3
    table.left("g", "t", 0)
    assert table.find("g", "t", 0) is position
    assert position.commit() == 0
    table.left("g", "t", 1)  # never opened


def test_a_named_offset_is_kept() -> None:
    table = OffsetTable()
    table.open("g", "t", 1).offset = 7
    for partition in range(2):
        position = table.open("g", "t", partition)
        assert position.begin(Start.LATEST, 4, 0, 9) == 4
        position.delta = 2
        table.left("g", "t", partition)
        assert table.open("g", "t", partition).begin(Start.LATEST, None, 0, 9) == 4
    assert table.dump() == b'{"offsetTable":{"t@g":{0:4,1:4}}}'


def test_removing() -> None:
    table = OffsetTable()
    for group in ("g", "h"):
        for topic in ("t", "u"):
            table.open(group, topic, 0).offset = 1
    assert table.groups() == {"g", "h"}
    assert table.remove("g", frozenset({"t"}))
    assert not table.remove("g", frozenset({"t"}))
    assert [topic for topic, _, _ in table.of("g")] == ["u"]
    table.remove_topic("u")
    assert table.groups() == {"h"}
    assert table.remove("h")
    assert table.dump() == b'{"offsetTable":{}}'


def test_offsets_of_idle_groups_are_removed() -> None:
    table = OffsetTable()
    table.open("idle", "t", 0).offset = 1
    table.open("busy", "t", 0).offset = 1
    for day in range(21):
        table.forget_idle(day * DAY_MS, 20 * DAY_MS, {("t", "busy")})
    assert table.groups() == {"busy"}
    table.forget_idle(39 * DAY_MS, 20 * DAY_MS, set())
    assert table.groups() == {"busy"}
    table.forget_idle(40 * DAY_MS, 20 * DAY_MS, set())
    assert table.groups() == set()


def test_the_group_of_a_reader_leaves_nothing() -> None:
    table = OffsetTable()
    position = table.open("coherer_reader_1", "t", 0)
    position.begin(Start.FIRST, 3, 0, 9)
    position.delta = 4
    assert position.commit() == 7
    position.move_to(8)
    assert position.transient
    assert table.saved_groups() == set()
    assert OffsetTable.load(table.dump()).groups() == set()
    table.left("coherer_reader_1", "t", 0)
    assert table.groups() == set()
    older = b'{"offsetTable":{"t@coherer_reader_1":{0:7},"t@g":{0:1}}}'
    assert OffsetTable.load(older).groups() == {"g"}


def test_javas_file_is_read() -> None:
    data = b'{\n\t"offsetTable":{\n\t\t"TopicTest@group":{0:10,1:7\n\t\t},"a@b":{ "3" : 4}\n\t}\n}'
    table = OffsetTable.load(data)
    assert [(number, place.offset) for _, number, place in table.of("group")] == [(0, 10), (1, 7)]
    assert [(number, place.offset) for _, number, place in table.of("b")] == [(3, 4)]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"offsetTable":{"a@b":{"x":1}}}', b"\xff"])
def test_a_damaged_offset_file_raises(data: bytes) -> None:
    with pytest.raises(DamagedStoreError, match=r"consumerOffset\.json"):
        OffsetTable.load(data)


@given(
    st.dictionaries(
        st.tuples(
            st.text(max_size=5) | st.sampled_from(["{1:", ",2:", '"', '"{3:', "\\"]),
            st.from_regex(r"[A-Za-z][\w-]*", fullmatch=True),
        ),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1),
        max_size=5,
    )
)
def test_the_offset_file_round_trips(places: dict[tuple[str, str], dict[int, int]]) -> None:
    table = OffsetTable()
    for (group, topic), offsets in places.items():
        for partition, offset in offsets.items():
            table.open(group, topic, partition).offset = offset
    again = OffsetTable.load(table.dump())
    assert again.dump() == table.dump()
    for (group, topic), offsets in places.items():
        for partition, offset in offsets.items():
            found = again.find(group, topic, partition)
            assert found is not None
            assert found.offset == offset
