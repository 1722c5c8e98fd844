"""Renamed public names work for one release, with a warning that names the new one."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from coherer._common.renamed import RECORDS
from coherer.admin import Broker, Partition, Topic

MODULES = (
    "coherer",
    "coherer.tubemq",
    "coherer.rocketmq",
    "coherer.blocking.tubemq",
    "coherer.blocking.rocketmq",
)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("old", "new"), RECORDS.items())
def test_old_names_of_records(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"`{module}.{old}` is deprecated.*`{new}`"):
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("module", MODULES)
def test_other_names_are_still_missing(module: str) -> None:
    with pytest.raises(AttributeError, match="TopicStates"):
        getattr(importlib.import_module(module), "TopicStates")  # noqa: B009


@pytest.mark.parametrize(
    ("record", "old", "value"),
    [
        (Broker("1", 1, "[::1]:8123", "broker", "running"), "host", "[::1]"),
        (Broker("1", 1, "10.0.0.1:8123", "broker", "running"), "port", 8123),
        (Broker("1", 1, "10.0.0.1:8123", "broker", "running"), "running", True),
        (Broker("1", 1, "10.0.0.1:8123", "broker"), "running", None),
        (Broker("a", 0, "10.0.0.1:10911", "master", in_per_s=2.5), "put_per_s", 2.5),
        (Broker("a", 0, "10.0.0.1:10911", "master"), "get_per_s", 0.0),
        (Broker("a", 0, "10.0.0.1:10911", "master", reported={"a": "b"}), "runtime", {"a": "b"}),
        (Topic("t", 3, {"1": 3}, writable=True, readable=True), "count", 3),
        (Partition("t", "a", 0), "last_ms", 0),
    ],
)
def test_old_names_of_fields(record: Any, old: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"`{old}` is deprecated"):
        assert getattr(record, old) == value


def test_a_missing_field_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Topic' has no attribute 'host'"):
        _ = Topic("t", 3, {}, writable=True, readable=True).host  # type: ignore[attr-defined]
