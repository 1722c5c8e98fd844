"""Tasks that several callers wait for."""

from __future__ import annotations

import asyncio
import gc

import pytest

from coherer._client.engine.tasks import shared
from coherer.errors import ConnectError


async def test_an_error_that_nobody_waits_for_any_more_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = asyncio.Event()

    async def dial() -> None:
        await refused.wait()
        raise ConnectError("Connection refused.")

    dialling = shared(dial(), "dial")
    caller = asyncio.ensure_future(asyncio.shield(dialling))
    await asyncio.sleep(0)
    caller.cancel()
    refused.set()
    await asyncio.wait([dialling])
    del dialling, caller
    gc.collect()
    assert caplog.messages == []
