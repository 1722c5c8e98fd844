"""A master that takes no broker that nobody has added, and who administers it."""

from __future__ import annotations

import pytest
from tests.server.master_harness import Broker, Desk, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage(auto_add_brokers=False)


@pytest.fixture
def desk(stage: Stage) -> Desk:
    return Desk(stage)


@pytest.fixture
def broker(desk: Desk) -> Broker:
    """A broker as Java wants it: added, online, started."""
    desk.order("admin_add_broker_configure", brokerId=1, brokerIp="10.0.0.1", brokerWebPort=8090)
    desk.order("admin_online_broker_configure", brokerId=1)
    return desk.stage.broker()
