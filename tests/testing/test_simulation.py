"""A node and clients of both protocols in one thread, in virtual time."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import coherer
from coherer import TlsOptions
from coherer._common import clock
from coherer.errors import (
    CohererError,
    ConnectError,
    DisconnectedError,
    UnavailableError,
    UsageError,
)
from coherer.message import Message
from coherer.testing import async_embedded_node, simulate
from coherer.testing.simulation import Process, SimulatedLoop

HOUR_S = 3600
PEM = Path(__file__).parents[1] / "net" / "localhost.pem"


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_messages_arrive(protocol: str) -> None:
    async def main() -> list[bytes]:
        async with async_embedded_node(admin_port=None) as node:
            node.create_topic("orders")
            url = node.url if protocol == "tubemq" else node.rocketmq_url
            async with (
                coherer.connect(url) as client,
                client.producer("orders") as producer,
                client.consumer("shop", "orders", start="earliest") as consumer,
            ):
                await producer.send(Message("orders", b"42"))
                batch = await consumer.receive()
                assert batch is not None
                batch.ack()
                return [bytes(message.body) for message in batch]

    assert simulate(main()) == [b"42"]


def test_a_delay_takes_virtual_time() -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        async with async_embedded_node(admin_port=None) as node:
            node.create_topic("timed")
            async with (
                coherer.rocketmq.connect(node.rocketmq_url) as client,
                client.producer("timed") as producer,
                client.consumer("later", "timed", start="earliest") as consumer,
            ):
                began_s, began_ms = loop.time(), clock.wall_ms()
                await producer.send(Message("timed", b"later"), delay=timedelta(seconds=90))
                batch = await consumer.receive()
                assert batch is not None
                batch.ack()
                assert clock.now_ms() == clock.wall_ms()
                return loop.time() - began_s, clock.wall_ms() - began_ms

    took_s, took_ms = simulate(main())
    assert 89.999 <= took_s < 91  # the times of messages are whole milliseconds
    assert abs(took_ms - took_s * 1000) < 2


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(HOUR_S)
        return asyncio.get_running_loop().time()

    before_ms = clock.now_ms()
    assert simulate(main()) >= HOUR_S
    assert clock.now_ms() - before_ms < 1000 * HOUR_S, "the machine's clock is back"


def test_a_timer_that_is_set_again_for_its_own_time_ends() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()

        def look(due_s: float, calls: list[int], done: asyncio.Event) -> None:
            calls.append(len(calls))
            if loop.time() < due_s and len(calls) < 10:
                loop.call_at(due_s, look, due_s, calls, done)
            else:
                done.set()

        counts: list[int] = []
        for part in range(1, 10):
            calls, done = list[int](), asyncio.Event()
            look(loop.time() + 1 + part * 1e-8, calls, done)
            await done.wait()
            counts.append(len(calls))
        return counts

    assert max(simulate(main())) <= 3


def test_a_sleep_forever_is_an_error_and_may_be_cancelled() -> None:
    async def main(seconds: float) -> float:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.sleep(math.inf)
        return asyncio.get_running_loop().time()

    assert simulate(main(60.0)) == 60.0
    with pytest.raises(RuntimeError, match="Nothing will ever happen"):
        simulate(main(math.inf))


@pytest.mark.parametrize(
    ("what", "ask"),
    [
        ("Subprocesses", lambda: asyncio.create_subprocess_exec("true")),
        ("Unix sockets", lambda: asyncio.open_unix_connection("there")),
        (
            "Datagrams",
            lambda: asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
            ),
        ),
    ],
)
def test_what_does_not_work_in_virtual_time(
    what: str, ask: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"Signal handlers .* Use the fixture"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        await ask()

    with pytest.raises(RuntimeError, match=rf"{what} do not work in virtual time\."):
        simulate(main())


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_tls_does_not_work_in_virtual_time(protocol: str) -> None:
    """It was left out without a word, so that a test of it passed."""

    async def connect() -> None:
        async with async_embedded_node(admin_port=None) as node:
            url = node.url if protocol == "tubemq" else node.rocketmq_url
            secure = url.replace("://", "s://")
            async with coherer.connect(secure, tls=TlsOptions(verify=False)) as client:
                await client.partitions("orders")

    async def serve() -> None:
        async with async_embedded_node(admin_port=None, tls=TlsOptions(certificate=PEM)):
            pass

    with pytest.raises(RuntimeError, match="with TLS do not work in virtual time"):
        simulate(connect())
    with pytest.raises(UsageError, match="TLS does not work in virtual time"):
        simulate(serve())


def test_tasks_that_wait_for_each_other_are_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="Nothing will ever happen"):
        simulate(main())


def test_one_simulation_at_a_time() -> None:
    async def other() -> None:
        raise AssertionError("it does not run")

    async def main() -> str:
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(simulate, other()).result()
            except RuntimeError as error:
                return str(error)
        return ""

    assert "Another simulation" in simulate(main())
    assert simulate(asyncio.sleep(1, "again")) == "again"


def test_nobody_listens() -> None:
    async def main() -> None:
        async with coherer.connect("rocketmq://127.0.0.1:9876", timeout_ms=500) as client:
            await client.offsets("orders")

    with pytest.raises((ConnectError, UnavailableError)):
        simulate(main())


def test_the_network_stands_still_and_breaks() -> None:
    async def main() -> tuple[bool, list[str]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        trouble: list[str] = []
        async with async_embedded_node(admin_port=None) as node:
            node.create_topic("orders")
            async with (
                coherer.rocketmq.connect(node.rocketmq_url) as client,
                client.producer("orders") as producer,
            ):
                loop.network.stop()
                sending = asyncio.create_task(producer.send(Message("orders", b"1")))
                await asyncio.sleep(2)
                waited = not sending.done()
                loop.network.heal()
                await sending
                sending = asyncio.create_task(producer.send(Message("orders", b"2")))
                await asyncio.sleep(0)
                loop.network.cut()
                try:
                    await sending
                except DisconnectedError as error:
                    trouble.append(str(error))
                await producer.send(Message("orders", b"3"))
        return waited, trouble

    waited, [trouble] = simulate(main())
    assert waited
    assert "may or may not be stored" in trouble


def test_heal_does_not_wake_who_has_paused() -> None:
    class Paused(asyncio.Protocol):
        received = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            transport.pause_reading()

        def data_received(self, data: bytes) -> None:
            self.received += data

    async def main() -> tuple[bytes, bytes]:
        loop, receiver = asyncio.get_running_loop(), Paused()
        assert isinstance(loop, SimulatedLoop)
        await loop.create_server(lambda: receiver, "127.0.0.1", 7)
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", 7)
        loop.network.stop()
        transport.write(b"x")
        await asyncio.sleep(1)
        loop.network.heal()
        await asyncio.sleep(1)
        before = receiver.received
        receiver.transport.resume_reading()
        await asyncio.sleep(1)
        return before, receiver.received

    assert simulate(main()) == (b"", b"x")


def test_what_is_written_arrives_in_order() -> None:
    """A hundred writes at one moment of virtual time, whose timers are equal."""

    class Receiver(asyncio.Protocol):
        def __init__(self) -> None:
            self.received = bytearray()
            self.ended = asyncio.Event()

        def data_received(self, data: bytes) -> None:
            self.received += data

        def connection_lost(self, error: Exception | None) -> None:
            self.ended.set()

    async def main() -> bytes:
        loop, receiver = asyncio.get_running_loop(), Receiver()
        await loop.create_server(lambda: receiver, "127.0.0.1", 7)
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", 7)
        for number in range(100):
            transport.write(bytes([number]))
        transport.close()
        await receiver.ended.wait()
        return bytes(receiver.received)

    assert simulate(main()) == bytes(range(100))


def test_a_frozen_program_goes_on_later() -> None:
    async def tick(said: list[float]) -> None:
        while True:
            await asyncio.sleep(1)
            said.append(asyncio.get_running_loop().time())

    async def main() -> list[float]:
        said: list[float] = []
        process = Process("clock")
        process.start(tick(said))
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(10)
        process.go_on()
        await asyncio.sleep(1.2)
        return said

    first, late, last = simulate(main())
    assert first == pytest.approx(1)
    assert late == pytest.approx(11.5)
    assert last == pytest.approx(12.5)


def test_a_clock_jumps_for_one_program() -> None:
    async def now() -> tuple[int, int]:
        return clock.wall_ms(), clock.now_ms()

    async def main() -> tuple[int, int]:
        process = Process("late")
        process.clock_s = -3600
        (here_wall, here), (there_wall, there) = await now(), await process.start(now())
        return here_wall - there_wall, here - there

    assert simulate(main()) == (3_600_000, 0)


@pytest.mark.parametrize("how", ["isolated", "severed"])
def test_a_request_is_not_answered(how: str) -> None:
    async def use(url: str) -> str:
        async with coherer.rocketmq.connect(url, timeout_ms=500) as client:
            await client.offsets("orders")
            await asyncio.sleep(2)
            try:
                await client.offsets("orders")
            except CohererError as error:
                return type(error).__name__
        return ""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        async with async_embedded_node(admin_port=None) as node:
            node.create_topic("orders")
            process = Process("user")
            using = process.start(use(node.rocketmq_url))
            await asyncio.sleep(1)
            if how == "isolated":
                loop.network.stop(process)
            else:
                for _ in range(100):
                    loop.network.sever(Random(0))
                    loop.network.sever(Random(1))
                    loop.network.sever(Random(2))
            await asyncio.sleep(10)
            loop.network.heal(process)
            return await using

    assert simulate(main()) == "RequestTimeoutError"


def polls() -> Coroutine[Any, Any, None]:
    async def poll() -> None:
        while True:  # noqa: ASYNC110 - this is it
            await asyncio.sleep(1)

    return poll()


def swallows() -> Coroutine[Any, Any, None]:
    async def swallow() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    return swallow()


def test_a_poll_that_never_ends_is_an_error() -> None:
    async def main() -> None:
        await asyncio.create_task(polls())

    with pytest.raises(RuntimeError, match=r"not ended within 60 s of virtual time") as caught:
        simulate(main(), limit_s=60)
    assert "poll waits at " in str(caught.value), "of the task"
    assert "main waits at " in str(caught.value)
    assert str(caught.value).count(f"{__file__}:") == 2


def test_time_that_is_leapt_over_does_not_count() -> None:
    async def main() -> float:
        async with async_embedded_node(admin_port=None):
            await asyncio.sleep(HOUR_S)
        return asyncio.get_running_loop().time()

    assert simulate(main(), limit_s=600) >= HOUR_S


def test_a_task_that_catches_its_cancellation_is_an_error() -> None:
    async def main(tasks: list[asyncio.Task[None]]) -> str:
        tasks.append(asyncio.create_task(swallows()))
        await asyncio.sleep(5)
        return "ended"

    with pytest.raises(RuntimeError, match="after they were cancelled") as caught:
        simulate(main([]))
    assert "swallow waits at " in str(caught.value)
    assert simulate(asyncio.sleep(1, "again")) == "again"

    with pytest.raises(RuntimeError, match="after they were cancelled") as caught:
        simulate(swallows(), limit_s=60)
    assert "not ended within 60 s" in str(caught.value.__context__)


def test_time_that_stands_still_is_an_error() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - this is it
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="Virtual time stands still") as caught:
        simulate(main())
    assert "main waits at " in str(caught.value)


def test_servers_are_asyncios() -> None:
    """What the documentation of `asyncio.Server` calls, with each name of this machine."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def main(host: str | None, there: str) -> bytes:
        async with await asyncio.start_server(greet, host, 0) as server:
            assert server.is_serving()
            assert server.get_loop() is asyncio.get_running_loop()
            port = server.sockets[0].getsockname()[1]
            serving = asyncio.create_task(server.serve_forever())
            reader, writer = await asyncio.open_connection(there, port)
            said = await reader.read()
            writer.close()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        await server.wait_closed()
        assert not server.is_serving()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(there, port)
        return said

    for host in ("127.0.0.1", "localhost", "0.0.0.0", None):
        assert simulate(main(host, "localhost")) == b"hello"
        assert simulate(main(host, "127.0.0.1")) == b"hello"
