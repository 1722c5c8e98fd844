"""Fixtures for tests of RocketMQ's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._server.options.rocketmq import RocketOptions
from coherer.testing import ManualClock
from tests.server.client_harness import Client as BeatingClient
from tests.server.client_harness import Harness
from tests.server.rocket_harness import BrokerHarness, Client, running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker_harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path, clock) as harness:
        yield harness


@pytest.fixture
async def peer(broker_harness: BrokerHarness) -> AsyncIterator[Client]:
    client = await broker_harness.dial()
    yield client
    client.connection.close()


@pytest.fixture
async def harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Harness]:
    """A broker's heartbeats and calls, with nothing else of it."""
    harness = await Harness(tmp_path, clock, RocketOptions()).start()
    yield harness
    await harness.stop()


@pytest.fixture
async def hasty(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Harness]:
    """The same, which does not wait long for its clients."""
    harness = await Harness(tmp_path / "hasty", clock, RocketOptions(), patience_ms=200).start()
    yield harness
    await harness.stop()


@pytest.fixture
async def client(harness: Harness) -> BeatingClient:
    """A client that sends heartbeats."""
    return await harness.dial()
