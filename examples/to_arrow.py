"""Batches as Arrow columns, without a Python object for each message."""

import asyncio
import sys

import pyarrow as pa

import coherer

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with coherer.connect(URL) as client:
        async with client.producer("numbers") as producer:
            await producer.send_many(
                coherer.Message("numbers", b"%d" % n, tag="even" if n % 2 == 0 else "odd")
                for n in range(10_000)
            )

        batches: list[pa.RecordBatch] = []
        async with client.consumer("columns", "numbers", start="earliest") as consumer:
            async for batch in consumer.batches():
                batches.append(batch.to_arrow())
                if sum(b.num_rows for b in batches) == 10_000:
                    break

    table = pa.Table.from_batches(batches)
    print(table.schema)
    print(table.group_by("tag").aggregate([([], "count_all")]).sort_by("tag").to_pydict())


asyncio.run(main())
