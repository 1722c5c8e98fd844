"""What blocking clients of both protocols have in common."""

from __future__ import annotations

import atexit
import weakref
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from coherer._client.engine.lifecycle import warn_unclosed
from coherer.blocking.portal import Portal


class _Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class BaseClient(Generic[C]):
    """What clients of both protocols have in common: a thread in the background with an event loop.

    Any number of threads may use it. A client that is still open when the program ends leaves
    politely.

    Args:
        client: does the work; nobody else uses it.
    """

    def __init__(self, client: C) -> None:
        self._client = client
        self._portal = Portal()
        _open.add(self)

    def __del__(self) -> None:
        if hasattr(self, "_portal") and self._portal.usable:
            warn_unclosed(self, "with")

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what the client made, its connections and its thread.

        Calling it again does nothing, and so does calling it after a fork.
        """
        _open.discard(self)
        if self._portal.usable:
            try:
                self._portal.call(self._client.close)
            finally:
                self._portal.close()


_open: weakref.WeakSet[BaseClient[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_open):
        client.close()
