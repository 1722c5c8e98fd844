"""A message that consumers see only when your own work is done (RocketMQ)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from coherer import rocketmq
from coherer.rocketmq import StoredMessage, Verdict

URL = sys.argv[1] if len(sys.argv) > 1 else "rocketmq://127.0.0.1:9876"
books = sqlite3.connect(":memory:")
books.execute("CREATE TABLE paid (transaction_id TEXT PRIMARY KEY, cents INTEGER)")


def was_paid(message: StoredMessage) -> Verdict:
    """Called when the broker does not know how a transaction ended; the books do."""
    question = "SELECT 1 FROM paid WHERE transaction_id = ?"
    paid = books.execute(question, [message.unique_id]).fetchone()
    return Verdict.COMMIT if paid else Verdict.ROLLBACK


async def main() -> None:
    async with (
        rocketmq.connect(URL) as client,
        client.producer("payments", group="cashiers", check=was_paid) as producer,
    ):
        async with producer.transaction(rocketmq.Message("payments", b"100 cents")) as sale:
            books.execute("INSERT INTO paid VALUES (?, ?)", [sale.id, 100])
        print(f"committed: {sale.verdict.name}")
        async with producer.transaction(rocketmq.Message("payments", b"no money")) as refused:
            await refused.rollback()
        print(f"rolled back: {refused.verdict.name}")

        async with client.consumer("ledger", "payments", start="earliest") as consumer:
            async for message in consumer:
                print(f"the ledger sees {message.body.decode()}")
                break


asyncio.run(main())
books.close()
