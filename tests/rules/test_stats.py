from __future__ import annotations

import pickle

import pytest

from coherer._rules.rocketmq.stats import DAY, HOUR, MINUTE, StatsTable, Sum, Totals

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def test_a_minute_an_hour_and_a_day() -> None:
    stats = StatsTable(0)
    for second in range(25 * 3600):
        stats.add("TOPIC_PUT_NUMS", "t", 2)
        if second % 10 == 9:
            stats.tick((second + 1) * 1000)
    found = stats.view("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert found[MINUTE] == Sum(120, 2.0, 2.0)
    assert found[HOUR] == Sum(7200, 2.0, 2.0)
    assert found[DAY] == Sum(2 * 24 * 3600, 2.0, 2.0)


def test_an_idle_counter_drops_to_zero_after_a_minute_but_not_in_the_hour() -> None:
    stats = StatsTable(0)
    stats.add("TOPIC_PUT_NUMS", "t", 60)
    stats.tick(10_000)
    assert stats.per_s("TOPIC_PUT_NUMS", "t") == 6.0
    for at_ms in range(20_000, 120_000, 10_000):
        stats.tick(at_ms)
    assert stats.view("TOPIC_PUT_NUMS", "t") == (Sum(), Sum(), Sum())
    stats.tick(600_000)
    found = stats.view("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert found[HOUR] == Sum(60, 0.1, 60.0)


def test_a_clock_that_is_set_back_does_not_end_the_looks() -> None:
    stats, totals = StatsTable(HOUR_MS), Totals(["put"], HOUR_MS, 0)
    for at_ms in range(0, 120_000, 1_000):
        stats.add("TOPIC_PUT_NUMS", "t", 2)
        totals.numbers["put"] += 2
        stats.tick(at_ms)
        totals.tick(at_ms)
    assert stats.per_s("TOPIC_PUT_NUMS", "t") == 2.0
    assert totals.rates("put")[0] == 2.0


def test_there_is_no_rate_before_the_first_snapshot() -> None:
    stats = StatsTable(5)
    stats.add("X", "k", 3)
    assert stats.view("X", "k") == (Sum(), Sum(), Sum())
    assert stats.per_s("X", "other") == 0.0


def test_batches_of_several_topics_and_queues() -> None:
    stats = StatsTable(0)
    stats.stored({("a", 0): 2, ("a", 1): 1, ("b", 7): 1}, 400)
    stats.stored({}, 0)
    stats.read("g", "a", 1, 3, 300)
    stats.tick(10_000)

    def total(name: str, key: str) -> int:
        found = stats.view(name, key)
        assert found is not None, key
        return found[MINUTE].sum

    assert (total("TOPIC_PUT_NUMS", "a"), total("TOPIC_PUT_NUMS", "b")) == (3, 1)
    assert (total("TOPIC_PUT_SIZE", "a"), total("TOPIC_PUT_SIZE", "b")) == (300, 100)
    assert (total("QUEUE_PUT_NUMS", "a@0"), total("QUEUE_PUT_NUMS", "a@1")) == (2, 1)
    assert (total("QUEUE_PUT_SIZE", "a@0"), total("QUEUE_PUT_SIZE", "b@7")) == (200, 100)
    assert (total("GROUP_GET_NUMS", "a@g"), total("GROUP_GET_SIZE", "a@g")) == (3, 300)
    assert (total("QUEUE_GET_NUMS", "a@1@g"), total("QUEUE_GET_SIZE", "a@1@g")) == (3, 300)


@pytest.mark.parametrize(
    ("forget", "left"),
    [
        (lambda stats: stats.forget_topic("a"), {"b@g", "b@0", "b"}),
        (lambda stats: stats.forget_groups({"g"}), {"a", "a@0", "b", "b@0"}),
        (lambda stats: stats.forget_groups({"a"}), {"a", "a@0", "a@g", "b", "b@0", "b@g"}),
    ],
)
def test_topics_and_groups_are_forgotten(forget: object, left: set[str]) -> None:
    stats = StatsTable(0)
    for topic in ("a", "b"):
        stats.stored({(topic, 0): 1}, 5)
        stats.read("g", topic, 0, 1, 5)
    assert callable(forget)
    forget(stats)
    names = ("TOPIC_PUT_NUMS", "QUEUE_PUT_NUMS", "GROUP_GET_NUMS")
    keys = {"a", "b", "a@0", "b@0", "a@g", "b@g"}
    assert {key for key in keys for name in names if stats.view(name, key)} == left


def test_a_recreated_topic_counts_from_zero() -> None:
    stats = StatsTable(0)
    stats.stored({("a", 0): 3}, 30)
    stats.forget_topic("a")
    stats.stored({("a", 0): 1}, 10)
    stats.tick(10_000)
    for name, key, count in (("TOPIC_PUT_NUMS", "a", 1), ("QUEUE_PUT_SIZE", "a@0", 10)):
        found = stats.view(name, key)
        assert found is not None
        assert found[MINUTE].sum == count


def test_rates_of_ten_seconds_a_minute_and_ten_minutes() -> None:
    totals = Totals(["x", "y"], 0, 0)
    assert totals.rates("x") == (0.0, 0.0, 0.0)
    for second in range(1, 601):
        totals.numbers["x"] += 10 if second > 590 else 1
        totals.tick(second * 1000)
        totals.tick(second * 1000 + 500)
    assert totals.rates("x") == pytest.approx((10.0, 2.5, 1.15))
    assert totals.rates("y") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("offset_ms", [0, 8 * HOUR_MS, -5 * HOUR_MS])
def test_values_at_midnight(offset_ms: int) -> None:
    midnight_ms = 20_000 * DAY_MS - offset_ms
    totals = Totals(["x"], midnight_ms - MINUTE_MS, offset_ms)
    totals.numbers["x"] = 5
    totals.tick(midnight_ms - 1)
    assert totals.mornings("x") == (0, 0)
    totals.tick(midnight_ms)
    assert totals.mornings("x") == (0, 5)
    totals.numbers["x"] = 9
    totals.tick(midnight_ms + DAY_MS)
    assert totals.mornings("x") == (5, 9)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_rates_and_days_when_the_clock_is_set(by_ms: int) -> None:
    """Rates use elapsed time; a day begins at midnight of the time of day."""
    noon_ms = 20_000 * DAY_MS + 12 * HOUR_MS
    totals = Totals(["x"], noon_ms, 0)
    for second in range(1, 21):
        totals.numbers["x"] += 10
        totals.tick(noon_ms + second * 1000, 0 if second < 10 else by_ms)
    assert totals.rates("x")[0] == pytest.approx(10.0)
    assert totals.mornings("x") == (0, 0)
    totals.tick(noon_ms + 12 * HOUR_MS - by_ms - 1, by_ms)
    assert totals.mornings("x") == (0, 0)
    totals.tick(noon_ms + 12 * HOUR_MS - by_ms, by_ms)
    assert totals.mornings("x") == (0, 200)


def test_a_counter_that_rests_costs_no_snapshots() -> None:
    """A node with thousands of topics has a hundred thousand of them."""
    stats = StatsTable(now_ms=0)
    for number in range(1_000):
        stats.add("TOPIC_PUT_NUMS", f"rests-{number}", 1)
    for at_ms in range(10_000, 600_001, 10_000):
        stats.tick(at_ms)
    held_bytes = len(pickle.dumps(stats))
    for at_ms in range(610_000, 3_600_000, 10_000):
        stats.tick(at_ms)
    # Not the process's objects: which of them are tracked depends on the garbage collector.
    assert len(pickle.dumps(stats)) < held_bytes + 1_000
    found = stats.view("TOPIC_PUT_NUMS", "rests-7")
    assert found is not None
    assert (found[MINUTE].sum, found[HOUR].sum) == (0, 1)


def test_a_counter_that_wakes_is_measured_over_the_whole_window() -> None:
    stats = StatsTable(now_ms=0)
    for at_ms in range(10_000, 600_000, 10_000):
        if at_ms in {10_000, 400_000}:
            stats.add("TOPIC_PUT_NUMS", "wakes", 60)
        stats.tick(at_ms)
        if at_ms == 400_000:
            found = stats.view("TOPIC_PUT_NUMS", "wakes")
            assert found is not None
            assert found[MINUTE].sum == 60
            assert found[MINUTE].per_s == 1.0
