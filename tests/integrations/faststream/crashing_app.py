"""An application that is killed: it writes what it has handled to its output."""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream

from coherer.integrations.faststream import RocketMQBroker


async def handle(number: int) -> None:
    await asyncio.sleep(0.005)  # work
    print(number, flush=True)


async def main(url: str, topic: str) -> None:
    broker = RocketMQBroker(url, logger=None)
    group = f"{topic}-group"
    broker.subscriber(topic, group_id=group, start="earliest", max_workers=4)(handle)
    await FastStream(broker, logger=None).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
