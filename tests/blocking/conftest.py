"""The scripted cluster of tests/client, in a thread of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer.blocking.portal import Portal

_spec = importlib.util.spec_from_file_location(
    "scripted_cluster", Path(__file__).parent.parent / "client" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_kit)


@pytest.fixture
def fake_thread() -> Iterator[Portal]:
    """The thread in which the scripted cluster lives."""
    portal = Portal()
    yield portal
    portal.close()


@pytest.fixture
def fake(fake_thread: Portal) -> Iterator:
    """A scripted cluster with the topic `demo` of three partitions."""
    cluster = fake_thread.do(_kit.FakeCluster)
    fake_thread.call(cluster.start)
    yield cluster
    fake_thread.call(cluster.stop)


@pytest.fixture
def kit():
    return _kit.Kit()


@pytest.fixture
def url(fake) -> str:
    return f"tubemq://127.0.0.1:{fake.master.port}"
