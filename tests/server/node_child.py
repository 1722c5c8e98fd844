"""A node in a process of its own: prints its ports as JSON, stops when stdin is closed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from coherer._net import run
from coherer._server.node.node import Node, NodeOptions


async def serve(directory: Path, flush: str) -> None:
    options = NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=None,
        namesrv_port=0,
        rocketmq_port=0,
        flush=flush,  # type: ignore[arg-type]
        segment_bytes=1 << 22,
    )
    async with Node(options) as node:
        node.create_topic("demo", 4)
        print(json.dumps({"master": node.master_port, "broker": node.broker_port}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), sys.argv[2]))
