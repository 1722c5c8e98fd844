"""The scripted TubeMQ cluster of a test, and a client's way to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coherer._client.tubemq.cluster import ClientOptions, Cluster
from tests.client.scripted_cluster import FakeCluster, Kit


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """A scripted cluster with the topic `demo` of three partitions."""
    cluster = FakeCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def way(fake: FakeCluster) -> AsyncIterator[Cluster]:
    """A client's way to the scripted cluster; short timeouts, no heartbeats by the clock."""
    cluster = Cluster(
        ClientOptions(
            addresses=(("127.0.0.1", fake.master.port),), timeout_ms=5_000, heartbeat_ms=3_600_000
        )
    )
    yield cluster
    await cluster.pool.close()
