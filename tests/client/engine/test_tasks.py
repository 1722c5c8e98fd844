"""Tasks that several callers wait for."""

from __future__ import annotations

import asyncio
import gc

import pytest

from coherer._client.engine.tasks import joined, shared
from coherer.errors import ClosedError, ConnectError


async def test_an_error_that_nobody_waits_for_any_more_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = asyncio.Event()

    async def dial() -> None:
        await refused.wait()
        raise ConnectError("Connection refused.")

    dialling = shared(dial(), "dial")
    caller = asyncio.ensure_future(joined(dialling))
    await asyncio.sleep(0)
    caller.cancel()
    refused.set()
    await asyncio.wait([dialling])
    del dialling, caller
    gc.collect()
    # A blocking client of an earlier test may still have its thread.
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


async def test_callers_of_a_cancelled_task_are_not_cancelled() -> None:
    dialling = shared(asyncio.sleep(3600), "dial")
    caller, cancelled = (asyncio.ensure_future(joined(dialling)) for _ in range(2))
    await asyncio.sleep(0)
    dialling.cancel()
    cancelled.cancel()
    await asyncio.wait([caller, cancelled])
    assert isinstance(caller.exception(), ClosedError)
    assert cancelled.cancelled()
