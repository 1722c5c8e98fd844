"""`async for` over a consumer's batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol, TypeVar

from coherer.errors import ClosedError, CohererError

B = TypeVar("B")


class Source(Protocol[B]):
    """The consumer, as its iterators see it."""

    async def receive(self) -> B | None:
        """The next package."""
        ...

    def done(self, batch: B) -> None:
        """The package is dealt with."""
        ...

    def put_back(self, batch: B) -> None:
        """The package is not; it is to be received again."""
        ...


class BatchIterator(AsyncIterator[B]):
    """Packages, each confirmed when the next is asked for."""

    def __init__(self, consumer: Source[B]) -> None:
        self._consumer = consumer
        self._open: B | None = None

    def __aiter__(self) -> BatchIterator[B]:
        return self

    async def __anext__(self) -> B:
        confirmed, self._open = self._open, None
        try:
            if confirmed is not None:
                self._consumer.done(confirmed)
            batch = await self._consumer.receive()
        except ClosedError:
            raise StopAsyncIteration from None
        assert batch is not None  # noqa: S101 - without a timeout there is a package
        self._open = batch
        return batch

    def __del__(self) -> None:
        # The loop was left: by `break`, `return` or an error.
        if self._open is not None:
            with suppress(CohererError):  # a closed consumer has given everything back already
                self._consumer.put_back(self._open)
