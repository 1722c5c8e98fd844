"""The load of a soak over one protocol: programs whose clients come and go, and what they expect.

`python soak_load.py URL RATE` runs until a line or the end of its stdin says that the senders stop.
It prints its counters once a second, as JSON lines; the last line says what is missing. It uses
nothing that an application could not use.

A message is *missing* in a group from its send until a member has received it. Members that leave
receive some messages twice, which both protocols allow. Nothing else is: a program that raises an
error, and a log line of the level ERROR, end the soak.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import coherer
from coherer import _net as net
from coherer.rocketmq import Verdict

PARTITIONS = 4
SIZES = (40, 200, 200, 1000, 4000)
"""Bodies, in bytes; RocketMQ's client compresses from 4 KiB on."""
LAG_S = 20.0
"""How long the consumer that lags pauses: the log keeps messages for longer."""
ATTEMPTS = 3
ALWAYS = 99
"""Handlers refuse such a message as often as they get it: it becomes a dead letter."""
EARLY_S = 0.1
"""Timed messages are exact to 0.1 s."""
DRAIN_S = 120.0
"""How long what was sent may take to arrive after the last send."""
TRANSACTION_ROOM = 60
BRIEF_MESSAGES = 60


class Load:
    """What the programs share.

    Attributes:
        missing: by group, the numbers of messages that it has not received.
        counts: what has happened, for the table.
        stop: set when no more is to be sent.
        drained: set when everything has arrived.
    """

    def __init__(self, url: str, rate: float) -> None:
        self.url, self.rate = url, rate
        self.protocol = url.partition(":")[0]
        self.random = Random()
        self.missing: defaultdict[str, set[int]] = defaultdict(set)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.stop, self.drained = asyncio.Event(), asyncio.Event()
        self._numbers = itertools.count()

    def named(self, name: str) -> str:
        """The name of a topic or group of this protocol: both protocols share the node's tables."""
        return f"{self.protocol}-{name}"

    def connect(self) -> Any:
        """A new client, as that of a program that has just started."""
        self.counts["clients"] += 1
        return coherer.connect(self.url)

    def message(self, topic: str, *groups: str, mark: str = "", size: int = 0) -> coherer.Message:
        """A new message, which these groups are to receive."""
        number = next(self._numbers)
        for group in groups:
            self.missing[group].add(number)
        self.counts["sent"] += 1
        body = f"{number} {mark} "
        size = size or self.random.choice(SIZES)
        return coherer.Message(self.named(topic), body.ljust(size, ".").encode(), tag="soak")

    def received(self, group: str, messages: Iterable[Any]) -> None:
        """Note what a member of a group has received."""
        missing = self.missing[group]
        for message in messages:
            number = int(message.body.split(b" ", 1)[0])
            if number in missing:
                missing.remove(number)
                self.counts["received"] += 1
            else:
                self.counts["again"] += 1

    def some_s(self, least: float, most: float) -> float:
        """A random time."""
        return self.random.uniform(least, most)

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not after the end of the sends; whether to go on."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)
        return not self.stop.is_set()

    def look(self) -> None:
        """Look whether everything has arrived."""
        if self.stop.is_set() and not any(self.missing.values()):
            self.drained.set()


def mark_of(message: Any) -> str:
    """What the sender wrote behind the number."""
    return str(message.body.split(b" ", 2)[1].decode())


# -- both protocols


