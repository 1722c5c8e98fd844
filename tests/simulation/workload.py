"""Programs that use a node, and faults that hit them; all of it follows from one seed."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import coherer
from coherer.errors import CohererError
from coherer.message import Message
from coherer.rocketmq import StoredMessage, Verdict
from coherer.testing import simulate
from coherer.testing.simulation import Process, SimulatedLoop
from tests.simulation.checker import Wrong, judge
from tests.simulation.history import Event, History, Place
from tests.simulation.machines import Machine

TOPIC: Final = "orders"
QUEUES: Final = 2
TROUBLE_S: Final = 60.0
CALM_S: Final = 240.0
"""After the last fault: longer than a broker needs to forget a client, and a client to retry."""


class Run:
    """One simulation.

    Args:
        seed: of everything.
        protocol: `tubemq` or `rocketmq`.
        directory: where disks are.
    """

    def __init__(self, seed: int, protocol: str, directory: Path) -> None:
        self.seed, self.protocol = seed, protocol
        self.history = History()
        self._chance = Random(seed)
        self._flush = self._chance.choice(["sync", "async"])
        self._machine = Machine(directory, flush=self._flush, default_partitions=QUEUES)
        self._loop: SimulatedLoop
        self._verdicts: dict[str, Verdict] = {}
        self._consumers: list[Process] = []
        self._number = 0
        self._calm, self._end = asyncio.Event(), asyncio.Event()
        self._awaited, self._happened = "", asyncio.Event()

    def note(self, who: str, what: str, message: str = "", **more: Any) -> None:
        """Add an event."""
        self.history.events.append(Event(self._loop.time(), who, what, message, **more))
        if what == self._awaited:
            self._happened.set()

    async def main(self) -> None:
        """Start everything, make trouble, wait until it is calm, and look."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        loop.leaps = False  # everything happens that happens in reality
        network = loop.network
        network.latency_s, network.jitter_s = 0.0005, self._chance.choice([0, 0.001, 0.05])
        network.pieces = self._chance.choice([0, 0.2])
        loop.threads_s = self._chance.choice([0, 0.01, 0.2])
        await self._machine.start()
        await self._machine.process.start(self._create())
        works = [self._send("alice"), self._send("bob")]
        if self.protocol == "rocketmq":
            works += [self._sell(), self._delay()]
        tasks = [asyncio.create_task(work) for work in works]
        for group in ("shop", "books"):
            for number in range(2):
                self._join(group, number)
        await self._trouble()
        self._calm.set()
        await asyncio.sleep(CALM_S)
        await self._look()
        self._end.set()
        await asyncio.gather(*tasks)
        for consumer in self._consumers:
            consumer.kill()
        await self._machine.stop()

    async def _create(self) -> None:
        self._machine.node.create_topic(TOPIC, QUEUES)

    def _connect(self) -> Any:
        node = self._machine.node
        url = node.url if self.protocol == "tubemq" else node.rocketmq_url
        return coherer.connect(url, timeout_ms=5_000)

    def _next(self, who: str) -> str:
        self._number += 1
        return f"{who}-{self._number}"

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.random() * 1.5)

    async def _send(self, who: str) -> None:
        """A producer that waits for each receipt, and goes on after an error."""
        async with self._connect() as client, client.producer() as producer:
            while not self._calm.is_set():
                body = self._next(who)
                self.note(who, "send", body)
                try:
                    receipt = await producer.send(Message(TOPIC, body.encode()))
                except CohererError as error:
                    self.note(who, "failed", body, note=str(error))
                else:
                    self.note(who, "stored", body, place=_place(receipt))
                await self._pause()

    async def _delay(self) -> None:
        async with self._connect() as client, client.producer(group="timers") as producer:
            while not self._calm.is_set():
                body, delay_s = self._next("timed"), self._chance.choice([0.5, 7.0, 30.0])
                due_s = self._loop.time() + delay_s
                self.note("timer", "send", body, due_s=due_s)
                message, delay = Message(TOPIC, body.encode()), timedelta(seconds=delay_s)
                try:
                    await producer.send(message, delay=delay)
                except CohererError as error:
                    self.note("timer", "failed", body, note=str(error))
                else:
                    self.note("timer", "stored", body)
                await self._pause()

    async def _sell(self) -> None:
        """Transactions, whose outcome is decided before the broker is told."""
        async with (
            self._connect() as client,
            client.producer(group="sellers", check=self._check) as producer,
        ):
            while not self._calm.is_set():
                body = self._next("sale")
                self.note("seller", "begun", body)
                try:
                    async with producer.transaction(Message(TOPIC, body.encode())) as sale:
                        if self._chance.random() < 0.5:
                            self._decide(body, Verdict.COMMIT)
                        else:
                            self._decide(body, Verdict.ROLLBACK)
                            await sale.rollback()
                except CohererError as error:
                    self.note("seller", "failed", body, note=str(error))
                await self._pause()
            await self._end.wait()  # it answers brokers that ask

    def _decide(self, body: str, verdict: Verdict) -> None:
        self._verdicts[body] = verdict
        what = "committed" if verdict is Verdict.COMMIT else "rolled back"
        self.note("seller", what, body)

    def _check(self, message: StoredMessage) -> Verdict:
        """A half message without a decision was never begun for its sender: it failed."""
        return self._verdicts.get(message.body.decode(), Verdict.ROLLBACK)

    def _join(self, group: str, number: int) -> None:
        process = Process(f"{group}{number}")
        self.note(process.name, "joined", group=group)
        process.start(self._stay(process.name, group))
        self._consumers.append(process)

    async def _stay(self, who: str, group: str) -> None:
        """Receive, and begin again after an error, as a supervisor has a service do."""
        while True:
            try:
                await self._receive(who, group)
            except CohererError as error:  # a consumer cannot start while its servers are away
                self.note(who, "failed", note=str(error))
                await asyncio.sleep(1)

    async def _receive(self, who: str, group: str) -> None:
        async with (
            self._connect() as client,
            client.consumer(group, TOPIC, start="earliest") as consumer,
        ):
            async for batch in consumer.batches():
                for message in batch:
                    body = message.body.decode()
                    self.note(who, "received", body, place=_place(message), group=group)
                if self._chance.random() < 0.3:
                    await asyncio.sleep(self._chance.random() * 3)
                batch.ack()

    async def _trouble(self) -> None:
        network, until = self._loop.network, self._loop.time() + TROUBLE_S
        while self._loop.time() < until:
            await asyncio.sleep(self._chance.random() * 10)
            fault = self._chance.choice(["cut", "stop", "kill", "power", "restart", "consumer"])
            if fault == "cut":
                self.note("network", "cut")
                network.cut()
            elif fault == "stop":
                self.note("network", "stopped")
                network.stop()
                await asyncio.sleep(self._chance.choice([0.5, 4, 20]))
                network.heal()
                self.note("network", "healed")
            elif fault == "consumer":
                await self._just_after("received")
                process = self._chance.choice(self._consumers)
                self._consumers.remove(process)
                self.note(process.name, "killed")
                process.kill()
                await asyncio.sleep(self._chance.random() * 5)
                self._join(process.name[:-1], int(process.name[-1]))
            else:
                await self._strike_node(fault)

    async def _just_after(self, what: str) -> None:
        """Wait, in half of the cases, for the next event of a kind: the best moment for a fault."""
        if self._chance.random() < 0.5:
            self._awaited = what
            self._happened.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._happened.wait(), 3)

    async def _strike_node(self, fault: str) -> None:
        await self._just_after("stored")
        if fault == "restart":
            await self._machine.stop()
            self.note("node", "stopped")
        elif fault == "kill":
            self._machine.kill()
            self.note("node", "killed")
        else:
            self._machine.cut_power(self._chance)
            self.note("node", "power")
            self.history.lossy |= self._flush == "async"
        await asyncio.sleep(self._chance.choice([0, 1, 10]))
        await self._machine.start()
        self.note("node", "started")

    async def _look(self) -> None:
        async with self._connect() as client:
            for queue, (first, end) in (await client.offsets(TOPIC)).items():
                async with client.reader(queue, first, end=end) as reader:
                    while (batch := await reader.read()) is not None:
                        for message in batch:
                            place = _place(message)
                            self.note("reader", "final", message.body.decode(), place=place)


def _place(where: Any) -> Place:
    """Of a receipt or a message. Over TubeMQ, and over RocketMQ, the same queue has one number."""
    return Place(f"{where.partition}", where.offset)


def run(seed: int, protocol: str) -> tuple[History, list[Wrong]]:
    """Run one simulation, and judge it."""
    logging.disable(logging.WARNING)
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    with tempfile.TemporaryDirectory(prefix="coherer-") as directory:
        one = Run(seed, protocol, Path(directory))
        errors.run = one
        try:
            simulate(one.main(), seed=seed)
        except Exception as error:  # noqa: BLE001 - no fault may end the node or a client
            one.note("simulation", "error", note=repr(error))
        finally:
            logging.getLogger().removeHandler(errors)
            logging.disable(logging.NOTSET)
    return one.history, judge(one.history)


class _Errors(logging.Handler):
    """Notes the errors of all logs."""

    run: Run

    def emit(self, record: logging.LogRecord) -> None:
        self.run.note(record.name, "error", note=record.getMessage())
