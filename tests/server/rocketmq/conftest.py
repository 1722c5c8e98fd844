"""What tests of RocketMQ's servers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.client_harness import Client as BeatingClient
from tests.server.client_harness import Stage
from tests.server.rocket_harness import BrokerHarness, Client, running

from coherer._server.rocketmq.broker.options import RocketOptions
from coherer.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker_stage(tmp_path: Path, clock: ManualClock) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path, clock) as stage:
        yield stage


@pytest.fixture
async def peer(broker_stage: BrokerHarness) -> AsyncIterator[Client]:
    client = await broker_stage.dial()
    yield client
    client.connection.close()


@pytest.fixture
async def stage(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Stage]:
    """A broker's heartbeats and calls, with nothing else of it."""
    stage = await Stage(tmp_path, clock, RocketOptions()).start()
    yield stage
    await stage.stop()


@pytest.fixture
async def hasty(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Stage]:
    """The same, which does not wait long for its clients."""
    stage = await Stage(tmp_path / "hasty", clock, RocketOptions(), patience_ms=200).start()
    yield stage
    await stage.stop()


@pytest.fixture
async def client(stage: Stage) -> BeatingClient:
    """A client that sends heartbeats."""
    return await stage.dial()
