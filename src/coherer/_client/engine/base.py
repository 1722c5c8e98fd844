"""What clients of both protocols, and what they make, have in common: a beginning and an end.

What was never closed is told with a `ResourceWarning` when nobody holds it any more, as asyncio
does with its transports. Python shows such warnings with `-X dev`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from coherer._net import running_loop
from coherer.errors import ClosedError, UsageError


class _Process:
    """This process: a child that was forked closes nothing of its parent's."""

    forked = False


def _forked() -> None:
    _Process.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def warn_unclosed(what: object, block: str) -> None:
    """Say that something was never closed; for `__del__`.

    Nothing is said when the interpreter ends, because then everything goes, in any order.

    Args:
        what: the thing.
        block: how it is used so that it ends.
    """
    if not sys.is_finalizing() and not _Process.forked:
        text = f"{what!r} was never closed: use `{block}`, or call close()."
        warnings.warn(text, ResourceWarning, stacklevel=2, source=what)


class Ending(ABC):
    """Ends with its `async with` block."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Leave. Calling it again does nothing."""


class Lifecycle(Ending):
    """What a client makes: `start` makes it ready, `close` ends it, `async with` does both."""

    _KIND: ClassVar[str]
    """What errors call it."""

    _state = "new"

    def __del__(self) -> None:
        if self.unclosed:
            warn_unclosed(self, "async with")

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and not closed yet."""
        return self._state == "open"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @abstractmethod
    async def start(self) -> None:
        """Make it ready; once."""

    def check(self) -> None:
        """Check that it can be used here and now; any thread may ask.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was not started.
            ForkedError: its client was made in another process.
        """
        if self._state == "closed":
            raise ClosedError(f"The {self._KIND} is closed.")
        self._check_client()
        if self._state != "open":
            raise UsageError(
                f"The {self._KIND} is not started.",
                hint="Use it in a `with` block (`async with` in asyncio), or call `start()` first.",
            )

    def _check_new(self) -> None:
        """Check that it can be started.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was started before, or asyncio does not run here.
            ForkedError: its client was made in another process.
        """
        if self._state == "closed":
            raise ClosedError(f"The {self._KIND} is closed.")
        self._check_client()
        running_loop()
        if self._state != "new":
            raise UsageError(f"A {self._KIND} is started once.")

    @abstractmethod
    def _check_client(self) -> None:
        """Check that the client can be used here and now."""


class BaseClient(Ending):
    """What clients of both protocols have in common."""

    def __init__(self) -> None:
        # Weak, because a client may make many of them; one that is in use is held by its tasks.
        self._made: weakref.WeakSet[Ending] = weakref.WeakSet()

    def __del__(self) -> None:
        if self._connected():
            warn_unclosed(self, "async with")

    async def __aenter__(self) -> Self:
        running_loop()
        return self

    async def close(self) -> None:
        """Close what the client made and its connections. Calling it again does nothing."""
        try:
            await asyncio.gather(*(one.close() for one in self._made))
        finally:
            await self._disconnect()

    @abstractmethod
    def _connected(self) -> bool:
        """Whether there are connections; also of a client that was never made whole."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections."""
