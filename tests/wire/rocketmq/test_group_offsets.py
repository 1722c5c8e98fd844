"""Whether a group has an offset, told from the table of all offsets."""

from __future__ import annotations

import pytest

from coherer._wire.rocketmq.bodies.admin import offset_in
from coherer.errors import ProtocolError

TABLE = (
    b'{"dataVersion":{"counter":4},"offsetTable":{"flights@readers":{0:5,1:0,10:-1},'
    b'"flights@readers2":{0:6},"%RETRY%readers@readers":{0:7},"empty@readers":{}}}'
)
PRETTY = b'{ "offsetTable" : {\n\t"flights@readers" : {\n "0" : 5,\n "1":0 }\n}}'


@pytest.mark.parametrize(
    ("group", "topic", "queue", "offset"),
    [
        ("readers", "flights", 0, 5),
        ("readers", "flights", 1, 0),
        ("readers", "flights", 2, None),
        ("readers", "flights", 10, None),
        ("readers2", "flights", 0, 6),
        ("readers", "%RETRY%readers", 0, 7),
        ("readers", "empty", 0, None),
        ("reader", "flights", 0, None),
        ("readers", "light", 0, None),
    ],
)
def test_an_offset(group: str, topic: str, queue: int, offset: int | None) -> None:
    assert offset_in(TABLE, group, topic, queue) == offset
    assert offset_in(memoryview(TABLE), group, topic, queue) == offset


def test_other_ways_to_write_it() -> None:
    assert [offset_in(PRETTY, "readers", "flights", queue) for queue in range(3)] == [5, 0, None]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"offsetTable":{"flights@readers":7}}'])
def test_what_is_no_table(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        offset_in(body, "readers", "flights", 0)
