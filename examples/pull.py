"""Take packages by hand: confirm what is done, reject what has to come again."""

import asyncio
import sys

import coherer

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with coherer.connect(URL) as client:
        async with client.producer("jobs") as producer:
            await producer.send(coherer.Message("jobs", b"wash up"))

        async with client.consumer("workers", "jobs", start="earliest") as consumer:
            first = await consumer.receive(timeout_ms=10_000)
            assert first is not None
            print(f"took {first.bodies()}, and something went wrong")
            await consumer.reject(first)

            again = await consumer.receive(timeout_ms=10_000)
            assert again is not None
            print(f"took {again.bodies()} again, and did it")
            print(f"the group goes on at {await consumer.confirm(again)}")


asyncio.run(main())
