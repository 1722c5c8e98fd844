"""The last steps of stopping a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from coherer import _net as net
from coherer._common.logs import Log
from coherer._server.core.core import Core
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._store import Store
from coherer.errors import StoreFullError

_log = Log(logging.getLogger(__name__))


async def close_listeners(listeners: Sequence[net.Listener]) -> None:
    """Close all listeners concurrently: each may wait for its connections."""
    await asyncio.gather(*[listener.close() for listener in listeners])


async def cancel_tasks(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def close_files(files: DeferredSaver, core: Core | None) -> None:
    """Write the remaining changes of `config/`; on a full disk the files stay as they are."""
    try:
        try:
            if core is not None:
                await core.save_positions()
        finally:
            await files.close()
    except StoreFullError as error:
        _log.plain.error(
            "%s The next start uses the last saved offsets, so groups will receive later messages "
            "again.",
            error.text,
        )


def close_store(store: Store) -> None:
    """Close the store; on a full disk, log what could not be written."""
    store.close()
    if store.close_error:
        _log.plain.warning(
            "%s The messages are safe in the log; the next start rebuilds the queues from it.",
            store.close_error,
        )


def nothing() -> None:
    """Do nothing: there is no lock to release."""
