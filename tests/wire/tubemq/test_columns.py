"""The columns of TubeMQ's batches; `tests/record/test_record_columns.py` has the ways to them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from coherer._wire.tubemq import columns


def test_the_schema() -> None:
    found = columns.Messages(
        topic="t",
        broker="b",
        partition=1,
        offsets=[2, 3],
        ids=[3, 4],
        attributes=columns.CodedTexts([None, b"$msgType$=UA,$msgTime$=soon,k=v,l"]),
        bodies=[b"x", b"y"],
    )
    batch = found.to_arrow()
    assert batch.schema == columns.SCHEMA
    values = {"topic": "t", "broker": "b", "partition": 1}
    first = {"offset": 2, "id": 3, "tag": None, "time": None, "value": b"x", "properties": []}
    others = [("k", "v"), ("l", "")]
    second = {"offset": 3, "id": 4, "tag": "UA", "time": "soon", "value": b"y"}
    assert batch.to_pylist() == [{**values, **first}, {**values, **second, "properties": others}]
    assert found.to_arrow(["id", "offset"]).to_pylist() == [
        {"id": 3, "offset": 2},
        {"id": 4, "offset": 3},
    ]
