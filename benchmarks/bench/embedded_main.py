"""An embedded node, from its start to the first acknowledged message, and its memory when idle."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import coherer
from coherer import net
from coherer.server.node import Node, NodeOptions


async def first_acknowledged(directory: Path) -> float:
    """Milliseconds from the start of a fresh node to the receipt of a first message."""
    begin = time.perf_counter()
    options = NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=0,
        namesrv_port=0,
        rocketmq_port=0,
    )
    async with Node(options) as node, coherer.connect(node.url) as client:
        node.create_topic("first", 4)
        async with client.producer("first") as producer:
            await producer.send(coherer.Message("first", b"x" * 100))
            return (time.perf_counter() - begin) * 1000


async def serve(directory: Path) -> None:
    """A node with a topic that only idles, until stdin ends."""
    options = NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=0,
        namesrv_port=0,
        rocketmq_port=0,
    )
    async with Node(options) as node:
        node.create_topic("idle", 8)
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
        if sys.argv[1] == "idle":
            net.run(serve(Path(folder)))
        else:
            took = net.run(first_acknowledged(Path(folder)))
            print(json.dumps({"first_ms": took}), flush=True)
