"""Read only messages with certain tags; the broker filters the others out."""

import asyncio
import sys

import coherer

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"


async def main() -> None:
    async with coherer.connect(URL) as client:
        async with client.producer("weather") as producer:
            for tag in ("rain", "sun", "snow", "rain"):
                await producer.send(coherer.Message("weather", tag.upper().encode(), tag=tag))

        wet = {"weather": ["rain", "snow"]}
        async with client.consumer("umbrellas", wet, start="earliest") as consumer:
            found: list[str] = []
            async for message in consumer:
                found.append(message.tag or "")
                if len(found) == 3:
                    break
            print(sorted(found))


asyncio.run(main())
