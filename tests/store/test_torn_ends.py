"""Which ends of transactions count as torn, by the records that a start finds."""

from __future__ import annotations

import pytest

from coherer._record.layout import COMMITTED, RecordSummary
from coherer._record.system_topics import OP_HALF_TOPIC
from coherer._store.torn_ends import TornEnds


def record(kind: str, place: int) -> RecordSummary:
    """`c` is a committed message, `m` the mark of one, a digit the mark of so many, `x` another."""
    is_mark = kind not in "cx"
    text = b"" if kind in "cxm" else b"TAGS\x01d\x02cohererMessages\x01" + kind.encode()
    return RecordSummary(
        size=1,
        queue_id=0,
        queue_offset=0,
        physical_offset=place,
        sys_flag=COMMITTED if kind == "c" else 0,
        store_ms=0,
        topic=OP_HALF_TOPIC.encode() if is_mark else b"t",
        properties=text,
    )


@pytest.mark.parametrize(
    ("log", "unmarked", "void"),
    [
        ("", [], []),
        ("xcmx", [], []),
        ("ccc3", [], []),
        ("cmccc3cm", [], []),
        ("xc", [1], []),  # the end of the log
        ("xcx", [1], []),
        ("c m", [0], []),  # a blank is damage: a torn message before the mark
        ("ccc", [0], []),
        ("cccx", [0], []),
        ("c c3", [0, 2], [3]),
        ("cc 3", [0], []),  # the mark follows damage, as one without any message
        (" 3", [], []),
        (" cc3", [1], [3]),
        ("cc1", [0], []),  # the rest of a half batch behind what was left: it has ended
        ("xmx3", [], []),
    ],
)
def test_torn_ends(log: str, unmarked: list[int], void: list[int]) -> None:
    ends = TornEnds()
    ends.begin = -1
    for place, kind in enumerate(log):
        if kind == " ":
            ends.interrupt(place)
        elif ends.is_open or kind == "c":
            ends.add(record(kind, place))
    ends.interrupt(len(log))
    assert (list(ends.unmarked), list(ends.void)) == (unmarked, void)


def test_what_earlier_starts_have_found_is_not_found_again() -> None:
    """A slave may have been started in the middle of a half batch."""
    log = "xcxcc3cc" + "c3" + "xc3" + "c"
    ends = TornEnds()
    ends.since = 8
    for place, kind in enumerate(log):
        if ends.is_open or kind == "c":
            ends.add(record(kind, place))
    ends.interrupt(len(log))
    assert (list(ends.unmarked), list(ends.void)) == ([11, 13], [12])


def test_the_first_record_may_be_in_the_middle_of_a_half_batch() -> None:
    ends = TornEnds()
    ends.begin = 5
    for place, kind in enumerate("cc3", 5):
        ends.add(record(kind, place))
    assert (list(ends.unmarked), list(ends.void), ends.is_open) == ([], [], False)