async def _send_steadily(load: Load, producer: Any, until_s: float, groups: Iterable[str]) -> None:
    """Send at a rate, several messages in flight, until a time."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while loop.time() < until_s and not load.stop.is_set():
        some = [load.message("steady", *groups) for _ in range(5)]
        receipts = [producer.submit(one) for one in some]
        await asyncio.gather(*receipts)
        due_s = max(due_s + len(some) / load.rate, loop.time() - 1)
        await load.pause(due_s - loop.time())


STEADY_GROUPS = ("stay", "change", "lag")


async def produce(load: Load) -> None:
    """A producer that stays."""
    async with load.connect() as client, client.producer(load.named("steady")) as producer:
        await _send_steadily(load, producer, float("inf"), STEADY_GROUPS)


async def visit(load: Load) -> None:
    """Producers that come, send for some seconds, and leave."""
    while await load.pause(load.some_s(0, 2)):
        async with load.connect() as client, client.producer(load.named("steady")) as producer:
            until_s = asyncio.get_running_loop().time() + load.some_s(1, 6)
            await _send_steadily(load, producer, until_s, STEADY_GROUPS)


async def stay(load: Load) -> None:
    """A consumer that stays."""
    await _receive(load, "stay", "steady", float("inf"))


async def change(load: Load) -> None:
    """Members of a group that come, work for some seconds, and leave."""
    while not load.drained.is_set():
        await _receive(load, "change", "steady", load.some_s(3, 12))
        await load.pause(load.some_s(0, 3))


async def _receive(load: Load, group: str, topic: str, seconds: float, **options: Any) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    async with (
        load.connect() as client,
        client.consumer(
            load.named(group), load.named(topic), start="earliest", **options
        ) as consumer,
    ):
        while loop.time() < until_s and not load.drained.is_set():
            batch = await consumer.receive(500)
            if batch is not None:
                load.received(group, batch)
                batch.ack()


async def lag(load: Load) -> None:
    """A consumer that stops for a long time, then reads what has come meanwhile."""
    async with (
        load.connect() as client,
        client.consumer(load.named("lag"), load.named("steady"), start="earliest") as consumer,
    ):
        while not load.drained.is_set():
            consumer.pause()
            await load.pause(LAG_S)
            consumer.resume()
            while (batch := await consumer.receive(1_000)) is not None:
                load.received("lag", batch)
                batch.ack()
                if len(load.missing["lag"]) < load.rate and not load.stop.is_set():
                    break
            load.counts["lags caught up"] += 1


async def read(load: Load) -> None:
    """Readers of the newest messages of each partition."""
    while await load.pause(load.some_s(2, 5)):
        async with load.connect() as client:
            for partition, (first, end) in (await client.offsets(load.named("steady"))).items():
                begin, count = max(first, end - 200), 0
                async with client.reader(partition, begin, end=end) as reader:
                    while (batch := await reader.read()) is not None:
                        count += len(batch)
                if count != end - begin:
                    raise AssertionError(f"read {count} of {end - begin} messages of {partition}")
                load.counts["read"] += count


async def live_and_die(load: Load) -> None:
    """Topics and groups that exist for seconds; each has a name of its own."""
    numbers = itertools.count()
    while await load.pause(load.some_s(0, 2)):
        name = group = f"brief-{next(numbers)}"
        async with load.connect() as client:
            admin = client.admin()
            await admin.topics.create(load.named(name), PARTITIONS, wait_ms=30_000)
            async with client.producer() as producer:
                messages = [load.message(name, group) for _ in range(BRIEF_MESSAGES)]
                await asyncio.gather(*(producer.send(one) for one in messages))
            async with client.consumer(
                load.named(group), load.named(name), start="earliest"
            ) as consumer:
                while load.missing[group]:
                    batch = await consumer.receive()
                    load.received(group, batch)
                    await consumer.commit(batch)
            await admin.groups.delete(load.named(group))
            await admin.topics.delete(load.named(name))
            del load.missing[group]
        load.counts["topics and groups"] += 1
    async with load.connect() as client:
        admin, brief = client.admin(), load.named("brief-")
        names = [*await admin.topics.names(system=True), *await admin.groups.names()]
        if left := [name for name in names if brief in name]:
            raise AssertionError(f"topics and groups that were deleted: {left}")


# -- RocketMQ


async def sell(load: Load) -> None:
    """Transactions: committed, rolled back, and ended by the check; the body says which."""

    async def check(message: Any) -> Verdict:
        load.counts["checks"] += 1
        return Verdict.COMMIT if mark_of(message) == "commit" else Verdict.ROLLBACK

    async with (
        load.connect() as client,
        client.producer(group=load.named("sellers"), check=check) as producer,
    ):
        while await load.pause(TRANSACTION_ROOM / load.rate * load.random.random()):
            commits, checked = load.random.random() < 0.6, load.random.random() < 0.2
            mark, groups = ("commit", ["buyers"]) if commits else ("rollback", [])
            message = load.message("sales", *groups, mark=mark)
            with suppress(_OpenError):
                async with producer.transaction(message) as sale:
                    if checked:
                        raise _OpenError
                    if not commits:
                        await sale.rollback()
            load.counts["transactions"] += 1
        await load.drained.wait()  # the node may ask


class _OpenError(Exception):
    """Leaves a transaction open."""


async def buy(load: Load) -> None:
    """Those who receive what was committed."""
    async with (
        load.connect() as client,
        client.consumer(load.named("buyers"), load.named("sales"), start="earliest") as consumer,
    ):
        while not load.drained.is_set():
            batch = await consumer.receive(500)
            if batch is not None:
                for message in batch:
                    if mark_of(message) != "commit":
                        raise AssertionError(f"received what was rolled back: {message}")
                load.received("buyers", batch)
                batch.ack()


async def order_work(load: Load) -> None:
    """Messages that handlers refuse a few times, or always."""
    async with load.connect() as client, client.producer() as producer:
        while await load.pause(load.some_s(0, TRANSACTION_ROOM / load.rate)):
            failures = load.random.choice([0, 0, 1, 2, ALWAYS])
            group = "undertaker" if failures == ALWAYS else "crew"
            await producer.send(load.message("work", group, mark=str(failures)))


async def work(load: Load) -> None:
    """Members that come and go, and refuse messages."""
    loop = asyncio.get_running_loop()
    while not load.drained.is_set():
        until_s = loop.time() + load.some_s(10, 30)
        async with (
            load.connect() as client,
            client.consumer(
                load.named("crew"), load.named("work"), start="earliest", max_attempts=ATTEMPTS
            ) as consumer,
        ):
            while loop.time() < until_s and not load.drained.is_set():
                batch = await consumer.receive(500)
                for message in batch or ():
                    if message.attempt < int(mark_of(message)):
                        load.counts["retries"] += 1
                        await message.retry(later=timedelta(seconds=1), reason="a soak")
                    else:
                        load.received("crew", [message])
                        message.ack()


async def bury(load: Load) -> None:
    """Reads the dead letters."""
    dead = "%DLQ%" + load.named("crew")
    async with load.connect() as client:
        while not await client.exists(dead):  # it begins with the first dead letter
            if load.drained.is_set():
                return
            await asyncio.sleep(1)
        async with client.consumer(load.named("undertaker"), dead, start="earliest") as consumer:
            while not load.drained.is_set():
                batch = await consumer.receive(500)
                if batch is not None:
                    load.received("undertaker", batch)
                    load.counts["dead letters"] += len(batch)
                    batch.ack()


async def send_later(load: Load) -> None:
    """Messages for later, by time and by delay level."""
    async with load.connect() as client, client.producer() as producer:
        while await load.pause(load.some_s(0, TRANSACTION_ROOM / load.rate)):
            if load.random.random() < 0.5:
                level, delay_s = load.random.choice([(1, 1.0), (2, 5.0), (3, 10.0)])
                options: dict[str, Any] = {"delay_level": level}
            else:
                delay_s = load.some_s(0.5, 20)
                options = {"delay": timedelta(seconds=delay_s)}
            message = load.message("later", "patient", mark=f"{time.time() + delay_s}")
            await producer.send(message, **options)


async def wait(load: Load) -> None:
    """Receives what was sent for later."""
    async with (
        load.connect() as client,
        client.consumer(load.named("patient"), load.named("later"), start="earliest") as consumer,
    ):
        while not load.drained.is_set():
            batch = await consumer.receive(500)
            if batch is not None:
                for message in batch:
                    early_s = float(mark_of(message)) - time.time()
                    if early_s > EARLY_S:
                        raise AssertionError(f"delivered {early_s:.2f} s early: {message}")
                load.received("patient", batch)
                load.counts["timed"] += len(batch)
                batch.ack()


async def keep_books(load: Load) -> None:
    """An orderly group, whose member changes; its messages are sent by key."""

    async def send() -> None:
        async with load.connect() as client, client.producer() as producer:
            while await load.pause(load.some_s(0, TRANSACTION_ROOM / load.rate)):
                message = load.message("ledger", "books")
                await producer.send(message, order_by=load.random.choice("abcd"))

    async def receive() -> None:
        while not load.drained.is_set():
            await _receive(load, "books", "ledger", load.some_s(10, 30), orderly=True)

    await asyncio.gather(send(), receive())


Program = Callable[[Load], Coroutine[Any, Any, None]]
BOTH: tuple[Program, ...] = (produce, visit, visit, stay, change, change, lag, read, live_and_die)
PROGRAMS: dict[str, tuple[Program, ...]] = {
    "tubemq": BOTH,
    "rocketmq": (*BOTH, sell, buy, order_work, work, bury, send_later, wait, keep_books),
}
TOPICS = {"tubemq": ("steady",), "rocketmq": ("steady", "sales", "work", "later", "ledger")}


class _Complaints(logging.Handler):
    """Counts warnings, and collects errors."""

    def __init__(self, load: Load) -> None:
        super().__init__(logging.WARNING)
        self._load = load

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self._load.errors.append(f"log of {record.name}: {self.format(record)}")
        else:
            self._load.counts["warnings"] += 1
            print(self.format(record), file=sys.stderr)


async def run(load: Load) -> None:
    """Create the topics, run the programs, and report each second."""
    logging.getLogger().addHandler(_Complaints(load))
    async with load.connect() as client:
        for name in TOPICS[load.protocol]:
            await client.admin().topics.create(load.named(name), PARTITIONS, wait_ms=30_000)
    programs = {
        asyncio.create_task(program(load), name=program.__name__)
        for program in PROGRAMS[load.protocol]
    }
    loop = asyncio.get_running_loop()
    threading.Thread(target=_wait_for_the_order, args=(loop, load), daemon=True).start()
    stopped_s = float("inf")
    while programs and not load.errors and loop.time() < stopped_s + DRAIN_S:
        done, programs = await asyncio.wait(programs, timeout=1)
        for task in done:
            if (error := task.exception()) is not None:
                load.errors.append(f"{task.get_name()}: {type(error).__name__}: {error}")
        if load.stop.is_set() and stopped_s == float("inf"):
            stopped_s = loop.time()
        load.look()
        _report(load, "load")
    load.counts["unfinished"] = len(programs)
    _report(load, "end")


def _report(load: Load, kind: str) -> None:
    missing = {group: len(numbers) for group, numbers in load.missing.items() if numbers}
    line = {kind: load.counts, "missing": missing, "errors": load.errors}
    print(json.dumps(line), flush=True)


def _wait_for_the_order(loop: asyncio.AbstractEventLoop, load: Load) -> None:
    sys.stdin.readline()
    loop.call_soon_threadsafe(load.stop.set)


if __name__ == "__main__":
    net.run(run(Load(sys.argv[1], float(sys.argv[2]))))
