"""Fills the directory of a node with small messages, through its store, then dies as if killed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.embedded_main import options_in
from coherer import _net as net
from coherer._server.node.node import Node
from coherer._store import DraftBatch

TOPIC, GROUP = "backlog", "readers"
QUEUES = 4
BODY = b"a small message."
AT_ONCE = 2_000


async def fill(directory: Path, count: int) -> None:
    """Store the messages; a group has read half of them. Prints the time in the middle."""
    async with Node(options_in(directory)) as node:
        core = node.core
        assert core is not None
        node.create_topic(TOPIC, QUEUES)
        await core.files.flush()
        bodies, empty = [BODY] * AT_ONCE, [b""] * AT_ONCE
        zeros, no_keys = [0] * AT_ONCE, [()] * AT_ONCE
        middle_ms = 0
        for number in range(count // AT_ONCE):
            now_ms = core.wall_ms()
            if number == count // AT_ONCE // 2:
                middle_ms = now_ms
            queue = number % QUEUES
            core.store.append(
                [DraftBatch(TOPIC, queue, bodies, empty, zeros, zeros, no_keys, 0, now_ms)]
            )
            if number % 25 == 0:
                await core.flusher.tick()  # as a node does, ten times a second
        for queue in range(QUEUES):
            core.offsets.open(GROUP, TOPIC, queue).move_to(count // QUEUES // 2)
        await core.save_positions()
        print(json.dumps({"middle_ms": middle_ms}), flush=True)
        os._exit(9)


if __name__ == "__main__":
    net.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
