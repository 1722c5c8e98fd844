"""What a client remembers of the topics that it was asked for."""

from __future__ import annotations

import gc

import pytest

from coherer._client.tubemq import topics
from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.topics import ReadableParts, TopicCatalog
from tests.client.scripted_cluster import FakeCluster


def remembered() -> int:
    return sum(type(one) is ReadableParts for one in gc.get_objects())


async def test_partitions_are_remembered_for_a_moment_only(
    fake: FakeCluster, way: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of all topics that it was ever asked for were kept until it was closed."""
    monkeypatch.setattr(topics, "LOOKUP_CACHE_MS", 0)
    names = [f"topic-{number}" for number in range(20)]
    fake.topics |= dict.fromkeys(names, 1)
    catalog, before = TopicCatalog(way), remembered()
    for name in names:
        assert len(await catalog.offsets(name)) == 1
    assert remembered() <= before + 2
    monkeypatch.setattr(topics, "LOOKUP_CACHE_MS", 3_600_000)
    for name in names:
        await catalog.offsets(name)
    assert remembered() >= before + len(names)
    await catalog.close()
