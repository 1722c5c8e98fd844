"""Log lines that a peer or a fault can repeat are rate-limited."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import coherer
from coherer._server.node.node import Node
from coherer._store import Store
from coherer.errors import CohererError, StoreFullError
from tests.server.node_harness import options


async def test_a_hundred_peers_that_send_nonsense_are_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path)) as node:
        for _ in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.broker_port)
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
    lines = [record for record in caplog.records if "Closing the connection" in record.getMessage()]
    assert len(lines) == 1


async def test_a_full_disk_is_one_line_for_all_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, drafts: object) -> None:
        raise StoreFullError("No room on the disk to store messages.")

    async with Node(options(tmp_path)) as node:
        node.create_topic("flights")
        async with (
            coherer.connect(node.url) as client,
            client.producer("flights", timeout_ms=300) as producer,
        ):
            await producer.send(coherer.Message("flights", b"1"))
            monkeypatch.setattr(Store, "append", full)
            caplog.set_level(logging.WARNING)
            for _ in range(4):
                with pytest.raises(CohererError):
                    await producer.send(coherer.Message("flights", b"2"))
            monkeypatch.undo()
    lines = [record for record in caplog.records if "refused" in record.getMessage()]
    assert [line.getMessage() for line in lines] == [
        "1 messages refused: No room on the disk to store messages."
    ]
