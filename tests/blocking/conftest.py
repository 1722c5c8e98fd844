"""The scripted cluster of tests/client, in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coherer.blocking._portal import Portal
from tests.client.scripted_cluster import FakeCluster, Kit


@pytest.fixture
def fake_thread() -> Iterator[Portal]:
    """The thread in which the scripted cluster lives."""
    portal = Portal()
    yield portal
    portal.close()


@pytest.fixture
def fake(fake_thread: Portal) -> Iterator[FakeCluster]:
    """A scripted cluster with the topic `demo` of three partitions."""
    cluster = fake_thread.do(FakeCluster)
    fake_thread.call(cluster.start)
    yield cluster
    fake_thread.call(cluster.stop)


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
def url(fake: FakeCluster) -> str:
    return f"tubemq://127.0.0.1:{fake.master.port}"
