"""Read messages in a loop. Run `produce.py` first; the group continues where it stopped."""

import asyncio
import sys

import coherer

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with (
        coherer.connect(URL) as client,
        client.consumer("readers", "greetings", start="earliest") as consumer,
    ):
        count = 0
        # A batch is acknowledged when the loop asks for the message after its last. If the process
        # ends before that, the batch is delivered again: at least once.
        async for message in consumer:
            count += 1
            if count <= 3:
                print(message.partition, message.offset, message.tag, message.body)
            if count == 1_004:
                break
        print(f"{count} messages")


asyncio.run(main())
