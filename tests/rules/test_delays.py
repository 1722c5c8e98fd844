"""Delayed messages: redirected, due, released.

See docs/protocol/rocketmq.md, section 6.6.
"""

from __future__ import annotations

import msgspec
import pytest

from coherer._record import layout
from coherer._record.properties import decode, encode
from coherer._rules.rocketmq.delays import (
    DelayPositions,
    delay_level,
    delayed,
    due_count,
    due_ms,
    released,
)
from coherer._store import Draft, QueueEntry
from coherer._store.clock_history import ClockHistory
from coherer.errors import DamagedStoreError, UsageError


def stored(draft: Draft) -> layout.Record:
    """The draft as the store would hold it."""
    return layout.decode(
        layout.encode(
            draft.topic, draft.body, draft.properties,
            queue_id=draft.queue_id, queue_offset=0, physical_offset=0, store_ms=1,
            flag=draft.flag, sys_flag=draft.sys_flag, born_ms=draft.born_ms,
            born_host=draft.born_host, reconsume_times=draft.reconsume_times,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ({"DELAY": "1"}, 1),
        ({"DELAY": "40"}, 40),
        ({"DELAY": "0"}, 0),
        ({"DELAY": "-2"}, -2),
        ({"MYDELAY": "3"}, 0),
        ({"TAGS": "DELAY"}, 0),
    ],
)
def test_the_level(properties: dict[str, str], level: int) -> None:
    assert delay_level(encode(properties)) == level


def test_an_invalid_level_fails_with_javas_words() -> None:
    with pytest.raises(UsageError, match='For input string: "soon"'):
        delay_level(encode({"DELAY": "soon"}))


def test_a_released_message_is_unchanged() -> None:
    sent = Draft(
        "flights", 3, b"zz", encode({"DELAY": "3", "TAGS": "TagA", "KEYS": "k1 k2", "x": "y"}),
        tag_code=2598919, flag=7, sys_flag=1, born_ms=5, born_host=bytes([10, 0, 0, 9, 0, 0, 0, 1]),
        reconsume_times=2, keys=("k1", "k2"),
    )  # fmt: skip
    waits = delayed(sent, 3)
    assert (waits.topic, waits.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    back = released(stored(waits))
    assert back is not None
    # Java leaves its marks in the delivered message (section 6.6); everything else is as it was
    # sent.
    marks = {"REAL_TOPIC": "flights", "REAL_QID": "3"}
    assert decode(back.properties) == {**decode(sent.properties), **marks}
    assert msgspec.structs.replace(back, properties=sent.properties) == sent


@pytest.mark.parametrize(
    "properties",
    [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"}, {"REAL_QID": "1"}],
)
def test_a_message_without_a_destination_is_not_released(properties: dict[str, str]) -> None:
    assert released(stored(Draft("SCHEDULE_TOPIC_XXXX", 0, b"", encode(properties)))) is None


def test_due() -> None:
    entries = [QueueEntry(n, n * 100, 100, 10_000 + n) for n in range(5)]

    def due_at(entry: QueueEntry) -> int:
        return entry.code

    assert due_count(entries, 9_999, due_at) == (0, 10_000)
    assert due_count(entries, 10_000, due_at) == (1, 10_001)
    assert due_count(entries, 10_004, due_at) == (5, None)
    assert due_count([], 0, due_at) == (0, None)


def test_due_by_a_clock_that_is_not_set() -> None:
    times = ClockHistory(1_000, now_ms=50_000, wall_ms=50_000)
    times.note(1_000, now_ms=60_000, wall_ms=60_000, store_ms=60_000)
    times.note(2_000, now_ms=61_000, wall_ms=31_000, store_ms=60_000)  # half a minute back
    times.note(3_000, now_ms=62_000, wall_ms=92_000, store_ms=92_000)  # half a minute ahead
    due = [
        due_ms(QueueEntry(0, place, 100, stored_ms + 5_000), times, 5_000)
        for place, stored_ms in [(0, 48_000), (500, 80_000), (1_000, 60_000), (2_000, 60_000),
                                 (3_000, 92_000)]
    ]  # fmt: skip
    assert due == [53_000, 55_000, 65_000, 66_000, 67_000]


def test_positions_are_corrected_into_the_queues() -> None:
    positions = DelayPositions({1: 5, 2: 50, 3: 1})
    ranges = {1: (0, 9), 2: (10, 20), 3: (4, 8), 4: (2, 2)}
    positions.correct(lambda level: ranges[level], 4)
    assert positions.dump() == b'{"offsetTable":{1:5,2:20,3:4,4:2}}'


@pytest.mark.parametrize(
    "data",
    [b'{\n\t"offsetTable":{1:4,3:2\n\t}\n}', b'{"offsetTable":{"1":4,"3":2},"dataVersion":{}}'],
)
def test_both_forms_of_the_file_are_read(data: bytes) -> None:
    assert DelayPositions.load(data).dump() == b'{"offsetTable":{1:4,3:2}}'


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"offsetTable":{"a":1}}', b'{"offsetTable":{1:"']
)
def test_an_invalid_file(data: bytes) -> None:
    with pytest.raises(DamagedStoreError):
        DelayPositions.load(data)
