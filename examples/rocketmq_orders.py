"""Features of RocketMQ that TubeMQ lacks: order by key, SQL filters, retries, requests."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from coherer import rocketmq

URL = sys.argv[1] if len(sys.argv) > 1 else "rocketmq://127.0.0.1:9876"


def order(number: int, step: str, cents: int) -> rocketmq.Message:
    properties = {"cents": str(cents)}
    body = f"order {number} {step}".encode()
    return rocketmq.Message("shop", body, tag=step, keys=(f"o{number}",), properties=properties)


async def send(client: rocketmq.Client) -> None:
    async with client.producer("shop") as producer:
        for step in ("new", "paid", "sent"):  # one order's steps stay in order
            await producer.send(order(1, step, 500), order_by="1")
        await producer.send(order(2, "new", 20), delay_level=1)  # a second later


async def read_with_sql(client: rocketmq.Client) -> None:
    wanted = {"shop": rocketmq.Sql92("cents >= 100 AND TAGS <> 'paid'")}
    async with client.consumer("big_orders", wanted, start="earliest", orderly=True) as consumer:
        steps: list[str | None] = []
        async for message in consumer:
            steps.append(message.tag)
            if len(steps) == 2:
                print(f"steps of big orders: {steps}")
                return


async def read_and_retry(client: rocketmq.Client) -> None:
    async with client.consumer("packers", {"shop": "new"}, start="earliest") as consumer:
        packed: list[str] = []
        async for message in consumer:
            if message.attempt == 0 and message.keys == ("o1",):
                await message.retry(later=timedelta(seconds=1))  # out of boxes
                continue
            message.ack()
            packed.append(f"{message.keys[0]} at attempt {message.attempt}")
            if len(packed) == 2:
                print(f"packed: {sorted(packed)}")
                return


async def ask(client: rocketmq.Client) -> None:
    async def answer() -> None:
        async with (
            client.producer(group="answers") as producer,
            client.consumer("oracle", "questions", start="earliest") as consumer,
        ):
            async for question in consumer:
                await producer.reply(question, b"42")

    answering = asyncio.create_task(answer())
    async with client.producer(group="askers") as producer:
        reply = await producer.request(rocketmq.Message("questions", b"what?"), timeout_ms=20_000)
        print(f"the answer is {reply.body.decode()}")
    answering.cancel()


async def main() -> None:
    async with rocketmq.connect(URL) as client:
        await send(client)
        await read_with_sql(client)
        await read_and_retry(client)
        await ask(client)


asyncio.run(main())
