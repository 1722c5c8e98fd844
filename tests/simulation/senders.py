"""Programs that send. Each waits for its receipts, and goes on after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coherer._administration.overview import overview
from coherer.errors import CohererError, RefusedError
from coherer.message import Message
from coherer.rocketmq import StoredMessage, Verdict
from tests.simulation.history import Place
from tests.simulation.machines import TOKEN
from tests.simulation.plan import (
    CALLER,
    FOREMAN,
    FOUNDER,
    MENDERS,
    QUERY,
    TABLE,
    WATCHER,
    WORKER,
)
from tests.simulation.replays import mend

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

ORDERS: Final = "orders"
LEDGER: Final = "ledger"
WORK: Final = "work"
NEWS: Final = "news"
"""Its group is reset to the beginning now and then."""
SCRATCH: Final = "scratch"
"""It is deleted and created again now and then."""
QUESTIONS: Final = "questions"
"""Its group sends an answer to who asks."""
SEND_OK: Final = "SEND_OK"
TOPICS: Final = (ORDERS, LEDGER, WORK, NEWS, SCRATCH, QUESTIONS)
FAILURES: Final = "!"
"""Before the number of times that handlers refuse a message, at the end of its body."""

GONE_S: Final = 95.0
"""Clients ask for routes every 30 s, and twice if a topic is gone; it may take 30 s until they
notice a broken connection. One that has not noticed the deletion would go on at its old offsets in
the new topic."""
ASKED_MS: Final = 5_000
ASKED_LAST_MS: Final = 20_000
BULK_BYTES: Final = 8_000
FILLED: Final = "~"
"""Before what makes a body large."""
GUEST: Final = ("guest-account", "guest-secret")
GUEST_NAME: Final = "guest"
GUESTS: Final = "guests"
"""The group that it reads with."""

Sender = Callable[["Run", str, Random], Awaitable[None]]


def place_of(where: Any) -> Place:
    """The place of a receipt or of a message in an ordinary topic."""
    return Place(f"{where.topic}@{where.broker}.{where.partition}", where.offset)


def body_of(message: Any) -> str:
    """What an event calls a message: its body, without what makes it large."""
    return str(message.body.decode().partition(FILLED)[0])


def keys_of(body: str) -> tuple[str, str]:
    """The keys of a message: one that others have, too, and one of its own.

    >>> keys_of("clerk.a-7!0")
    ('a', 'clerk.a-7!0')
    """
    return body.partition(".")[2][0], body


def answer_to(question: str) -> str:
    """What is answered."""
    return f"the answer to {question}"


async def send_each(run: Run, who: str, chance: Random) -> None:
    """Single messages with tags and properties."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            await _send(run, who, chance, producer)


async def send_bulk(run: Run, who: str, chance: Random) -> None:
    """Large messages, which fill the buffers of those who read slowly."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            body = run.name(who)
            run.note(who, "send", body)
            large = f"{body}{FILLED}{chance.randbytes(BULK_BYTES).hex()}"
            await _receipt(run, who, body, producer.send(Message(ORDERS, large.encode())))


async def guard(run: Run, who: str, chance: Random) -> None:
    """An administrator, who changes and removes the account of a guest that sends and reads."""
    name, secret = GUEST
    async with run.connect() as client:
        accounts = client.admin().accounts
        sending = asyncio.create_task(_send_as_guest(run, GUEST_NAME, chance))
        reading = asyncio.create_task(_read_as_guest(run, GUEST_NAME))
        try:
            async for _ in run.turns(chance):
                change = chance.choice(["permit", "permit", "deny", "remove", "secret"])
                run.note(who, "changing", note=change)
                try:
                    if change == "remove":
                        await accounts.delete(name)
                    else:
                        await accounts.set(
                            name,
                            "another-secret" if change == "secret" else secret,
                            topic_perms=[f"{ORDERS}={'DENY' if change == 'deny' else 'PUB|SUB'}"],
                            group_perms=[f"{GUESTS}=SUB"],
                        )
                except RefusedError as error:  # it is not there
                    run.note(who, "forbidden" if change == "remove" else "failed", note=str(error))
                except CohererError as error:
                    run.note(who, "failed", note=str(error))
                else:
                    run.note(who, "permitted" if change == "permit" else "forbidden")
                await asyncio.sleep(chance.random() * 6)
        finally:
            sending.cancel()
            reading.cancel()


async def _read_as_guest(run: Run, who: str) -> None:
    name, secret = GUEST
    while not run.end.is_set():
        try:
            async with (
                run.connect(user=name, password=secret, instance=GUESTS) as client,
                client.consumer(GUESTS, ORDERS, start="latest") as consumer,
            ):
                async for message in consumer:
                    run.note(who, "overheard", body_of(message), place=place_of(message))
        except CohererError as error:
            run.note(who, "failed", note=str(error))
            await asyncio.sleep(1)


async def _send_as_guest(run: Run, who: str, chance: Random) -> None:
    name, secret = GUEST
    while not run.end.is_set():
        try:
            async with (
                run.connect(user=name, password=secret) as client,
                client.producer(group=GUESTS) as producer,
            ):
                while not run.end.is_set():
                    await asyncio.sleep(chance.random() * 1.5)
                    body = run.name(who)
                    run.note(who, "send", body)
                    sending = producer.send(Message(ORDERS, body.encode()))
                    await _receipt(run, who, body, sending)
        except CohererError as error:  # it may not even ask for the route
            run.note(who, "failed", note=str(error))
            await asyncio.sleep(1)


async def administer(run: Run, who: str, chance: Random) -> None:
    """Topics that come and go in the catalog of the masters."""
    async with run.connect() as client:
        topics = client.admin(TOKEN).topics
        async for _ in run.turns(chance):
            there = _founded(run)
            if there and chance.random() < 0.4:
                topic = chance.choice(there)
                run.note(who, "abolishing", topic)
                with run.noting(who):
                    await topics.delete(topic)
                    run.note(who, "abolished", topic)
            else:
                topic = run.name("topic")
                run.note(who, "founding", topic)
                with run.noting(who):
                    await topics.create(topic, 1)
                    run.note(who, "founded", topic)


def _founded(run: Run) -> list[str]:
    """The topics that are certainly there."""
    state = {
        event.message: event.what
        for event in run.history.of("founding", "founded", "abolishing", "abolished")
    }
    return [topic for topic, what in state.items() if what == "founded"]


async def watch(run: Run, who: str, chance: Random) -> None:
    """An operator, who looks at the cluster again and again."""
    async with run.operate() as cluster:
        async for _ in run.turns(chance):
            with run.noting(who):
                seen = await overview(cluster)
                run.note(who, "seen", note=f"{seen.groups} groups, {seen.lag} behind")


async def report(run: Run, who: str, chance: Random) -> None:
    """News, whose group an administrator lets read from the beginning again now and then."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            body = run.name(who)
            run.note(who, "send", body)
            await _receipt(run, who, body, producer.send(Message(NEWS, body.encode())))
            if chance.random() < 0.1 and not run.recovering.is_set():
                with run.noting(who):
                    run.note(who, "resetting", group="press")
                    await client.admin().groups.reset_offsets("press", NEWS, "earliest")
                    run.note(who, "reset", group="press")


