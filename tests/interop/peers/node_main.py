"""One of our nodes: options as JSON in the first argument; ends when stdin does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

from coherer._net import raise_open_files_limit, run
from coherer._server.node.node import Node, NodeOptions


async def serve(given: dict[str, object]) -> None:
    """Serves until stdin ends."""
    given["directory"] = Path(str(given["directory"]))
    given["roles"] = frozenset(given.get("roles", ["master", "broker"]))  # type: ignore[call-overload]
    given = {"namesrv_port": 0, "rocketmq_port": 0} | given
    topics = given.pop("topics", {})
    async with Node(NodeOptions(**given)) as node:  # type: ignore[arg-type]
        for topic, partitions in topics.items():  # type: ignore[attr-defined]
            node.create_topic(topic, partitions)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    raise_open_files_limit()
    run(serve(json.loads(sys.argv[1])))
