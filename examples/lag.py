"""Topics, groups and how far they are behind, through the administration.

The master says where its administration answers; the second argument names another place.
"""

import asyncio
import sys

from coherer import Message
from coherer.tubemq import connect as connect_tubemq

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else None


async def main() -> None:
    async with connect_tubemq(URL, admin=ADMIN_URL) as client:
        admin = client.admin()
        await admin.create_topic("parcels", 4, exist_ok=True, wait_ms=60_000)

        async with client.producer("parcels") as producer:
            await producer.send_many(Message("parcels", b"%d" % n) for n in range(20))

        # The group need not have read anything: it begins where it is told to.
        await admin.reset_offsets("couriers", "parcels", "earliest")
        for group in await admin.groups("couriers"):
            # An unknown lag is None, never 0.
            print(f"{group.name}: {group.lag} behind in {len(group.partitions)} partitions")

        await admin.reset_offsets("couriers", "parcels", "latest")
        (group,) = await admin.groups("couriers")
        print(f"{group.name}: {group.lag} behind")


asyncio.run(main())
