"""Public names that were renamed: the old ones work for one release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, TypeVar

from coherer._common.places import AnyPartition, Place, place_of

SINCE: Final = "0.3"

F = TypeVar("F", bound=Callable[..., object])
P = TypeVar("P", bound=AnyPartition)
V = TypeVar("V")

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


def old_keywords(**names: str) -> Callable[[F], F]:
    """Let a method of a client accept old names of its parameters; `names` has the new ones.

    `coherer._client.engine.arguments.checked` translates them: it sees each call first.
    """

    def mark(function: F) -> F:
        vars(function)["old_keywords"] = names
        return function

    return mark


def in_new_words(function: Callable[..., object], given: Mapping[str, object]) -> dict[str, object]:
    """Return the keyword arguments of a call by their names of today, and warn of others."""
    names: Mapping[str, str] = vars(function)["old_keywords"]
    # Beside its new name, an old one is left: then it is an unknown argument.
    meant = {old: new for old, new in names.items() if old in given and new not in given}
    for old, new in meant.items():
        warnings.warn(
            f"`{old}=` of `{function.__qualname__}` is deprecated since {SINCE}; use `{new}=`.",
            DeprecationWarning,
            stacklevel=3,
        )
    return {meant.get(name, name): value for name, value in given.items()}


class ByPartition(dict[P, V]):
    """Values by partition. `(broker, number)`, the keys before 0.3, finds them too."""

    def __missing__(self, key: object) -> V:
        found = self._by_place(key, 4)
        if found is None:
            raise KeyError(key)
        return self[found]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._by_place(key, 4) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value, or `default`."""
        if super().__contains__(key):
            return self[key]
        found = self._by_place(key, 4)
        return default if found is None else self[found]

    def _by_place(self, key: object, level: int) -> P | None:
        if not isinstance(key, tuple):
            return None
        _warn_of_places(level)
        return next((one for one in self if place_of(one) == key), None)


def selected(known: Iterable[P], wanted: Collection[P | Place] | None) -> list[P]:
    """Select the partitions that are wanted, in the order of `known`; None for all.

    `wanted` may have `(broker, number)`, as before 0.3.
    """
    if wanted is None:
        return list(known)
    places = {one for one in wanted if isinstance(one, tuple)}
    if places:
        _warn_of_places(4)
    keys = {one.key for one in wanted if not isinstance(one, tuple)}
    return [one for one in known if one.key in keys or place_of(one) in places]


def unpacked(partition: AnyPartition) -> Iterator[object]:
    """Iterate over broker and number, as loops over the keys of offsets did before 0.3."""
    _warn_of_places(3)
    return iter(place_of(partition))


def _warn_of_places(level: int) -> None:
    warnings.warn(
        "A client's offsets are by partition, no longer by `(broker, number)`: use the "
        f"partition's `broker` and `id`. The old keys are deprecated since {SINCE}.",
        DeprecationWarning,
        stacklevel=level,
    )
