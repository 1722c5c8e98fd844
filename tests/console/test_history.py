from __future__ import annotations

import asyncio

import pytest

from coherer._administration.access import opened
from coherer.admin import Partition
from coherer.console import history as module
from coherer.console.charts import chart
from coherer.console.facts import Facts, TopicFacts
from coherer.console.history import History, Point, series_name
from coherer.console.sampling import SUBJECTS, Sampler
from coherer.testing import EmbeddedNode


def values(history: History, name: str) -> list[float | None]:
    return [point.value for point in history.points(name, 0)]


def test_a_rate_is_unknown_until_it_is_known() -> None:
    history = History()
    for time_s, count in ((0, 10), (10, 30), (20, None), (30, 50), (40, 60), (50, 5), (60, 5)):
        history.add_rate("in", time_s, count)
    assert values(history, "in") == [2.0, None, 1.0, None, 0.0]


def test_the_time_without_samples_is_a_gap() -> None:
    history = History()
    history.add("lag", 0, 3)
    history.add_rate("in", 0, 10)
    history.add_rate("in", 10, 20)
    history.gap(20)
    history.add("lag", 30, 4)
    history.add_rate("in", 30, 500)
    assert values(history, "lag") == [3, None, 4]
    assert values(history, "in") == [1.0, None]


def test_old_samples_become_means_of_minutes_and_end_after_a_day() -> None:
    history = History()
    day = 86_400
    for time_s in range(0, 2 * day, 10):
        history.add("lag", time_s, None if 600 <= time_s % 3_600 < 660 else time_s % 60)
    points = history.points("lag", 0)
    assert len(points) <= 360 + 1_440 + 1
    assert points[0].time_s >= day - 60
    means = {point.value for point in points if point.time_s < 2 * day - 3_700}
    assert means == {25.0, None}
    recent = history.points("lag", 2 * day - 60)
    assert [point.value for point in recent] == [0, 10, 20, 30, 40, 50]


def test_the_number_of_series_has_a_bound() -> None:
    history = History()
    for number in range(module.SERIES_MAX + 10):
        history.add(f"s{number}", 0, 1)
        history.add("kept", number, 1)
    assert values(history, "s0") == []
    assert len(history.names("")) == module.SERIES_MAX
    assert values(history, "kept") != []


def test_series_of_deleted_topics_are_dropped() -> None:
    history = History()
    for name in ("a", "b"):
        history.add(series_name("topic", name, "in"), 0, 1)
        history.add(series_name("group", name, "lag"), 0, 1)
    history.forget("topic", ["b"])
    assert history.names(series_name("topic", "a")) == []
    assert history.names(series_name("topic", "b")) != []
    assert history.names(series_name("group", "a")) != []


