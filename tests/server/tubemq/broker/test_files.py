"""Offsets, groups and topics that survive a restart of the broker, and those that are removed."""

from __future__ import annotations

import pytest

from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import Store
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS, BrokerClient, close, serve


async def test_positions_outlive_the_broker(
    client: BrokerClient, broker: Broker, store: Store, clock: ManualClock
) -> None:
    for _ in range(3):
        await client.send()
    client.register()
    client.get()
    client.commit()
    client.register(groupName="coherer_reader_1", currOffset=1)
    client.register(groupName="named", currOffset=1)
    client.register(groupName="latest", readStatus=1)
    await broker.core.save_positions()
    assert store.read_config("consumerOffset.json", bytes) == (
        b'{"offsetTable":{"demo@g":{0:3},"demo@latest":{0:3},"demo@named":{0:1}}}'
    )
    again = Broker(OPTIONS, Core(store, clock.now_ms))
    assert "g" in again.core.groups
    assert "coherer_reader_1" not in again.core.groups
    serve(again)
    assert BrokerClient(again).register().currOffset == 3
    await close(again)


async def test_old_groups_and_old_files_go(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    broker = Broker(OPTIONS, Core(store, clock.now_ms, group_idle_ms=1000))
    serve(broker)
    client = BrokerClient(broker)
    client.register()
    client.register(groupName="h")
    client.unregister(groupName="h")
    broker.core.clean()
    clock.advance(1000)
    monkeypatch.setattr(store, "delete_expired", lambda now_ms: 2)
    broker.core.clean()
    assert broker.state.offsets.groups() == {"g"}
    assert "Deleted 2 expired files" in caplog.text
    await close(broker)


async def test_a_removed_topic_is_empty(client: BrokerClient, broker: Broker, store: Store) -> None:
    await client.send()
    client.register()
    broker.core.remove_topic("demo")
    assert store.queue_range("demo", 0) == (0, 0)
    assert broker.state.offsets.groups() == set()
    assert len(broker.state.leases) == 0
