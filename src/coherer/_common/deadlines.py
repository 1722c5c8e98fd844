"""Requests that wait, found by their deadlines.

A server looks ten times a second for requests that have timed out. Thousands may wait, and few are
due. So they are kept in steps of time, and a look passes over the steps that are not due yet.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

_STEP_MS: Final = 128


class Deadlines(Generic[T]):
    """Things with deadlines. The caller knows the deadline of each, and passes it.

    >>> waiting = Deadlines[str]()
    >>> for name, deadline_ms in (("a", 1_000), ("b", 1_001), ("c", 60_000)):
    ...     waiting.add(name, deadline_ms)
    >>> waiting.due(1_000)
    ['a']
    >>> waiting.remove("a", 1_000)
    >>> waiting.due(2_000)
    ['b']
    """

    def __init__(self) -> None:
        self._by_step: dict[int, dict[T, int]] = {}

    def add(self, thing: T, deadline_ms: int) -> None:
        """Add a thing."""
        self._by_step.setdefault(deadline_ms // _STEP_MS, {})[thing] = deadline_ms

    def remove(self, thing: T, deadline_ms: int) -> None:
        """Remove a thing.

        Raises:
            KeyError: the thing was not added with this deadline.
        """
        drop(self._by_step, deadline_ms // _STEP_MS, thing)

    def due(self, now_ms: int) -> list[T]:
        """The things whose deadlines have come; they stay until they are removed."""
        due = [things for step, things in self._by_step.items() if step <= now_ms // _STEP_MS]
        return [
            thing
            for things in due
            for thing, deadline_ms in things.items()
            if now_ms >= deadline_ms
        ]


def drop(groups: dict[K, dict[T, V]], key: K, thing: T) -> None:
    """Remove a thing from its group, and the group if it is empty then.

    >>> groups = {"even": {2: None, 4: None}, "odd": {1: None}}
    >>> drop(groups, "even", 4)
    >>> drop(groups, "odd", 1)
    >>> groups
    {'even': {2: None}}

    Raises:
        KeyError: the thing is not in the group.
    """
    things = groups[key]
    del things[thing]
    if not things:
        del groups[key]
