"""The cursor of a stream: the start, the ends of micro-batches, and checks of checkpoints."""

from __future__ import annotations

import pytest

from coherer.errors import UsageError
from coherer.spark.cursor import FRESH_MS, Cursor, batch_ends
from coherer.spark.offsets import Bounds
from coherer.spark.options import ReadOptions, read_options
from coherer.spark.planning import DataLossError, Range
from coherer.spark.rates import MEASURE_MS, Scale, Scales


class Brokers:
    """The brokers' bounds, and a clock."""

    def __init__(self, **options: str) -> None:
        self.bounds: Bounds = {"t": {"1:0": (0, 100), "1:1": (5, 25)}}
        self.now_ms = 0
        self.options = options_of(**options)
        self.scale = Scale()
        self.measured: list[Range] = []
        scales = Scales(self.measure, lambda: self.now_ms, counted=False)
        self.cursor = Cursor(self.options, lambda _: self.bounds, lambda: self.now_ms, scales)

    def measure(self, one: Range) -> Scale:
        self.measured.append(one)
        return self.scale


def options_of(**options: str) -> ReadOptions:
    given = {"url": "tubemq://h:1", "topic": "t", **options}
    if "topicsPattern" in options:
        given["url"] = "rocketmq://h:1"
        del given["topic"]
        return read_options(given, "rocketmq")
    return read_options(given)


def test_a_stream_starts_at_the_end_by_default() -> None:
    brokers = Brokers()
    cursor, bounds = brokers.cursor, brokers.bounds
    assert cursor.initial("latest", bounds) == {"t": {"1:0": 100, "1:1": 25}}
    assert cursor.initial("earliest", bounds) == {"t": {"1:0": 0, "1:1": 5}}
    assert cursor.initial({"t": {"1:1": 7}}, bounds) == {"t": {"1:0": 100, "1:1": 7}}


def test_the_next_end_is_the_brokers_end() -> None:
    brokers = Brokers()
    start = {"t": {"1:0": 40, "1:1": 25}}
    assert brokers.cursor.next_end(start, None) == {"t": {"1:0": 100, "1:1": 25}}
    assert brokers.cursor.next_end(start, 10) == {"t": {"1:0": 50, "1:1": 25}}
    assert brokers.cursor.newest() == {"t": {"1:0": 100, "1:1": 25}}


def test_offsets_that_are_no_rows_are_measured() -> None:
    """As on Java's TubeMQ broker: a row every 28 * 2 offsets."""
    brokers = Brokers()
    brokers.bounds = {"t": {"1:0": (0, 56_000), "1:1": (0, 28_000)}}
    brokers.scale = Scale(rows=1 / 56, bytes=100 / 56, exact=False)
    start = {"t": {"1:0": 0, "1:1": 0}}
    assert brokers.cursor.next_end(start, 150) == {"t": {"1:0": 5600, "1:1": 2800}}
    assert brokers.measured == [Range("t", "1", 0, 0, 56_000), Range("t", "1", 1, 0, 28_000)]
    # It grows, and is measured again where the batch begins, but not at every trigger.
    brokers.scale = Scale(rows=1 / 28, bytes=100 / 28, exact=False)
    next_start = {"t": {"1:0": 5600, "1:1": 2800}}
    assert brokers.cursor.next_end(next_start, 150)["t"]["1:0"] == 5600 + 5600
    brokers.now_ms = MEASURE_MS
    assert brokers.cursor.next_end(next_start, 150) == {"t": {"1:0": 8400, "1:1": 4200}}
    assert brokers.measured[2:] == [
        Range("t", "1", 0, 5600, 56_000),
        Range("t", "1", 1, 2800, 28_000),
    ]
    # Less than a row for each of them: one of them still gets one.
    assert brokers.cursor.next_end(next_start, 1) == {"t": {"1:0": 5628, "1:1": 2800}}


def test_a_limit_of_bytes_is_an_estimate() -> None:
    brokers = Brokers()
    brokers.scale = Scale(rows=1, bytes=1000)
    start = {"t": {"1:0": 0, "1:1": 5}}
    assert brokers.cursor.next_end(start, None, 60_000) == {"t": {"1:0": 50, "1:1": 15}}
    assert brokers.cursor.next_end(start, None, 120_000) == {"t": {"1:0": 100, "1:1": 25}}
    assert brokers.cursor.next_end(start, 12, 6_000) == {"t": {"1:0": 5, "1:1": 6}}
    # A message is larger than the limit: the partitions take turns.
    assert brokers.cursor.next_end(start, None, 10) == {"t": {"1:0": 0, "1:1": 6}}
    start["t"]["1:1"] = 6
    assert brokers.cursor.next_end(start, None, 10) == {"t": {"1:0": 1, "1:1": 6}}


