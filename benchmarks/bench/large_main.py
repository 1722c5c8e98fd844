"""Runs a node with many topics and groups, until stdin ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import coherer.rocketmq
from bench.embedded_main import options_in
from coherer import _net as net
from coherer._server.node.node import Node
from coherer._store import Draft

TOPICS_OF_GROUP = 20
"""Each group reads 20 topics of one queue."""
EACH = 3
"""Messages of each topic; each group has acknowledged one."""


async def serve(directory: Path, topics: int, groups: int) -> None:
    """Fill a node, print its addresses, and wait."""
    async with Node(options_in(directory)) as node:
        await fill(node, topics, groups)
        ready = {
            "url": node.url,
            "rocketmq_url": node.rocketmq_url,
            "admin_url": f"http://127.0.0.1:{node.ports()['admin_port']}",
            "pid": os.getpid(),
        }
        print(json.dumps(ready), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


async def fill(node: Node, topics: int, groups: int) -> None:
    """Topics with messages, and groups that have read and are behind."""
    core = node.core
    assert core is not None
    names = [f"topic-{number}" for number in range(topics)]
    for name in names:
        node.create_topic(name, 1)
    await core.files.flush()
    drafts = [Draft(name, 0, b"a small message.", b"") for name in names for _ in range(EACH)]
    core.counters.received(drafts, core.store.append(drafts))
    async with coherer.rocketmq.connect(node.rocketmq_url) as client:
        for number in range(groups):
            group = f"group-{number}"
            await client.admin().groups.create(group)
            for at in range(TOPICS_OF_GROUP):
                topic = names[(number * TOPICS_OF_GROUP + at) % topics]
                core.offsets.open(group, topic, 0).move_to(1)
                core.counters.read(group, topic, 0, 1, 1, 1)


if __name__ == "__main__":
    net.run(serve(Path(sys.argv[1]), *map(int, sys.argv[2:])))
