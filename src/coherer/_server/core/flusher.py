"""Makes the store durable in a thread of its own, one flush at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coherer._common.logs import Log
from coherer._store import Store
from coherer.errors import StoreError, StoreFullError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))


class Flusher:
    """The thread beside the loop that waits for the disk.

    Args:
        store: what is made durable.
        failed: called when the disk has failed, once.
    """

    def __init__(self, store: Store, failed: Callable[[], None]) -> None:
        self._store = store
        self._failed = failed
        self._has_failed = False
        self._pool = ThreadPoolExecutor(1, "coherer-flush")

    async def flush(self) -> int:
        """Flush; returns the offset up to which the log is durable now.

        Raises:
            StoreFullError: too many files are open; the next flush may do it.
            StoreError: the disk failed. The node takes no sends any more: after a failed
                fsync the system may have dropped what it could not write, and would not say so.
        """
        try:
            return await self.run(self._store.flush)
        except StoreFullError:
            raise
        except StoreError as error:
            if not self._has_failed:
                self._has_failed = True
                _log.plain.error(
                    "The disk failed, no more sends are taken until a restart: %s", error
                )
                self._failed()
            raise

    async def tick(self) -> None:
        """Flush what is due: call it more often than the flush interval.

        Raises:
            StoreError: the disk failed.
        """
        await self.run(self._store.tick)

    async def run(self, action: Callable[[], T]) -> T:
        """Run something in the thread.

        Raises:
            StoreError: the disk failed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()
