"""Filters that the broker keeps for groups (docs/protocol/rocketmq.md, section 3.11)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
import pytest

from coherer import limits
from coherer._rules.rocketmq.clients import GroupSubscription
from coherer._rules.rocketmq.consumer_filters import (
    CLEAN_AFTER_MS,
    BloomBits,
    Compiled,
    ConsumerFilters,
    Filter,
)
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.subscription import BLOOM_BITS, bloom_positions
from coherer.errors import DamagedStoreError, UsageError


def bits(text: str) -> BloomBits:
    return BloomBits(BLOOM_BITS, bloom_positions(text))


def compiled(expression: str, kind: str) -> Compiled:
    """`name` passes messages with the property, `name!` raises for them."""
    if kind != "SQL92" or " " in expression:
        raise UsageError(f"{expression!r} is no {kind}.")

    def passes(properties: Mapping[str, str]) -> bool | None:
        if expression.endswith("!"):
            raise UsageError("Not evaluated.")
        value = properties.get(expression)
        return None if value is None else value == "yes"

    return passes


def sql(
    topic: str = "t", expression: str = "a", version: int = 10, kind: str = "SQL92"
) -> GroupSubscription:
    return GroupSubscription(topic=topic, expression=expression, version=version, type=kind)


@pytest.fixture
def filters() -> ConsumerFilters:
    return ConsumerFilters(compiled, bits)


def known(filters: ConsumerFilters, topic: str = "t", group: str = "g") -> Filter:
    found = filters.get(topic, group)
    assert found is not None
    return found


def test_a_heartbeat_makes_a_filter(filters: ConsumerFilters) -> None:
    filters.register("GID_PY", [sql("T1")], now_ms=7)
    found = known(filters, "T1", "GID_PY")
    assert (found.expression, found.type, found.version) == ("a", "SQL92", 10)
    assert (found.born_ms, found.dead_ms, found.is_dead) == (7, 0, False)
    assert found.bloom == BloomBits(112, (5, 12, 92))  # as a live Java broker wrote it
    assert filters.of_topic("T1") == [found]


def test_only_true_matches(filters: ConsumerFilters, caplog: pytest.LogCaptureFixture) -> None:
    filters.register("g", [sql(), sql("u", "a!")], now_ms=0)
    found = known(filters)
    assert found.matches({"a": "yes"})
    assert not found.matches({"a": "no"})
    assert not found.matches({})
    with caplog.at_level(logging.DEBUG):
        assert not known(filters, "u").matches({"a": "yes"})
    assert "Not evaluated" in caplog.text


@pytest.mark.parametrize(
    "subscription",
    [sql(kind="TAG"), sql(expression=""), sql(expression="not this"), sql(kind="XPATH")],
)
def test_no_filter(filters: ConsumerFilters, subscription: GroupSubscription) -> None:
    filters.register("g", [subscription], now_ms=0)
    assert filters.get("t", "g") is None


def test_an_older_version_is_ignored(
    filters: ConsumerFilters, caplog: pytest.LogCaptureFixture
) -> None:
    filters.register("g", [sql()], now_ms=0)
    with caplog.at_level(logging.INFO):
        filters.register("g", [sql(expression="b", version=9)], now_ms=5)
    assert "older expression" in caplog.text
    found = known(filters)
    assert (found.expression, found.version, found.born_ms) == ("a", 10, 0)


@pytest.mark.parametrize(("version", "alive"), [(9, False), (10, True), (11, True)])
def test_the_same_or_a_newer_version_is_alive_again(
    filters: ConsumerFilters, version: int, alive: bool
) -> None:
    filters.register("g", [sql()], now_ms=1)
    found = known(filters)
    filters.unregister("g", now_ms=20)
    assert (found.dead_ms, found.is_dead) == (20, True)
    filters.register("g", [sql(version=version)], now_ms=30)
    assert known(filters) is found
    assert found.is_dead is not alive
    assert found.version == max(10, version)
    assert found.born_ms == 1


@pytest.mark.parametrize("group", ["expression", "bloom"])
def test_a_newer_version_with_something_else_is_a_new_filter(
    filters: ConsumerFilters, group: str
) -> None:
    filters.register("g", [sql()], now_ms=1)
    old = known(filters)
    if group == "bloom":
        old.bloom = None
    expression = "b" if group == "expression" else "a"
    filters.register("g", [sql(expression=expression, version=11)], now_ms=50)
    found = known(filters)
    assert found is not old
    assert (found.expression, found.version, found.born_ms) == (expression, 11, 50)
    assert found.bloom == bits("g#t")


def test_a_change_that_cannot_be_compiled_leaves_nothing(filters: ConsumerFilters) -> None:
    filters.register("g", [sql()], now_ms=1)
    filters.register("g", [sql(expression="not this", version=10)], now_ms=2)
    assert known(filters).expression == "a"  # not newer: nothing is tried
    filters.register("g", [sql(expression="not this", version=11)], now_ms=3)
    assert filters.get("t", "g") is None


def test_a_topic_that_is_not_named_any_more_is_dead(filters: ConsumerFilters) -> None:
    filters.register("g", [sql("t"), sql("u")], now_ms=1)
    filters.register("h", [sql("t")], now_ms=1)
    filters.register("g", [sql("u")], now_ms=9)
    assert known(filters, "t").dead_ms == 9
    assert not known(filters, "u").is_dead
    assert not known(filters, "t", "h").is_dead
    filters.register("g", [sql("u")], now_ms=15)
    assert known(filters, "t").dead_ms == 9  # since then
    # A tag subscription names the topic, so that its old filter stays alive, as in Java.
    filters.register("g", [sql("u", kind="TAG")], now_ms=20)
    assert not known(filters, "u").is_dead


def test_the_dead_are_forgotten_after_a_day(filters: ConsumerFilters) -> None:
    filters.register("g", [sql()], now_ms=1)
    filters.register("h", [sql()], now_ms=1)
    filters.unregister("g", now_ms=100)
    filters.dump(now_ms=100 + CLEAN_AFTER_MS - 1)
    assert filters.get("t", "g") is not None
    filters.dump(now_ms=100 + CLEAN_AFTER_MS)
    assert filters.get("t", "g") is None
    assert filters.get("t", "h") is not None
    filters.unregister("h", now_ms=200)
    assert (
        filters.dump(now_ms=200 + CLEAN_AFTER_MS).split() == b'{ "filterDataByTopic": {} }'.split()
    )


# -- the file


JAVA = b"""{"filterDataByTopic":{"T1":{"groupFilterData":{"GID_PY":{
 "bloomFilterData":{"bitNum":112,"bitPos":[5,12,92]},
 "bornTime":1795147332418,"clientVersion":1000,"consumerGroup":"GID_PY",
 "dead":true,"deadTime":1795147343593,
 "expression":"a","expressionType":"SQL92","topic":"T1"},
 "alive":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":1795147332418,"clientVersion":7,
 "consumerGroup":"alive","dead":false,"deadTime":0,"expression":"b",
 "expressionType":"SQL92","topic":"T1"},
 "bad":{"bloomFilterData":{"bitNum":112,"bitPos":[1,1,3]},"bornTime":5,"clientVersion":7,
 "consumerGroup":"bad","dead":false,"deadTime":0,"expression":"not this",
 "expressionType":"SQL92","topic":"T1"}
 },"topic":"T1"}}}"""


def test_the_file_of_a_java_broker(filters: ConsumerFilters) -> None:
    now_ms = 1795147332418 + 1_000_000
    filters.load(JAVA, now_ms, fastjson.loads)
    found = known(filters, "T1", "GID_PY")
    assert found.matches({"a": "yes"})
    assert (found.version, found.dead_ms) == (1000, 1795147343593)
    assert known(filters, "T1", "alive").dead_ms == now_ms - 30_000  # taken for dead
    assert known(filters, "T1", "bad").matches({})  # everything passes then
    assert msgspec.json.decode(filters.dump(now_ms)) == msgspec.json.decode(
        JAVA.replace(b'"dead":false,"deadTime":0', b'"dead":true,"deadTime":%d' % (now_ms - 30_000))
    )


def test_a_filter_never_dies_before_its_birth(filters: ConsumerFilters) -> None:
    filters.load(JAVA, 1795147332418 + 5)
    assert known(filters, "T1", "alive").dead_ms == 1795147332418


@pytest.mark.parametrize(
    ("part", "other"),
    [(b"112", b"120"), (b"[5,12,92]", b"[5,12]"), (b'{"bitNum":112,"bitPos":[1,2,3]}', b"null")],
)
def test_bits_of_another_filter(filters: ConsumerFilters, part: bytes, other: bytes) -> None:
    filters.load(JAVA.replace(part, other), 1795147332418)
    assert filters.of_topic("T1") == []


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"x",
        b'{"filterDataByTopic":{"T1":7}}',
        b'{"filterDataByTopic":{"T1":{"groupFilterData":[]}}}',
    ],
)
def test_a_broken_file(filters: ConsumerFilters, data: bytes) -> None:
    with pytest.raises(DamagedStoreError, match=r"consumerFilter\.json"):
        filters.load(data, 0)


def test_a_file_with_nothing_in_it(filters: ConsumerFilters) -> None:
    for data in (b"{}", b'{"filterDataByTopic":{"T1":null,"T2":{"groupFilterData":{"g":null}}}}'):
        filters.load(data, 0)
        assert filters.of_topic("T1") == []


def test_a_built_filter_is_not_remembered(filters: ConsumerFilters) -> None:
    made = filters.build("g", sql(), now_ms=3)
    assert made is not None
    assert made.matches({"a": "yes"})
    assert filters.get("t", "g") is None
    assert filters.build("g", sql(expression="not this"), now_ms=3) is None
    assert filters.build("g", sql(kind="TAG"), now_ms=3) is None


class CountedName(str):
    """A name that counts how often a table is searched for it."""

    __slots__ = ("searches",)

    searches: int

    def __hash__(self) -> int:
        self.searches = getattr(self, "searches", 0) + 1
        return super().__hash__()


def test_a_heartbeat_does_not_look_at_the_topics_of_other_groups(filters: ConsumerFilters) -> None:
    filters.register("others", [sql(f"t{n}") for n in range(1_000)], now_ms=0)
    name = CountedName("g")
    filters.register(name, [sql()], now_ms=0)
    filters.unregister(name, now_ms=1)
    assert known(filters).is_dead
    assert name.searches < 100


def test_a_filter_that_was_cleaned_comes_back(filters: ConsumerFilters) -> None:
    filters.register("g", [sql("t"), sql("u")], now_ms=0)
    filters.unregister("g", now_ms=1)
    filters.clean(CLEAN_AFTER_MS + 1)
    assert filters.get("t", "g") is None
    filters.register("g", [sql("t")], now_ms=2)
    filters.register("g", [sql("u")], now_ms=3)
    assert known(filters).is_dead
    assert not known(filters, "u").is_dead


def test_all_expressions_together_are_bounded(
    filters: ConsumerFilters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "FILTERS_CHARS_MAX", 100)
    for number in range(4):
        filters.register(f"g{number}", [sql(expression="a" * 25)], now_ms=number)
    filters.unregister("g2", now_ms=5)
    filters.unregister("g1", now_ms=6)
    filters.register("g2", [sql(expression="a" * 25)], now_ms=7)  # is alive again
    filters.register("new", [sql(expression="b" * 25)], now_ms=8)
    assert filters.get("t", "g1") is None, "it died first"
    assert {one.group for one in filters.of_topic("t")} == {"g0", "g2", "g3", "new"}
    filters.register("late", [sql(expression="c" * 25)], now_ms=9)
    assert filters.get("t", "late") is None
    assert "is not kept" in caplog.text
    filters.register("g0", [sql(expression="d", version=11)], now_ms=9)
    filters.register("late", [sql(expression="c" * 24)], now_ms=9)
    assert known(filters, group="late").expression == "c" * 24
    again = ConsumerFilters(compiled, bits)
    again.load(filters.dump(9), now_ms=10)
    again.register("more", [sql(expression="e" * 90)], now_ms=11)
    assert [one.group for one in again.of_topic("t")] == ["more"]
