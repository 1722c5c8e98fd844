"""Coherer's client process, with the protocol of Java's `BenchPeer.java`: JSON lines in and out."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from operator import methodcaller
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, TypeAlias

import coherer
from bench.cases import BEHIND
from coherer import Message
from coherer import _net as net
from tests.interop.peers.driver_main import lines_until_end

if TYPE_CHECKING:
    from coherer._client.tubemq.consumer import Consumer
    from coherer._client.tubemq.producer import Producer
    from coherer._wire.tubemq.delivery import MessageBatch

Request: TypeAlias = dict[str, object]
Answer: TypeAlias = dict[str, object]
READER = Path(__file__).parent / "reader_main.py"
HEAD = struct.Struct(">qqq")  # run, number, time
PARTITIONS = 4  # as in `sites`, which imports more than a client has
BODIES, TO_ARROW = methodcaller("bodies"), methodcaller("to_arrow")
JOIN_S = 60.0
TOPICS_PER_PRODUCER = 1_000
"""A TubeMQ client may publish 1,024 topics."""
FILES_S = 8.0
"""The node writes the files of new queues up to 5 s after their first messages."""


def number(request: Request, name: str, default: int | None = None) -> int:
    """A number in a request."""
    value = request.get(name, default)
    assert isinstance(value, int), name
    return value


def report(count: int, seconds: float, **more: object) -> Answer:
    """The answer of every case."""
    return {"count": count, "seconds": seconds, **more}


class BenchClient:
    """A client of one cluster; the code is the same for both protocols, except for batches."""

    def __init__(self, request: Request) -> None:
        heartbeat_ms = number(request, "heartbeat_ms")
        self._url = str(request["url"])
        self._client: Any = coherer.connect(self._url, heartbeat_ms=heartbeat_ms)
        self._tubemq_url = str(request.get("tubemq_url") or request["url"])
        self._producers: dict[int, Producer] = {}
        self._spread: dict[int, list[tuple[Producer, list[str]]]] = {}

    async def producer(self, window: int, topic: str) -> Producer:
        """The producer with this window, created on first use."""
        if window not in self._producers:
            made = self._client.producer(window=window)
            self._producers[window] = await made.__aenter__()
        await self._producers[window].publish(topic)
        return self._producers[window]

    async def publish(self, request: Request) -> Answer:
        """Waits until the topic is writable."""
        end = time.monotonic() + number(request, "wait_ms") / 1000
        while True:
            try:
                await self.producer(5000, str(request["topic"]))
            except coherer.CohererError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.5)
            else:
                return {}

    async def produce(self, request: Request) -> Answer:
        """Sends with many messages in flight."""
        topic, count = str(request["topic"]), number(request, "count")
        producer = await self.producer(number(request, "window"), topic)
        body = b"x" * number(request, "size")
        start = time.perf_counter()
        sent = await producer.send_many(Message(topic, body) for _ in range(count))
        return report(count, time.perf_counter() - start, failed=len(sent.failed))

    async def spread(self, request: Request) -> Answer:
        """Sends with many messages in flight, round-robin to many topics."""
        topics, body = number(request, "topics"), b"x" * number(request, "size")
        if topics not in self._spread:
            self._spread[topics] = await self._open_spread(topics, number(request, "window"))
        producers = self._spread[topics]
        each = number(request, "count") // len(producers)

        async def send(producer: Producer, names: list[str]) -> int:
            messages = (Message(names[at % len(names)], body) for at in range(each))
            return len((await producer.send_many(messages)).failed)

        start = time.perf_counter()
        failed = sum(await asyncio.gather(*(send(*one) for one in producers)))
        seconds = time.perf_counter() - start
        return report(each * len(producers), seconds, failed=failed)

    async def _open_spread(self, topics: int, window: int) -> list[tuple[Producer, list[str]]]:
        """Producers that share the topics; every queue already has its file."""
        names = [f"spread-{at}" for at in range(topics)]
        parts = [
            names[at : at + TOPICS_PER_PRODUCER] for at in range(0, topics, TOPICS_PER_PRODUCER)
        ]
        async with coherer.connect(self._tubemq_url) as tubemq:  # creates a thousand topics at once
            for part in parts:
                async with tubemq.producer() as creator:
                    await creator.publish(*part)
        found: list[tuple[Producer, list[str]]] = []
        for part in parts:
            made = self._client.producer(window=max(window // len(parts), 1))
            producer = await made.__aenter__()
            await producer.publish(*part)
            found.append((producer, part))
            for _ in range(PARTITIONS):  # in sequence, so that each queue gets one message
                sent = await producer.send_many(Message(name, b"first") for name in part)
                assert not sent.failed
        await asyncio.sleep(FILES_S)
        return found

    async def sync(self, request: Request) -> Answer:
        """Sends from callers that wait for each answer."""
        topic, callers = str(request["topic"]), number(request, "threads")
        each = number(request, "count") // callers
        producer = await self.producer(5000, topic)
        message = Message(topic, b"x" * number(request, "size"))

        async def call() -> None:
            for _ in range(each):
                await producer.send(message)

        start = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return report(each * callers, time.perf_counter() - start, failed=0)

    async def blocking(self, request: Request) -> Answer:
        """The same as `sync`, from threads that use the blocking client."""
        return await asyncio.to_thread(self._blocking, request)

    def _blocking(self, request: Request) -> Answer:
        topic, threads = str(request["topic"]), number(request, "threads")
        each = number(request, "count") // threads
        message = Message(topic, b"x" * number(request, "size"))
        with coherer.blocking.connect(self._url) as client, client.producer(topic) as producer:

            def call(_: int) -> None:
                for _number in range(each):
                    producer.send(message)

            with ThreadPoolExecutor(threads) as pool:
                start = time.perf_counter()
                list(pool.map(call, range(threads)))
                return report(each * threads, time.perf_counter() - start, failed=0)

    async def blocking_produce(self, request: Request) -> Answer:
        """The same as `produce`, by a thread that uses the blocking client."""
        return await asyncio.to_thread(self._blocking_produce, request)

    def _blocking_produce(self, request: Request) -> Answer:
        topic, count = str(request["topic"]), number(request, "count")
        body = b"x" * number(request, "size")
        with (
            coherer.blocking.connect(self._url) as client,
            client.producer(topic, window=number(request, "window")) as producer,
        ):
            start = time.perf_counter()
            sent = producer.send_many(Message(topic, body) for _ in range(count))
            return report(count, time.perf_counter() - start, failed=len(sent.failed))

    async def batch(self, request: Request) -> Answer:
        """Sends batches (RocketMQ) from callers that wait for each answer."""
        topic, callers = str(request["topic"]), number(request, "threads")
        size = number(request, "batch")
        each = number(request, "count") // callers // size
        producer: Any = await self.producer(5000, topic)
        body = b"x" * number(request, "size")

        async def call() -> None:
            for _ in range(each):
                await producer.send_batch([Message(topic, body) for _ in range(size)])

        start = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return report(each * callers * size, time.perf_counter() - start, failed=0)

    async def _consume(
        self, request: Request, take: Callable[[Consumer, Progress], Awaitable[None]]
    ) -> Answer:
        progress = Progress(number(request, "count"))
        options: dict[str, Any] = {"start": "earliest"}
        if "per_pull" in request:
            options["pull_messages"] = number(request, "per_pull")
        group, topic = str(request["group"]), str(request["topic"])
        consumer = self._client.consumer(group, topic, **options)
        async with consumer, asyncio.timeout(number(request, "wait_ms", 60_000) / 1000):
            await take(consumer, progress)
        return report(progress.got, progress.seconds, bytes=progress.size)

    async def consume_pull(self, request: Request) -> Answer:
        """Consumes message by message."""

        async def take(consumer: Consumer, progress: Progress) -> None:
            got = size = 0
            async for message in consumer:
                if not got:
                    progress.begin()
                got += 1
                size += len(message.body)
                if got >= progress.wanted:
                    progress.end(got, size)
                    return

        return await self._consume(request, take)

    async def consume_batches(self, request: Request) -> Answer:
        """Consumes batches, with the bodies as a list."""
        return await self._consume(
            request, lambda c, p: self._batches(c, p, methodcaller("bodies"))
        )

    async def consume_arrow(self, request: Request) -> Answer:
        """Consumes batches as Arrow."""
        return await self._consume(
            request, lambda c, p: self._batches(c, p, methodcaller("to_arrow"))
        )

    async def _batches(
        self, consumer: Consumer, progress: Progress, use: Callable[[MessageBatch], object]
    ) -> None:
        got = size = 0
        async for batch in consumer.batches():
            if not got:
                progress.begin()
            use(batch)
            got += len(batch)
            size += batch.size_bytes
            if got >= progress.wanted:
                progress.end(got, size)
                return

    async def consume_push(self, request: Request) -> Answer:
        """Consumes with a handler that reads every message."""

        async def take(consumer: Consumer, progress: Progress) -> None:
            done = asyncio.Event()
            got = size = 0

            async def handle(batch: MessageBatch) -> None:
                nonlocal got, size
                if not got:
                    progress.begin()
                for message in batch:
                    got += 1
                    size += len(message.body)
                if got >= progress.wanted and not done.is_set():
                    progress.end(got, size)
                    done.set()

            running = asyncio.create_task(consumer.run(handle))
            await done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        return await self._consume(request, take)

    async def latency(self, request: Request) -> Answer:
        """Measures latency: a producer at a steady rate and a handler in one process."""
        async with self._reader() if BEHIND in request else nullcontext():
            return await self._latency(request)

    @asynccontextmanager
    async def _reader(self) -> AsyncGenerator[None]:
        """A process that reads from the beginning."""
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, str(READER), self._url, "consume"), stdin=PIPE, stdout=PIPE
        )
        try:
            assert reader.stdout is not None
            assert await reader.stdout.readline(), "nothing to read"
            yield
            assert reader.returncode is None, "it reads until the end"
        finally:
            reader.kill()
            await reader.wait()

    async def _latency(self, request: Request) -> Answer:
        topic = str(request["topic"])
        producer = await self.producer(5000, topic)
        meter = Meter(number(request, "count"), number(request, "warm"))
        run, size = meter.run, number(request, "size")
        consumer = self._client.consumer(str(request["group"]), topic, start="latest")
        async with consumer:
            running = asyncio.create_task(consumer.run(meter.handle))
            async with asyncio.timeout(JOIN_S):
                while not meter.joined.is_set():
                    await producer.send(Message(topic, stamped(run, -1, size)))
                    await asyncio.sleep(0.1)
            gap = 1 / number(request, "rate")
            next_at = time.perf_counter()
            for index in range(meter.warm + meter.count):
                await asyncio.sleep(max(next_at - time.perf_counter(), 0))
                message = Message(topic, stamped(run, index, size))
                await producer.ready()  # which counts as latency, too
                producer.submit(message, callback=lambda _: None)
                next_at += gap
            async with asyncio.timeout(JOIN_S):
                await meter.done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return meter.report()


class Progress:
    """Time from the first message to the last, without joining the group."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.got = self.size = 0
        self.seconds = 0.0
        self._start = 0.0

    def begin(self) -> None:
        """The first message has arrived."""
        self._start = time.perf_counter()

    def end(self, got: int, size: int) -> None:
        """Enough messages have arrived."""
        self.seconds = time.perf_counter() - self._start
        self.got, self.size = got, size


