"""Records of system topics: a bad one is skipped, one that cannot be read now is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coherer._record.layout import Record
from coherer._server.core.foreign import ForeignRecords
from coherer._store import Store, StoreOptions
from coherer._store.model import Draft
from coherer.errors import DamagedStoreError, StoreError, StoreFullError, UsageError
from coherer.testing import ManualClock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    options = StoreOptions(segment_bytes=1 << 16, index_enabled=False)
    return Store.open(tmp_path, options, now_ms=ManualClock().now_ms)


def raising(error: Exception) -> Callable[[Record], None]:
    def parse(_: Record) -> None:
        raise error

    return parse


@pytest.mark.parametrize("error", [StoreError("EIO"), StoreFullError("Too many open files")])
def test_a_failed_read_makes_no_record_bad(store: Store, error: StoreError) -> None:
    """The parser of a mark reads what the mark names."""
    with store:
        store.append([Draft("t", 0, b"mark", b"")])
        foreign = ForeignRecords(store)
        with pytest.raises(type(error)):
            foreign.at("t", 0, raising(error))
        assert not foreign.bad


@pytest.mark.parametrize("error", [UsageError("no"), DamagedStoreError("no"), ValueError("no")])
def test_a_bad_record_is_skipped(store: Store, error: Exception) -> None:
    with store:
        store.append([Draft("t", 0, b"mark", b"")])
        foreign = ForeignRecords(store)
        assert foreign.at("t", 0, raising(error)) is None
        assert foreign.bad["t"] == 1
