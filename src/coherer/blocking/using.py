"""What blocking producers, consumers and readers of both protocols have in common."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from coherer._client.engine.lifecycle import warn_unclosed
from coherer.blocking.portal import Portal


class Worker(Protocol):
    """A producer, consumer or reader for asyncio."""

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and not closed yet."""
        ...

    def check(self) -> None:
        """Check that it can be used; any thread may ask."""
        ...

    async def start(self) -> None:
        """Make it ready."""
        ...

    async def close(self) -> None:
        """Leave."""
        ...


W = TypeVar("W", bound=Worker)


class Used(Generic[W]):
    """Is used with `with`; somebody else does the work.

    Args:
        portal: the way to the event loop.
        inner: does the work there; nobody else uses it.
    """

    def __init__(self, portal: Portal, inner: W) -> None:
        self._portal = portal
        self._inner = inner

    def __del__(self) -> None:
        if hasattr(self, "_inner") and self.unclosed:
            warn_unclosed(self, "with")
            self._portal.leave(self._inner.close)

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and not closed yet."""
        return self._inner.unclosed and self._portal.usable

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check(self) -> None:
        """Check that it can be used here and now.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was not started, or this is the thread of the client's event loop.
            ForkedError: its client was made in another process.
        """
        self._inner.check()
        self._portal.check()

    def start(self) -> None:
        """Make it ready; see the one for asyncio."""
        self._portal.call(self._inner.start)

    def close(self) -> None:
        """Leave; see the one for asyncio. Calling it again does nothing."""
        if self._portal.usable:
            self._portal.call(self._inner.close)