class Meter:
    """Latencies of messages; ignores messages of other runs in the topic."""

    def __init__(self, count: int, warm: int) -> None:
        self.count, self.warm = count, warm
        self.run = time.perf_counter_ns()
        self.joined, self.done = asyncio.Event(), asyncio.Event()
        self._latencies: list[int] = []

    async def handle(self, batch: MessageBatch) -> None:
        """Records the latencies of a batch."""
        now = time.perf_counter_ns()
        for message in batch:
            run, index, sent = HEAD.unpack_from(message.body)
            if run != self.run:
                continue
            if index < 0:
                self.joined.set()
            elif index >= self.warm:
                self._latencies.append(now - sent)
        if len(self._latencies) >= self.count:
            self.done.set()

    def report(self) -> Answer:
        """Percentiles."""
        latencies = sorted(self._latencies)
        return report(
            len(latencies),
            0,
            p50_ms=latencies[len(latencies) // 2] / 1e6,
            p99_ms=latencies[len(latencies) * 99 // 100] / 1e6,
            max_ms=latencies[-1] / 1e6,
        )


def stamped(run: int, index: int, size: int) -> bytes:
    """A body with run, number and time."""
    return HEAD.pack(run, index, time.perf_counter_ns()).ljust(size, b"\0")


async def main() -> None:
    """Serves requests, one at a time."""
    clients: dict[str, BenchClient] = {}
    lines = lines_until_end()
    write({"event": "ready"})
    while True:
        request = json.loads(await lines.get())
        gc.collect()
        try:
            if request["do"] == "bench":
                clients[request["on"]] = BenchClient(request)
                answer: Answer = {"ok": True}
            else:
                answer = {"ok": await getattr(clients[request["on"]], request["do"])(request)}
        except Exception as error:  # noqa: BLE001 - the run reports it
            answer = {"error": repr(error)}
        write({"call": request["call"], **answer})


def write(form: Answer) -> None:
    """Writes a line."""
    sys.stdout.write(json.dumps(form) + "\n")
    sys.stdout.flush()


def start() -> None:
    """Runs until stdin ends."""
    net.run(main())
