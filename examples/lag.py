"""Topics, groups and their lag through the administration.

The master tells the client the URL of its administration; the second argument overrides it.
"""

import asyncio
import sys

from coherer import tubemq

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else None


async def main() -> None:
    async with tubemq.connect(URL, admin=ADMIN_URL) as client:
        admin = client.admin()
        await admin.topics.create("parcels", 4, exist_ok=True, wait_ms=60_000)

        async with client.producer("parcels") as producer:
            await producer.send_many(tubemq.Message("parcels", b"%d" % n) for n in range(20))

        # The group does not need to exist: it will begin at these offsets.
        await admin.groups.reset_offsets("couriers", "parcels", "earliest")
        for group in await admin.groups.list("couriers"):
            # An unknown lag is None, never 0.
            print(f"{group.name}: {group.lag} behind in {len(group.partitions)} partitions")

        await admin.groups.reset_offsets("couriers", "parcels", "latest")
        (group,) = await admin.groups.list("couriers")
        print(f"{group.name}: {group.lag} behind")


asyncio.run(main())
