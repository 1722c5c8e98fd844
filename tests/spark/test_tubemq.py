"""The TubeMQ queue: exact ranges, also on brokers whose offsets are positions in an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.bad_record import BadRecord
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.spark.planning import Range
from coherer.spark.tubemq import ExactReader

STEP = 28
PARTITION = Partition(BrokerInfo(1, "h", 1), "t", 0)


class Package:
    """The result of a fetch: the ids of its messages."""

    def __init__(self, offset: int, ids: list[int]) -> None:
        self.offset = offset
        self._ids = ids

    def bad_records(self) -> list[BadRecord]:
        return []

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        assert columns == ["id"]
        return pa.RecordBatch.from_arrays([pa.array(self._ids, pa.int64())], names=["id"])


class JavaReader:
    """A reader on a broker whose index entry number n belongs to partition `owners[n]`."""

    def __init__(self, owners: list[int], size: int, start: int, end: int | None) -> None:
        self._owners = owners
        self._size = size
        self.exact = False
        self.position = start // STEP * STEP
        self.end = len(owners) * STEP if end is None else end

    def start(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def read(self) -> Package | None:
        while self.position < self.end:
            began = self.position
            ids: list[int] = []
            while len(ids) < self._size and self.position < len(self._owners) * STEP:
                number = self.position // STEP
                if self._owners[number] == 0:
                    ids.append(number)
                self.position += STEP
            if ids:
                return Package(began, ids)
        return None

    def __iter__(self) -> Iterator[Package]:
        while (package := self.read()) is not None:
            yield package


class JavaClient:
    """Creates readers; each reads batches of another size, like Java's flow control."""

    def __init__(self, owners: list[int], sizes: list[int]) -> None:
        self._owners = owners
        self._sizes = sizes
        self._made = 0

    def reader(
        self, partition: Partition, offset: int, *, end: int | None = None, columns: bool = False
    ) -> JavaReader:
        assert columns
        size = self._sizes[self._made % len(self._sizes)]
        self._made += 1
        return JavaReader(self._owners, size, offset, end)


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=60),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.integers(0, 60 * STEP), max_size=5),
)
def test_ranges_on_javas_broker_contain_each_message_once(
    owners: list[int], sizes: list[int], cuts: list[int]
) -> None:
    end = len(owners) * STEP
    edges = sorted({0, end, *(cut for cut in cuts if cut < end)})
    client = JavaClient(owners, sizes)
    found: list[object] = []
    for low, high in pairwise(edges):
        one = Range("t", "1", 0, low, high)
        with ExactReader(client, PARTITION, one) as reader:  # type: ignore[arg-type]
            while (batch := reader.read()) is not None:
                found += batch.to_arrow(["id"]).column("id").to_pylist()
    assert found == [number for number, owner in enumerate(owners) if owner == 0]


@pytest.mark.parametrize("exact", [True, False])
def test_a_batch_within_the_range_is_not_copied(exact: bool) -> None:
    client = JavaClient([0, 0], [2])
    reader = ExactReader(client, PARTITION, Range("t", "1", 0, 0, 2 * STEP))  # type: ignore[arg-type]
    assert isinstance(reader.read(), Package)
    assert reader.position == 2 * STEP
    assert reader.read() is None
