"""An embedded node: the time from start to the first message, and its memory when idle."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import coherer
from coherer import _net as net
from coherer._server.node.node import Node, NodeOptions


def options_in(directory: Path) -> NodeOptions:
    """Options of a node with both protocols, on free ports."""
    return NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=0,
        namesrv_port=0,
        rocketmq_port=0,
    )


async def first_message(directory: Path, protocol: str) -> dict[str, float]:
    """Milliseconds from the start of a new node to the first receipt, and to the first message."""
    begin = time.perf_counter()
    async with Node(options_in(directory)) as node:
        node.create_topic("first", 4)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        async with coherer.connect(url) as client, client.producer("first") as producer:
            await producer.send(coherer.Message("first", b"x" * 100))
            sent_ms = (time.perf_counter() - begin) * 1000
            async with client.consumer("readers", "first", start="earliest") as consumer:
                await consumer.receive()
            return {"first_ms": sent_ms, "received_ms": (time.perf_counter() - begin) * 1000}


async def serve(directory: Path) -> None:
    """Runs an idle node with one topic, until stdin ends."""
    async with Node(options_in(directory)) as node:
        node.create_topic("idle", 8)
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
        if sys.argv[1] == "idle":
            net.run(serve(Path(folder)))
        else:
            print(json.dumps(net.run(first_message(Path(folder), sys.argv[3]))), flush=True)
