"""A broker on a store of its own, with a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Literal

import pytest

from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import Store, StoreOptions
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS, BrokerClient, close, serve


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def flush() -> Literal["async", "sync"]:
    return "async"


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, flush: Literal["async", "sync"]) -> Iterable[Store]:
    options = StoreOptions(segment_bytes=1 << 24, index_enabled=False, flush=flush)
    with Store.open(tmp_path, options, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms) as store:
        yield store


@pytest.fixture
async def broker(store: Store, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = Broker(OPTIONS, Core(store, clock.now_ms, wall_ms=clock.wall_ms))
    serve(broker)
    await broker.state.core.files.flush()  # the first messages of a new topic wait for it
    yield broker
    await close(broker)


@pytest.fixture
def client(broker: Broker) -> BrokerClient:
    return BrokerClient(broker)
