"""Send messages: one and wait, many at once, and many without waiting."""

import asyncio
import sys
from collections.abc import Awaitable
from datetime import datetime

import coherer

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with coherer.connect(URL) as client, client.producer("greetings") as producer:
        # One message; the receipt tells where it is stored.
        message = coherer.Message("greetings", b"hello", tag="en", time=datetime.now())  # noqa: DTZ005 - TubeMQ knows no zones
        receipt = await producer.send(message)
        print(f"stored in partition {receipt.partition} at offset {receipt.offset}")

        # Many at once: the fastest way. The report has the failed messages with their errors.
        words = [b"bonjour", b"salut", b"coucou"]
        report = await producer.send_many(coherer.Message("greetings", w, tag="fr") for w in words)
        report.check()
        print(f"{report.sent} more are stored")

        # Without waiting: a future for each message. `ready` waits while the window is full.
        futures: list[Awaitable[coherer.Receipt]] = []
        for number in range(1_000):
            await producer.ready()
            futures.append(producer.submit(coherer.Message("greetings", b"%d" % number)))
        receipts = await asyncio.gather(*futures)
        print(f"{len(receipts)} futures are done")


asyncio.run(main())