async def scribble(run: Run, who: str, chance: Random) -> None:
    """Messages of a topic that is deleted and created again now and then."""
    async with run.connect() as client, client.producer() as producer:
        topics = client.admin().topics
        if run.history.of("deleting"):  # the program before this one did that
            await _gone(run)
        with suppress(RefusedError):  # it is there
            await topics.create(SCRATCH, 2, wait_ms=5_000)
        async for _ in run.turns(chance):
            body = run.name(who)
            run.note(who, "send", body)
            await _receipt(run, who, body, producer.send(Message(SCRATCH, body.encode())))
            if chance.random() < 0.1 and not run.recovering.is_set():
                run.note(who, "deleting")
                await topics.delete(SCRATCH)
                run.note(who, "deleted")
                await _gone(run)
                with suppress(RefusedError):  # a send has created it
                    await topics.create(SCRATCH, 2, wait_ms=10_000)
                run.note(who, "created")


async def _gone(run: Run) -> None:
    """Wait until all consumers have noticed that a topic was deleted."""
    await asyncio.sleep(run.history.of("deleting")[-1].at_s + GONE_S - run.now_s())
    await run.undisturbed(GONE_S)


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
            message = Message(LEDGER, body.encode(), keys=keys_of(body))
            await _receipt(run, f"{who}.{key}", body, producer.send(message, order_by=key))


async def ask(run: Run, who: str, chance: Random) -> None:
    """Requests, and their answers."""
    async with run.connect() as client, client.producer() as producer:
        async for _ in run.turns(chance):
            body = run.name(who)
            run.note(who, "send", body)
            # One that waits at a member which leaves comes late.
            timeout_ms = ASKED_LAST_MS if run.calm.is_set() else ASKED_MS
            try:
                request = Message(QUESTIONS, body.encode())
                answer = await producer.request(request, timeout_ms=timeout_ms)
            except CohererError as error:
                run.note(who, "failed", body, note=str(error))
            else:
                run.note(who, "answered", body, note=answer.body.decode())


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
                # longer than messages are kept, if there is a limit
                longest_s = 30.0 if run.recovering.is_set() else 110.0
                delay_s = chance.choice([0.5, 7.0, 30.0, longest_s])
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


def playing_spark(run: Run) -> AbstractContextManager[None]:
    """Let queries of Spark run in a simulation, if its plan has one."""
    if WORKER not in run.plan.senders:
        return nullcontext()
    # They load PySpark, which takes as long as a run.
    from tests.simulation import query, spark

    return spark.playing(run, partial(query.decisions, run))


async def drive_query(run: Run, who: str, chance: Random) -> None:
    """The driver of a query that writes to a transactional sink."""
    from tests.simulation.query import drive

    await drive(run, who, chance)


async def drive_table(run: Run, who: str, chance: Random) -> None:
    """The driver of a query that reads a topic into a table."""
    from tests.simulation.table import drive

    await drive(run, who, chance)


async def work_for_queries(run: Run, who: str, chance: Random) -> None:
    """The worker of the queries."""
    from tests.simulation.spark import work

    await work(run, who, chance)


SENDERS: Final[dict[str, Sender]] = {
    "alice": send_each,
    "bob": send_each,
    "crowd": send_crowd,
    "bulk": send_bulk,
    "warden": guard,
    "reporter": report,
    "scribbler": scribble,
    "seller": sell,
    "timer": send_later,
    "clerk": send_ledger,
    FOREMAN: send_work,
    CALLER: ask,
    QUERY: drive_query,
    TABLE: drive_table,
    WORKER: work_for_queries,
    FOUNDER: administer,
    WATCHER: watch,
    **dict.fromkeys(MENDERS, mend),
}
