"""An application that is killed: it writes what it has handled to its output."""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream

from coherer.integrations.faststream import RocketMQBroker

url, topic = sys.argv[1:]
broker = RocketMQBroker(url, logger=None)
app = FastStream(broker, logger=None)


@broker.subscriber(topic, group_id=f"{topic}-group", start="earliest", max_workers=4)
async def handle(number: int) -> None:
    await asyncio.sleep(0.005)  # work
    print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
