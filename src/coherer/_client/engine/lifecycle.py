"""The lifecycle of clients, producers, consumers and readers: new, open, closed.

| state | `start` | any other call | `close` |
|---|---|---|---|
| new | starting, then open; new again if it fails | `UsageError` | closed |
| starting | `UsageError` | `UsageError` | closed; `start` raises `ClosedError` |
| open | `UsageError` | works | closed |
| closed | `ClosedError` | `ClosedError` | nothing |

An object that is garbage-collected while it is open emits a `ResourceWarning`, as asyncio's
transports do. Python shows these warnings with `-X dev`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from coherer._client.engine.connections import ConnectionPool
from coherer._client.engine.tasks import together
from coherer._common.opened import lost, opened
from coherer._net import check_loop, running_loop
from coherer.errors import ClosedError, UsageError

State = Literal["new", "starting", "open", "closed"]


class _Fork:
    """Whether this process is a forked child, which must not close its parent's objects."""

    forked = False


def _forked() -> None:
    _Fork.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def warn_unclosed(thing: object, block: str) -> None:
    """Emit a `ResourceWarning` for an object that was not closed; called by `__del__`.

    Does nothing while the interpreter shuts down: it destroys objects in any order.

    Args:
        thing: the object.
        block: the statement that would have closed it.
    """
    if not sys.is_finalizing() and not _Fork.forked:
        lost(thing)
        text = f"{thing!r} was never closed: use `{block}`, or call close()."
        warnings.warn(text, ResourceWarning, stacklevel=2, source=thing)


class Lifecycle(ABC):
    """A producer, consumer or reader: `start` and `close`, or `async with`."""

    _KIND: ClassVar[str]
    """Its name in errors."""

    _state: State = "new"
    _home: asyncio.AbstractEventLoop | None = None
    """The event loop in which it was started."""

    def __del__(self) -> None:
        if self.unclosed:
            warn_unclosed(self, "async with")

    @property
    def unclosed(self) -> bool:
        """Whether it was started and is not closed."""
        return self._state == "open"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def start(self) -> None:
        """Start it; allowed once, and again after an error."""

    @abstractmethod
    async def close(self) -> None:
        """Close it. Calling it again does nothing."""

    def check(self) -> None:
        """Check that it is open, and used in the event loop in which it was started.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was not started, or this is another event loop or thread.
            ForkedError: its client was made in another process.
        """
        try:
            here = asyncio.get_running_loop() is self._home
        except RuntimeError:
            here = False
        if here and self._state == "open":  # producers check once per message
            self._check_client()
            return
        self._check_open()
        if not here:
            check_loop(self._home, f"The {self._KIND}")

    def _check_open(self) -> None:
        """Check that it is open; any thread may call this. Raises what `check` raises."""
        if self._state == "closed":
            raise ClosedError(f"The {self._KIND} is closed.")
        self._check_client()
        if self._state != "open":
            raise UsageError(
                f"The {self._KIND} is not started.",
                hint="Use it in a `with` block (`async with` in asyncio), or call `start()` first.",
            )

    async def _start_with(
        self, begin: Callable[[], Awaitable[None]], undo: Callable[[], Awaitable[None]]
    ) -> None:
        """Move from "new" to "open" by `begin`; when that fails, back to "new" by `undo`.

        Raises:
            ClosedError: it, or its client, was closed, before or meanwhile.
            UsageError: it was started before, or no event loop is running.
            ForkedError: its client was made in another process.
        """
        self._check_new()
        opened(self, lambda one: one.unclosed)
        self._state = "starting"
        try:
            await begin()
            self._check_starting()
        except BaseException:
            try:
                await undo()
            finally:
                self._failed_to_start()
            raise
        self._state = "open"

    def _failed_to_start(self) -> None:
        if self._state == "starting":  # not closed meanwhile
            self._state = "new"

    def _end(self) -> bool:
        """Move to "closed"; returns whether it was open and has to be closed."""
        before, self._state = self._state, "closed"
        return before == "open"

    def _check_new(self) -> None:
        """Check that it can be started; see `_start_with`."""
        if self._state == "closed":
            raise ClosedError(f"The {self._KIND} is closed.")
        self._check_client()
        self._home = running_loop()
        if self._state != "new":
            raise UsageError(f"A {self._KIND} can be started only once.")

    def _check_starting(self) -> None:
        """Check that it was not closed meanwhile; see `_start_with`."""
        if self._state != "starting":
            raise ClosedError(f"The {self._KIND} was closed while it started.")

    @abstractmethod
    def _check_client(self) -> None:
        """Check that the client, and what this object has joined, can be used here and now."""


class BaseClient(ABC):
    """A client: closes the objects that it made, then its connections."""

    _closing = False

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        # Weak: a client may make many. Objects in use are referenced by their tasks.
        # A `WeakSet` has no order, in which a simulation would close them.
        opened(self, lambda one: one._connected())
        self._made: weakref.WeakKeyDictionary[Lifecycle, None] = weakref.WeakKeyDictionary()

    def __del__(self) -> None:
        if self._connected():
            warn_unclosed(self, "async with")

    async def __aenter__(self) -> Self:
        running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client, and everything it made. Calling it again does nothing.

        If it is cancelled, it still gives everything up, but waits less; if it is cancelled again,
        it does not wait for the servers any more, and closes the connections at once.

        Raises:
            UsageError: the client was used in another event loop.
        """
        self._pool.check_loop()
        if self._closing:  # it would take the connections away from what is still being closed
            return
        self._closing = True
        try:
            await together([one.close() for one in self._made], "close")
        finally:
            try:
                await self._disconnect()
            finally:
                self._closing = False
                self._pool.drop()  # those that are left if `_disconnect` was cancelled

    def _connected(self) -> bool:
        """Whether there are connections; also called on a client whose `__init__` failed."""
        return hasattr(self, "_pool") and self._pool.connected

    @abstractmethod
    async def _disconnect(self) -> None:
        """Leave the cluster, and close the connections."""
