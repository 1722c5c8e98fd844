"""What tests of RocketMQ's servers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rocket_stage import BrokerStage, Client, running

from coherer.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker_stage(tmp_path: Path, clock: ManualClock) -> AsyncIterator[BrokerStage]:
    async with running(tmp_path, clock) as stage:
        yield stage


@pytest.fixture
async def peer(broker_stage: BrokerStage) -> AsyncIterator[Client]:
    client = await broker_stage.dial()
    yield client
    client.connection.close()
