"""A node on a real disk of a few MB, which is full."""

from __future__ import annotations

import contextlib
from pathlib import Path

import coherer
from coherer._server.core.disk import RESERVE_FILE
from coherer._server.node.node import Node
from coherer.testing.clock import ManualClock
from tests.server.node_harness import options
from tests.server.small_disk import fill
from tests.waiting import until


async def test_offsets_are_saved_and_old_messages_deleted_on_a_full_disk(small_disk: Path) -> None:
    clock = ManualClock()
    node_options = options(
        small_disk, segment_bytes=1 << 20, retention_hours=1, disk_free_min_bytes=1 << 20
    )
    async with Node(node_options, now_ms=clock.now_ms) as node:
        core = node.core
        assert core is not None
        node.create_topic("orders", 1)
        await node.ready()
        async with (
            coherer.connect(node.rocketmq_url, timeout_ms=2_000) as client,
            client.producer("orders") as producer,
        ):
            error = await fill(producer, core.disk.check)
            assert "The disk is full" in error.text
            assert "sends are refused below" in (node.not_ready() or "")
            core.store.flush_queues()
            # Another program takes the rest.
            with (
                (small_disk / "other").open("wb", buffering=0) as other,
                contextlib.suppress(OSError),
            ):
                while True:
                    other.write(bytes(4096))
            reserved = (small_disk / RESERVE_FILE).stat().st_size
            core.offsets.open("g", "orders", 0).move_to(7)
            await core.save_positions()
            assert b'"orders@g":{0:7}' in (small_disk / "config/consumerOffset.json").read_bytes()
            assert (small_disk / RESERVE_FILE).stat().st_size < reserved
            began = core.store.min_offset

            def deleted() -> bool:
                clock.advance(120_000)
                return core.store.min_offset > began and core.disk.problem is None

            await until(deleted)
            (small_disk / "other").unlink()
        # A new client: in the hours that have passed the other one was silent.
        async with (
            coherer.connect(node.rocketmq_url, timeout_ms=2_000) as client,
            client.producer("orders") as producer,
        ):
            await producer.send(coherer.Message("orders", b"accepted again"))
            assert node.not_ready() is None
