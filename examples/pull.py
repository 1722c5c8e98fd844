"""Take batches by hand: acknowledge those that are handled, retry the others."""

import asyncio
import sys

from coherer import tubemq

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with tubemq.connect(URL) as client:
        async with client.producer("jobs") as producer:
            await producer.send(tubemq.Message("jobs", b"wash up"))

        async with client.consumer("workers", "jobs", start="earliest") as consumer:
            first = await consumer.receive(timeout_ms=10_000)
            assert first is not None
            print(f"took {first.bodies()}, and something went wrong")
            await first.retry()

            again = await consumer.receive(timeout_ms=10_000)
            assert again is not None
            print(f"took {again.bodies()} again, and it worked")
            for partition, offset in (await consumer.commit(again)).items():
                print(f"the group continues at offset {offset} of partition {partition.id}")


asyncio.run(main())
