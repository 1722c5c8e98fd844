from __future__ import annotations

import pytest

from coherer._client.tubemq.options import Bound, Start, StartPositions
from coherer.errors import UsageError

KEY = "1:flights:0"


@pytest.mark.parametrize(
    ("start", "status"), [("earliest", 0), ("latest", 1), ("always-latest", 2)]
)
def test_the_wish_holds_until_a_registration_succeeds(start: Start, status: int) -> None:
    positions = StartPositions(start)
    assert positions.of(KEY) == (status, None)
    assert positions.of(KEY) == (status, None)
    positions.taken(KEY)
    assert positions.of(KEY) == (0, None)
    assert positions.of("1:flights:1") == (status, None)


def test_exact_offsets_go_with_the_first_assignment_only() -> None:
    positions = StartPositions({KEY: 28, "1:flights:1": 0})
    assert positions.of(KEY) == (0, 28)
    positions.taken(KEY)
    assert positions.of(KEY) == (0, None)
    positions.group_began()
    assert positions.of("1:flights:1") == (1, None)


@pytest.mark.parametrize(
    ("start", "from_end"),
    [("latest", True), ("earliest", False), ("always-latest", False), ({"1:flights:1": 0}, True)],
)
def test_the_age_of_what_a_later_partition_holds(start: Start, from_end: bool) -> None:
    positions = StartPositions(start)
    positions.joining()
    assert positions.age_ms(KEY) is None, "the first assignment begins at the end"
    positions.group_began()
    age_ms = positions.age_ms(KEY)
    assert (age_ms is not None and age_ms >= 0) == from_end
    positions.taken(KEY)
    assert positions.age_ms(KEY) is None


def test_partitions_that_nobody_named_begin_as_told() -> None:
    positions = StartPositions(Bound(offsets={KEY: 1}, others="earliest"))
    assert positions.of("1:flights:1") == (0, None)


def test_a_plain_mapping_is_a_group_of_one() -> None:
    bound = StartPositions({KEY: 5}).bound
    assert bound is not None
    assert (bound.members, bound.offsets, bool(bound.session)) == (1, {KEY: 5}, True)


@pytest.mark.parametrize(
    "start",
    [
        "first",
        7,
        {"flights:0": 1},
        {KEY: -1},
        Bound(offsets={}, members=0),
        Bound(offsets={}, session=""),
        Bound(offsets={}, others="never"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused(start: object) -> None:
    with pytest.raises(UsageError):
        StartPositions(start)  # type: ignore[arg-type]