@pytest.mark.parametrize("limit", [10, 3_000, 60_000])
def test_a_quiet_partition_is_read_beside_a_large_backlog(limit: int) -> None:
    brokers = Brokers()
    brokers.scale = Scale(rows=1, bytes=1000)
    at = {"t": {"1:0": 0, "1:1": 0}}
    for _ in range(2):
        brokers.bounds = {"t": {"1:0": (0, 10**6 + at["t"]["1:0"]), "1:1": (0, 1)}}
        at = brokers.cursor.next_end(at, None, limit)
    assert at["t"]["1:1"] == 1
    assert sum(at["t"].values()) == max(2 * limit // 1_000, 2)


def test_an_exact_broker_is_measured_once_for_a_limit_of_rows() -> None:
    brokers = Brokers()
    for brokers.now_ms in range(0, 10 * MEASURE_MS, MEASURE_MS):
        assert brokers.cursor.next_end({"t": {"1:0": 40, "1:1": 25}}, 10)["t"]["1:0"] == 50
    assert len(brokers.measured) == 1


def test_the_end_is_the_start_without_new_messages() -> None:
    start = {"t": {"1:0": 100, "1:1": 25}}
    assert Brokers().cursor.next_end(start, None) == start


def test_new_partitions_and_topics_are_read_from_their_beginning() -> None:
    brokers = Brokers()
    brokers.bounds["s"] = {"1:0": (4, 9)}
    end = brokers.cursor.next_end({"t": {"1:0": 100}}, 8)
    assert list(end) == ["s", "t"]
    assert end == {"s": {"1:0": 6}, "t": {"1:0": 100, "1:1": 11}}


def test_a_checkpoint_of_another_topic_is_an_error() -> None:
    for call in (Cursor.bounds_for, lambda cursor, start: cursor.next_end(start, None)):
        with pytest.raises(UsageError, match="checkpoint is for u, v, and the stream reads t"):
            call(Brokers(failOnDataLoss="false").cursor, {"u": {"1:0": 40}, "v": {}})
    matching = Brokers(topicsPattern="t|w").cursor
    with pytest.raises(UsageError, match=r"for u, and the stream reads topics that match t\|w"):
        matching.next_end({"u": {"1:0": 40}}, None)


def test_a_checkpoint_of_another_cluster_is_an_error() -> None:
    start = {"t": {"7:0": 40, "7:1": 3}}
    with pytest.raises(UsageError, match="for partitions 7:0, 7:1, and tubemq://h:1 has only 1:0"):
        Brokers().cursor.next_end(start, None)
    end = Brokers(failOnDataLoss="false").cursor.next_end(start, None)
    assert end == {"t": {"1:0": 100, "1:1": 25, **start["t"]}}


def test_only_the_first_start_is_checked() -> None:
    brokers = Brokers()
    start = {"t": {"1:0": 40, "2:0": 7}}
    assert brokers.cursor.bounds_for(start) == brokers.bounds
    brokers.bounds = {"t": {"3:0": (0, 2)}}
    assert brokers.cursor.next_end(start, None)["t"] == {"1:0": 40, "2:0": 7, "3:0": 2}
    assert Brokers().cursor.next_end({}, None) == {"t": {"1:0": 100, "1:1": 25}}
    brokers = Brokers(topicsPattern="t|w")
    assert brokers.cursor.next_end({"w": {"1:0": 4}}, None)["w"] == {"1:0": 4}, "it is deleted"


def test_a_partition_that_no_broker_reports_keeps_its_offset() -> None:
    brokers = Brokers()
    start = {"t": {"1:0": 40, "1:1": 25, "2:0": 7}}
    end = brokers.cursor.next_end(start, None)
    assert end["t"]["2:0"] == 7


def test_a_truncated_partition_is_an_error_or_continues_at_its_new_end() -> None:
    start = {"t": {"1:0": 400, "1:1": 25}}
    with pytest.raises(DataLossError, match=r"t 1:0 \[100, 400\)"):
        Brokers().cursor.next_end(start, None)
    end = Brokers(failOnDataLoss="false").cursor.next_end(start, None)
    assert end == {"t": {"1:0": 100, "1:1": 25}}


def test_available_now_reads_to_the_ends_of_that_moment() -> None:
    brokers = Brokers(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    brokers.cursor.fix_target()
    brokers.bounds = {"t": {"1:0": (0, 500), "1:1": (5, 500), "1:2": (3, 9)}}
    at = {"t": {"1:0": 0, "1:1": 5}}
    ends = [at]
    while (end := brokers.cursor.next_end(at, 60)) != at:
        at = end
        ends.append(at)
    assert at == {"t": {"1:0": 100, "1:1": 25, "1:2": 3}}
    assert len(ends) == 3


def test_available_now_never_goes_back() -> None:
    brokers = Brokers()
    brokers.cursor.fix_target()
    brokers.bounds = {"t": {"1:0": (0, 200), "1:1": (5, 25)}}
    start = brokers.cursor.initial("latest", brokers.bounds)
    assert start["t"]["1:0"] == 200
    assert brokers.cursor.next_end(start, None) == start


def test_it_waits_for_enough_rows_up_to_the_delay() -> None:
    brokers = Brokers(minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    start = {"t": {"1:0": 90, "1:1": 25}}
    whole = {"t": {"1:0": 100, "1:1": 25}}
    assert brokers.cursor.next_end(start, None) == start
    brokers.now_ms = 9_999
    assert brokers.cursor.next_end(start, None) == start
    brokers.now_ms = 10_000
    assert brokers.cursor.next_end(start, None) == whole
    assert brokers.cursor.next_end(start, None) == start, "the delay starts again"


def test_enough_rows_need_no_waiting_and_available_now_never_waits() -> None:
    brokers = Brokers(minOffsetsPerTrigger="50")
    start = {"t": {"1:0": 40, "1:1": 25}}
    assert brokers.cursor.next_end(start, None) != start
    last = {"t": {"1:0": 90, "1:1": 25}}
    assert brokers.cursor.next_end(last, None) == last
    assert brokers.cursor.next_end(last, wait=False) == {"t": {"1:0": 100, "1:1": 25}}
    brokers.cursor.fix_target()
    assert brokers.cursor.next_end(last, None) == {"t": {"1:0": 100, "1:1": 25}}


def test_a_batch_reads_everything_by_default() -> None:
    bounds = Brokers().bounds
    start, end = batch_ends(options_of(), bounds)
    assert start == {"t": {"1:0": 0, "1:1": 5}}
    assert end == {"t": {"1:0": 100, "1:1": 25}}
    named = options_of(
        startingOffsets='{"t": {"1:0": -1}}', endingOffsets='{"t": {"1:1": 6, "1:0": -1}}'
    )
    assert batch_ends(named, bounds) == (
        {"t": {"1:0": 100, "1:1": 5}},
        {"t": {"1:0": 100, "1:1": 6}},
    )


def test_a_batch_that_ends_before_its_start_is_refused() -> None:
    bounds = Brokers().bounds
    for start in ('{"t": {"1:1": 9}}', "latest"):
        with pytest.raises(UsageError, match=r"endingOffsets names offset 6 .* the start is"):
            batch_ends(options_of(startingOffsets=start, endingOffsets='{"t": {"1:1": 6}}'), bounds)
    # From the earliest on, to an end that retention has passed: that is loss, not a mistake.
    _, end = batch_ends(options_of(endingOffsets='{"t": {"1:1": 3}}'), bounds)
    assert end["t"]["1:1"] == 3


def test_offsets_after_the_end_are_refused() -> None:
    with pytest.raises(UsageError, match="ends at 100"):
        batch_ends(options_of(endingOffsets='{"t": {"1:0": 101}}'), Brokers().bounds)
    with pytest.raises(UsageError, match="ends at 25"):
        Brokers().cursor.initial({"t": {"1:1": 26}}, Brokers().bounds)


def test_planning_takes_the_answer_that_decided_the_end() -> None:
    brokers = Brokers()
    start = {"t": {"1:0": 40, "1:1": 25}}
    before = brokers.bounds
    end = brokers.cursor.next_end(start, None)
    brokers.bounds = {"t": {"1:0": (60, 100), "1:1": (5, 25)}}
    assert brokers.cursor.planning_bounds(start, end) == before
    # It is asked again when the answer is old.
    brokers.now_ms += FRESH_MS + 1
    assert brokers.cursor.planning_bounds(start, end) == brokers.bounds


def test_planning_asks_for_an_end_that_it_has_not_seen() -> None:
    """As after a restart: the end comes from the checkpoint."""
    brokers = Brokers()
    start, end = {"t": {"1:0": 40, "1:1": 25}}, {"t": {"1:0": 120, "1:1": 25}}
    assert brokers.cursor.planning_bounds(start, start) == brokers.bounds
    brokers.bounds = {"t": {"1:0": (0, 120), "1:1": (5, 25)}}
    assert brokers.cursor.planning_bounds(start, end) == brokers.bounds
    brokers.bounds = {"t": {"1:1": (5, 25)}}
    assert brokers.cursor.planning_bounds(start, {"t": {"1:0": 130}}) == brokers.bounds


def test_partitions_that_are_away_may_be_named_without_fail_on_data_loss() -> None:
    """Brokers that are down, and topics that do not exist yet."""
    named = '{"t": {"1:0": 40, "2:0": 7, "3:0": -1}, "u": {"1:0": 3}}'
    options = options_of(startingOffsets=named, endingOffsets=named, failOnDataLoss="false")
    bounds = Brokers().bounds
    assert batch_ends(options, bounds) == (
        {"t": {"1:0": 40, "1:1": 5}},
        {"t": {"1:0": 40, "1:1": 25}},
    )
    wanted = options.starting_offsets
    assert isinstance(wanted, dict)
    brokers = Brokers(failOnDataLoss="false")
    start = brokers.cursor.initial(wanted, bounds)
    assert start == {"t": {"1:0": 40, "1:1": 25, "2:0": 7}, "u": {"1:0": 3}}
    assert brokers.cursor.next_end(start)["t"]["2:0"] == 7
    brokers.bounds = {"t": {**bounds["t"], "2:0": (0, 9)}}
    assert brokers.cursor.next_end(start)["t"]["2:0"] == 9, "and nothing before 7 is read"
    with pytest.raises(UsageError, match="names partition 2:0, which does not exist"):
        Brokers().cursor.initial(wanted, bounds)
