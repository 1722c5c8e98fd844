"""Reports each object that has to be closed: the pytest plugin looks for those left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Watcher(Protocol):
    """Receives the reports, in the thread and the task that open an object."""

    def opened(
        self, thing: object, is_open: Callable[[Any], bool], instead_of: object = None
    ) -> None:
        """An object was opened; `is_open(thing)` is whether it still has to be closed."""
        ...

    def lost(self, thing: object) -> None:
        """An object that was not closed is being garbage-collected."""
        ...


_watchers: list[Watcher] = []


def opened(thing: object, is_open: Callable[[Any], bool], instead_of: object = None) -> None:
    """Report that an object was opened; closing it closes `instead_of`, too."""
    for watcher in _watchers:
        watcher.opened(thing, is_open, instead_of)


def lost(thing: object) -> None:
    """Report that an object which was not closed is being garbage-collected, in any thread."""
    for watcher in tuple(_watchers):
        watcher.lost(thing)


def watch(watcher: Watcher) -> Callable[[], None]:
    """Report to a watcher from now on; returns a function that ends this."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)
