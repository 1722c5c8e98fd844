"""Read messages in a loop. Run `produce.py` first; the group goes on where it was."""

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
        # A package of messages is confirmed when the loop asks for the one after its last. Who
        # leaves earlier, or dies, gets the package again: at least once.
        async for message in consumer:
            count += 1
            if count <= 3:
                print(message.partition, message.offset, message.tag, message.body)
            if count == 1_004:
                break
        print(f"{count} messages")


asyncio.run(main())