def test_the_last_values_of_replaced_series_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the overview of a large cluster did not show the groups that lag most."""
    monkeypatch.setattr(module, "SERIES_MAX", 4)
    history, groups = History(), [f"g{number}" for number in range(10)]
    for time_s in (0, 100):
        for number, name in enumerate(groups):
            history.add(series_name("group", name, "lag"), time_s, number)
            history.add(series_name("group", name, "lag", "orders-0"), time_s, number)
            history.add_rate(series_name("group", name, "out"), time_s, number * time_s)
    assert len(history.names("")) == 4

    def last(value: str) -> list[float | None]:
        return [history.last(series_name("group", name, value)) for name in groups]

    assert last("lag") == last("out") == list(range(10))
    assert history.last(series_name("group", "g0", "lag", "orders-0")) is None
    history.forget("group", groups[1:])
    assert last("lag") == [None, *range(1, 10)]
    history.gap(200)
    assert last("lag") == [None] * 10


def test_a_deleted_topic_that_was_sampled_once_is_forgotten() -> None:
    """Its count was kept for ever; a new topic of the name got a rate from it."""
    history, name = History(), series_name("topic", "orders", "in")
    history.add_rate(name, 0, 10)
    history.forget("topic", [])
    history.add_rate(name, 10, 20)
    assert values(history, name) == []


def test_the_lags_of_topics_are_sums_over_their_groups() -> None:
    history = History()
    history.add_lags("a", {"orders": 3, "bills": 1})
    history.add_lags("b", {"orders": 4, "bills": None})
    assert history.topic_lags() == {"orders": 7, "bills": None}


def test_topics_of_opened_pages_are_watched_for_a_time() -> None:
    history = History()
    history.watch("topic", "a", 0)
    history.watch("topic", "b", 600)
    assert list(history.watched(800)) == [("topic", "a"), ("topic", "b")]
    assert list(history.watched(1_000)) == [("topic", "b")]
    for number in range(module.WATCHED_MAX + 5):
        history.watch("group", str(number), 1_000)
    assert len(history.watched(1_000)) == module.WATCHED_MAX


def test_a_chart_draws_unknown_values_as_gaps() -> None:
    history = History()
    for time_s, value in ((9_100, 5.0), (9_400, 10.0), (9_700, None), (10_000, 0.0)):
        history.add("lag", time_s, value)
    made = chart(history, "Lag", {"lag": "all", "nothing": "none"}, "15m", 10_000)
    path, empty = made.paths
    assert path.count("M") == 2
    assert path.startswith("M0.0 60.0")
    assert empty == ""
    assert made.top == 10
    assert made.newest == [("all", 0.0), ("none", None)]


def test_a_topic_of_java_brokers_is_counted_once_for_each_store() -> None:
    def partition(number: int, low: int | None, high: int, step: int | None) -> Partition:
        return Partition("t", "1", number, low, high, offset_step=step)

    stores = [partition(0, 28, 280, 28), partition(1, 28, 280, 28), partition(10_000, 0, 56, 28)]
    assert TopicFacts("t", stores).held == 9 + 2
    assert TopicFacts("t", stores).written == 10 + 2
    ours = [partition(0, 1, 4, 1), partition(1, 0, 6, 1)]
    assert TopicFacts("t", ours).held == 9
    assert TopicFacts("t", [*ours, partition(2, None, 6, 1)]).held is None
    assert TopicFacts("t", [partition(0, 0, 5, None)]).held is None
    assert TopicFacts("t", None).written is None


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
async def test_samples_follow_a_cluster(node: EmbeddedNode, protocol: str) -> None:
    async with opened(node.rocketmq_url if protocol == "rocketmq" else node.url) as cluster:
        async with asyncio.timeout(30):  # the offsets of a new node are unknown at first
            known = False
            while not known:
                states = await cluster.admin.topics.partitions("orders")
                known = all(one.max_offset is not None for one in states)
        history, now = History(), 1_000.0
        sampler = Sampler(Facts(cluster, lambda: now), history, 10_000, lambda: now)
        history.watch("group", "billing", now)
        history.watch("topic", "orders", now)
        for _ in range(3):
            await sampler.sample()
            now += 10
        lag = history.points(series_name("group", "billing", "lag"), 0)
        assert [point.time_s for point in lag] == [1_000, 1_010, 1_020]
        assert values(history, series_name("topic", "orders", "in")) == [0.0, 0.0]
        assert values(history, series_name("topic", "orders", "held")) == [12, 12, 12]
        assert history.names(series_name("group", "billing", "lag", ""))
        now += 1_000
        await sampler.sample()
        assert history.points(series_name("group", "billing", "lag"), 0)[-2].value is None


async def test_the_cost_of_a_sample_has_a_bound(node: EmbeddedNode) -> None:
    async with opened(node.rocketmq_url) as cluster:
        for number in range(3 * SUBJECTS):
            await cluster.admin.topics.create(f"bulk-{number:03}", 1, exist_ok=True)
        history, now = History(), 1_000.0
        sampler = Sampler(Facts(cluster, lambda: now), history, 10_000, lambda: now)
        sampled: set[str] = set()
        for _ in range(4):
            await sampler.sample()
            now += 10
            found = {name for name in history.names("topic") if name.endswith("held")}
            assert len(found - sampled) <= SUBJECTS
            sampled |= found
        assert len(sampled) > 3 * SUBJECTS
        assert history.points("nothing", 0) == []
        assert Point(1.0, None).value is None


def test_samples_from_before_the_clock_was_set_back_are_dropped() -> None:
    history = History()
    for time_s in (100, 110, 2_000, 2_010, 125):
        history.add("lag", time_s, time_s)
    assert values(history, "lag") == [100, 110, 125]
