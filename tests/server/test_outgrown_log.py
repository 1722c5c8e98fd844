"""A log that grows beyond its retention because messages in it wait: people can see why."""

from __future__ import annotations

from pathlib import Path

import coherer
from coherer._server.node.node import Node
from coherer.message import Message
from tests.server.node_harness import options


async def test_status_says_what_keeps_expired_files(tmp_path: Path) -> None:
    small = options(tmp_path / "node", segment_bytes=1 << 20, retention_bytes=3 << 20)
    async with Node(small) as node:
        assert node.core is not None
        node.core.store.holds.add("delayed messages", lambda: 0)
        node.create_topic("flights", 1)
        async with coherer.connect(node.url) as client, client.producer() as producer:
            await producer.send_many(Message("flights", bytes(100_000)) for _ in range(70))
        node.core.delete_expired()
        held = node.core.store.holds.held_bytes
        assert held > 1 << 20
        found = {one.text for one in (await node.metrics.status()).warnings}
        assert f"{held:,} bytes of expired log files are kept: they hold delayed messages." in found
        text = (await node.metrics.text()).decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:8] == "coherer_")
        shown = {name.partition("{")[0]: value for name, value in values.items()}
        assert float(shown["coherer_retention_held_bytes"]) > float(shown["coherer_log_file_bytes"])

        node.core.store.holds.add("delayed messages", lambda: None)
        node.core.delete_expired()
        kept = [one.text for one in (await node.metrics.status()).warnings]
        assert not any("expired log files" in text for text in kept)
