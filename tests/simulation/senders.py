"""Programs that send. Each waits for its receipts, and goes on after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coherer.errors import CohererError
from coherer.message import Message
from coherer.rocketmq import StoredMessage, Verdict
from tests.simulation.history import Place

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

ORDERS: Final = "orders"
LEDGER: Final = "ledger"
WORK: Final = "work"
SEND_OK: Final = "SEND_OK"
TOPICS: Final = (ORDERS, LEDGER, WORK)
FAILURES: Final = "!"
"""Before the number of times that handlers refuse a message, at the end of its body."""

Sender = Callable[["Run", str, Random], Awaitable[None]]


def place_of(where: Any) -> Place:
    """The place of a receipt or of a message in an ordinary topic."""
    return Place(f"{where.topic}@{where.broker}.{where.partition}", where.offset)


async def send_each(run: Run, who: str, chance: Random) -> None:
    """Single messages with tags and properties."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            await _send(run, who, chance, producer)


async def send_crowd(run: Run, who: str, chance: Random) -> None:
    """Several at a time: each is its own sender, as their order is not promised."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            callers = (f"{who}{number}" for number in range(chance.randint(2, 6)))
            await asyncio.gather(*(_send(run, caller, chance, producer) for caller in callers))
            await asyncio.sleep(3)


async def send_ledger(run: Run, who: str, chance: Random) -> None:
    """Messages with keys, which lie in order of their key, some of which fail at first."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            key, failures = chance.choice("abc"), chance.choice([0, 0, 0, 1, 2])
            body = run.name(f"{who}.{key}") + f"{FAILURES}{failures}"
            run.note(f"{who}.{key}", "send", body)
            message = Message(LEDGER, body.encode(), keys=(key,))
            await _receipt(run, f"{who}.{key}", body, producer.send(message, order_by=key))


async def send_work(run: Run, who: str, chance: Random) -> None:
    """Messages that handlers refuse a few times, or always."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            body = run.name(who) + f"{FAILURES}{chance.choice([0, 1, 2, 3, 99])}"
            run.note(who, "send", body)
            await _receipt(run, who, body, producer.send(Message(WORK, body.encode())))


async def send_later(run: Run, who: str, chance: Random) -> None:
    """Messages for later, by time and by delay level."""
    async with run.connect() as client, client.producer(group="timers") as producer:
        async for _ in run.turns(chance):
            body = run.name(who)
            if chance.random() < 0.5:
                delay_s = chance.choice([0.5, 7.0, 30.0])
                options: dict[str, Any] = {"delay": timedelta(seconds=delay_s)}
            else:
                level, delay_s = chance.choice([(1, 1.0), (4, 4.0), (8, 30.0)])
                options = {"delay_level": level}
            run.note(who, "send", body, due_s=run.now_s() + delay_s)
            sending = producer.send(Message(ORDERS, body.encode()), **options)
            await _receipt(run, who, body, sending, placed=False)


async def sell(run: Run, who: str, chance: Random) -> None:
    """Transactions, whose outcome is decided before the broker is told."""

    def check(message: StoredMessage) -> Verdict:
        # Without a decision the sender was never told that it has begun: it failed.
        return run.verdicts.get(message.body.decode(), Verdict.ROLLBACK)

    def decide(body: str, verdict: Verdict) -> None:
        run.verdicts[body] = verdict
        run.note(who, "committed" if verdict is Verdict.COMMIT else "rolled back", body)

    async with (
        run.connect() as client,
        client.producer(group="sellers", check=check) as producer,
    ):
        async for _ in run.turns(chance):
            body = run.name(who)
            run.note(who, "begun", body)
            if chance.random() < 0.3:
                await _commit_twice(run, who, body, producer, decide)
                continue
            try:
                async with producer.transaction(Message(ORDERS, body.encode())) as sale:
                    if chance.random() < 0.5:
                        decide(body, Verdict.COMMIT)
                    else:
                        decide(body, Verdict.ROLLBACK)
                        await sale.rollback()
            except CohererError as error:
                run.note(who, "failed", body, note=str(error))
        await run.end.wait()  # it answers brokers that ask


async def _commit_twice(
    run: Run, who: str, body: str, producer: Any, decide: Callable[[str, Verdict], None]
) -> None:
    """Commit in two steps, and repeat the second one: a transaction is committed once."""
    try:
        halves, failed = await producer.two_phase.prepare([Message(ORDERS, body.encode())])
        if failed:
            run.note(who, "failed", body, note=str(failed[0][1]))
            return
        decide(body, Verdict.COMMIT)
        for _ in range(2):
            for _, error in await producer.two_phase.end(halves, Verdict.COMMIT):
                run.note(who, "failed", body, note=str(error))
    except CohererError as error:
        run.note(who, "failed", body, note=str(error))


async def _send(run: Run, who: str, chance: Random, producer: Any) -> None:
    body, tag, size = run.name(who), chance.choice(["red", "blue"]), chance.randint(0, 9)
    run.note(who, "send", body, tag=tag, size=size)
    message = Message(ORDERS, body.encode(), tag=tag, properties={"size": str(size)})
    await _receipt(run, who, body, producer.send(message))


async def _receipt(
    run: Run, who: str, body: str, sending: Awaitable[Any], *, placed: bool = True
) -> None:
    try:
        receipt = await sending
    except CohererError as error:
        run.note(who, "failed", body, note=str(error))
    else:
        status = getattr(receipt, "status", SEND_OK)
        if status == SEND_OK:
            run.note(who, "stored", body, place=place_of(receipt) if placed else None)
        else:  # it is in the log, and may not be on the disk
            run.note(who, "failed", body, note=status)


SENDERS: Final[dict[str, Sender]] = {
    "alice": send_each,
    "bob": send_each,
    "crowd": send_crowd,
    "seller": sell,
    "timer": send_later,
    "clerk": send_ledger,
    "foreman": send_work,
}
