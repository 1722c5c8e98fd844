"""A master that refuses unknown brokers, and its administrator."""

from __future__ import annotations

import pytest

from tests.server.master_harness import AdminCaller, Broker, MasterHarness


@pytest.fixture
def harness() -> MasterHarness:
    return MasterHarness(auto_add_brokers=False)


@pytest.fixture
def admin(harness: MasterHarness) -> AdminCaller:
    return AdminCaller(harness)


@pytest.fixture
def broker(admin: AdminCaller) -> Broker:
    """A broker as in Java: added, online, started."""
    admin.order("admin_add_broker_configure", brokerId=1, brokerIp="10.0.0.1", brokerWebPort=8090)
    admin.order("admin_online_broker_configure", brokerId=1)
    return admin.harness.broker()
