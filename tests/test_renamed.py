"""Renamed public names work for one release, with a warning that names the new one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import coherer.blocking.rocketmq
import coherer.blocking.tubemq
from coherer._client.rocketmq.administration.admin import MOVED as ROCKETMQ_MOVED
from coherer._client.tubemq.administration.admin import MOVED as TUBEMQ_MOVED
from coherer._common.renamed import BODIES, RECORDS
from coherer.admin import Broker, Partition, Topic
from coherer.errors import UsageError

MODULES = (
    "coherer",
    "coherer.tubemq",
    "coherer.rocketmq",
    "coherer.blocking.tubemq",
    "coherer.blocking.rocketmq",
)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("old", "new"), RECORDS.items())
def test_old_names_of_records(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"`{module}.{old}` is deprecated.*`{new}`"):
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("module", ["coherer.rocketmq", "coherer.blocking.rocketmq"])
@pytest.mark.parametrize(("old", "new"), BODIES.items())
def test_bodies_that_became_records(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    assert isinstance(getattr(importlib.import_module(home), name), type)
    with pytest.warns(DeprecationWarning, match=rf"`{module}.{old}` is deprecated.*`{new}`"):
        assert getattr(importlib.import_module(module), old).__name__ == old


@pytest.mark.parametrize("module", MODULES)
def test_other_names_are_still_missing(module: str) -> None:
    with pytest.raises(AttributeError, match="TopicStates"):
        getattr(importlib.import_module(module), "TopicStates")  # noqa: B009


@pytest.mark.parametrize(
    ("record", "old", "value"),
    [
        (Broker("1", 1, "[::1]:8123", "broker", "running"), "host", "[::1]"),
        (Broker("1", 1, "10.0.0.1:8123", "broker", "running"), "port", 8123),
        (Broker("1", 1, "10.0.0.1:8123", "broker", "running"), "running", True),
        (Broker("1", 1, "10.0.0.1:8123", "broker"), "running", None),
        (Broker("a", 0, "10.0.0.1:10911", "master", in_per_s=2.5), "put_per_s", 2.5),
        (Broker("a", 0, "10.0.0.1:10911", "master"), "get_per_s", 0.0),
        (Broker("a", 0, "10.0.0.1:10911", "master", reported={"a": "b"}), "runtime", {"a": "b"}),
        (Topic("t", 3, {"1": 3}, writable=True, readable=True), "count", 3),
        (Partition("t", "a", 0), "last_ms", 0),
    ],
)
def test_old_names_of_fields(record: Any, old: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"`{old}` is deprecated"):
        assert getattr(record, old) == value


def test_a_missing_field_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Topic' has no attribute 'host'"):
        _ = Topic("t", 3, {}, writable=True, readable=True).host  # type: ignore[attr-defined]


CALLED = {"topics": "topics.list", "groups": "groups.list", "brokers": "brokers.list"}
"""Parts of the administration that were methods."""

CALLED_OVER_ROCKETMQ = {**CALLED, "accounts": "accounts.list", "messages": "messages.find"}


@pytest.mark.parametrize(
    ("client", "old", "new"),
    [
        (kind, *names)
        for kind, tables in (
            ("tubemq", (TUBEMQ_MOVED, CALLED)),
            ("rocketmq", (ROCKETMQ_MOVED, CALLED_OVER_ROCKETMQ)),
        )
        for table in tables
        for names in table.items()
    ],
)
def test_old_methods_of_administration(client: str, old: str, new: str) -> None:
    """They do what the new ones do, or refuse the same arguments."""
    connect = attrgetter(f"{client}.connect")(coherer.blocking)
    with connect(f"{client}://127.0.0.1:1") as cluster:
        admin = cluster.admin()
        warns = pytest.warns(DeprecationWarning, match=rf"`admin.{old}\(\)`.*`admin.{new}\(\)`")
        with warns, pytest.raises(coherer.CohererError) as before:
            getattr(admin, old)(unknown=1)
        with pytest.raises(coherer.CohererError) as now:
            attrgetter(new)(admin)(unknown=1)
    assert str(before.value) == str(now.value)


@pytest.mark.parametrize(
    ("client", "moved"), [("tubemq", TUBEMQ_MOVED), ("rocketmq", ROCKETMQ_MOVED)]
)
async def test_old_methods_with_asyncio(client: str, moved: Mapping[str, str]) -> None:
    async with coherer.connect(f"{client}://127.0.0.1:1") as cluster:
        admin = cluster.admin()
        for old, new in moved.items():
            with pytest.warns(DeprecationWarning, match=rf"`admin.{old}\(\)`.*`admin.{new}\(\)`"):
                assert getattr(admin, old) == attrgetter(new)(admin)
        warns = pytest.warns(DeprecationWarning, match="`admin.topics.list")
        with warns, pytest.raises(coherer.CohererError):
            await admin.topics(unknown=1)  # type: ignore[operator]


def test_the_changelog_lists_the_old_names() -> None:
    """Whoever reads a warning finds all of them in one table."""
    text = (Path(__file__).parent.parent / "CHANGELOG.md").read_text("utf-8")
    released = text[text.index("## 0.3.0") : text.index("## 0.1.0")]
    listed = set(re.findall(r"\w+", released))
    assert {*RECORDS, *BODIES, *ROCKETMQ_MOVED, *TUBEMQ_MOVED} - listed == set()


def test_administration_has_no_other_members() -> None:
    wrong = pytest.raises(AttributeError, match="'Admin' object has no attribute 'create_topics'")
    with coherer.blocking.rocketmq.connect("rocketmq://127.0.0.1:1") as client, wrong:
        _ = client.admin().create_topics  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_offsets_by_broker_and_number(
    coherer_url: str, coherer_rocketmq_url: str, protocol: str
) -> None:
    """Offsets are by partition; keys and loops of programs before 0.3 go on working."""
    topic = f"places-{protocol}"
    async with coherer.connect(
        coherer_url if protocol == "tubemq" else coherer_rocketmq_url
    ) as cluster:
        client: Any = cluster
        async with client.producer(topic) as producer:
            await producer.send(coherer.Message(topic, b"x"))
        partitions = await client.partitions(topic)
        offsets = await client.offsets(topic)
        assert list(offsets) == partitions
        assert sum(end - first for first, end in offsets.values()) == 1
        [last, *_] = partitions
        with pytest.warns(DeprecationWarning, match="by partition"):
            place = tuple(last)
        for look_up in (
            lambda: offsets[place],
            lambda: offsets.get(place),
            lambda: place in offsets and offsets[last],
        ):
            with pytest.warns(DeprecationWarning, match="by partition") as caught:
                assert look_up() == offsets[last]
            assert {one.filename for one in caught} == {__file__}
        with pytest.warns(DeprecationWarning, match="by partition"):
            assert ("nowhere", 0) not in offsets
        with pytest.warns(DeprecationWarning, match="by partition"), pytest.raises(KeyError):
            _ = offsets["nowhere", 0]
        assert offsets.get(None, 3) == 3
        everything = datetime(2020, 1, 1, tzinfo=UTC)
        since = await client.offsets_since(topic, everything, partitions=[last])
        assert since == {last: offsets[last][0]}
        with pytest.warns(DeprecationWarning, match="by partition"):
            assert await client.offsets_since(topic, everything, partitions=[place]) == since


async def test_seek_with_queue_and_to(coherer_rocketmq_url: str, coherer_topic: str) -> None:
    async with coherer.rocketmq.connect(coherer_rocketmq_url) as client:
        async with client.producer(coherer_topic) as producer:
            await producer.send(coherer.Message(coherer_topic, b"x"))
        async with client.pull_consumer("old-seek") as consumer:
            [queue, *_] = await client.partitions(coherer_topic)
            await consumer.assign([queue])
            old: Any = consumer.seek
            with pytest.warns(DeprecationWarning, match="`queue=` of `PullConsumer.seek`.*`partit"):
                assert await old(queue=queue, offset=0) == 0
            with pytest.warns(DeprecationWarning, match="`to=` of `PullConsumer.seek`.*`offset=`"):
                assert await old(queue, to="earliest") == 0
            with pytest.raises(UsageError, match="'queue'"):
                await old(queue=queue, partition=queue, offset=0)


def test_blocking_seek_with_queue_and_to(coherer_rocketmq_url: str, coherer_topic: str) -> None:
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        with client.producer(coherer_topic) as producer:
            producer.send(coherer.Message(coherer_topic, b"x"))
        with client.pull_consumer("old-seek") as consumer:
            [queue, *_] = client.partitions(coherer_topic)
            consumer.assign([queue])
            old: Any = consumer.seek
            with pytest.warns(DeprecationWarning, match="PullConsumer.seek") as caught:
                assert old(queue=queue, to=0) == 0
            assert {one.filename for one in caught} == {__file__}
            assert len(caught) == 2
