"""Topics, groups and how far they are behind, through the administration.

The administration answers on a port of its own, 8080 unless the node was told otherwise; the second
argument names another one.
"""

import asyncio
import sys

import coherer
from coherer.client.admin import Admin

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"
ADMIN_URL = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080"


async def main() -> None:
    admin = Admin(ADMIN_URL)
    await admin.create_topic("parcels", 4, exist_ok=True, wait_ms=60_000)

    async with coherer.connect(URL) as client, client.producer("parcels") as producer:
        await producer.send_many(coherer.Message("parcels", b"%d" % n) for n in range(20))

    # The group need not have read anything: it begins where it is told to.
    await admin.reset_offsets("couriers", "parcels", "earliest")
    for group in await admin.groups("couriers"):
        # An unknown lag is None, never 0.
        print(f"{group.name}: {group.lag} behind in {len(group.partitions)} partitions")

    await admin.reset_offsets("couriers", "parcels", "latest")
    (group,) = await admin.groups("couriers")
    print(f"{group.name}: {group.lag} behind")


asyncio.run(main())
