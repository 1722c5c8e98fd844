"""Public names that were renamed: the old ones work for one release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Final

SINCE: Final = "0.3"

RECORDS: Final = {
    "BrokerState": "coherer.admin.Broker",
    "GroupState": "coherer.admin.Group",
    "MemberState": "coherer.admin.Member",
    "PartitionState": "coherer.admin.Partition",
    "TopicState": "coherer.admin.Topic",
}
"""The records of administration, which each protocol had for itself."""


BODIES: Final = {
    "AclConfig": "coherer.admin.Account",
    "BrokerData": "coherer.admin.Broker",
    "BrokerStats": "coherer.rocketmq.Counter",
    "ClusterInfo": "coherer.admin.Broker",
    "ConsumeDirectlyResult": "coherer.rocketmq.DirectResult",
    "ConsumerConnection": "coherer.admin.Group",
    "PlainAccessConfig": "coherer.admin.Account",
    "QueueTimeSpan": "coherer.rocketmq.TimeSpan",
    "RunningInfo": "coherer.rocketmq.RunningConsumer",
    "StatsItem": "coherer.rocketmq.Rate",
    "TopicConfig": "coherer.admin.TopicSettings",
}
"""Bodies of RocketMQ's protocol, which its administration returned, and the records of today."""


def renamed(module: str, name: str, names: Mapping[str, str] = RECORDS) -> object:
    """Return what an old name of a module means now, and warn; for a module's `__getattr__`.

    Args:
        name: the missing attribute.
        names: new names, with their module, by old name.

    Raises:
        AttributeError: it is no old name.
    """
    is_body = module.endswith(".rocketmq") and name in BODIES
    new = BODIES[name] if is_body else names.get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(
        f"`{module}.{name}` is deprecated since {SINCE}; use `{new}`.",
        DeprecationWarning,
        stacklevel=3,
    )
    if is_body:  # annotations go on working; the records are other classes
        return getattr(import_module("coherer._wire.rocketmq.bodies"), name)
    home, _, last = new.rpartition(".")
    return getattr(import_module(home), last)


def moved(owner: object, name: str, places: Mapping[str, str]) -> Any:
    """Return what an old member of an administration is now, and warn; for `__getattr__`.

    Args:
        owner: the administration, or a part of it.
        name: the missing attribute.
        places: by old name, the way from the owner to the new member: `topics.create`.

    Raises:
        AttributeError: it is no old name.
    """
    place = places.get(name)
    if not place:
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    new = place if "." in place else f"{name}.{place}"
    warnings.warn(
        f"`admin.{name}()` is deprecated since {SINCE}; use `admin.{new}()`.",
        DeprecationWarning,
        stacklevel=3,
    )
    return attrgetter(place)(owner)
