from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from coherer import tubemq
from coherer._client.engine.options import TIMEOUT_MS_MAX
from coherer._client.tubemq import cluster
from coherer._client.tubemq.cluster import (
    ClientOptions,
    Cluster,
    Masters,
    retry,
)
from coherer._client.tubemq.publisher import Publisher
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import (
    ConnectError,
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
)
from tests.waiting import until

CLOSE = pb.CloseRequestP2M(clientId="p")


async def ask(masters: Masters) -> pb.CloseResponseM2P:
    return await masters.ask(methods.PRODUCER_CLOSE, CLOSE, pb.CloseResponseM2P)


@pytest.fixture
async def two(fake):
    """Two masters, in the order in which they are used."""
    second = await fake.listen()
    ports = sorted([fake.master.port, second.port], key=str)
    options = ClientOptions(
        addresses=tuple(("127.0.0.1", port) for port in reversed(ports)), timeout_ms=100
    )
    cluster = Cluster(options)
    yield cluster.masters, [f"127.0.0.1:{port}" for port in ports]
    await cluster.pool.close()


async def test_one_at_a_time_in_sorted_order(fake, two) -> None:
    masters, names = two
    for _ in range(3):
        await ask(masters)
        assert masters.server == names[0]
    assert repr(masters) == f"<Masters {','.join(names)}>"
    assert (await masters.link()).server == names[0]


@pytest.mark.parametrize("trouble", ["standby", "silence", "hang_up", "error", "garbage"])
async def test_any_trouble_moves_on_to_the_next(fake, kit, two, trouble: str) -> None:
    masters, names = two
    steps = {
        "error": lambda asked: asked.fail("java.lang.Exception", "oops"),
        "garbage": lambda asked: asked.connection.write(
            asked.session.reply_raw(asked.request, b"\xff")
        ),
    }
    fake.script(methods.PRODUCER_CLOSE, steps.get(trouble) or getattr(kit, trouble))
    first = await masters.link()
    assert (await ask(masters)).success
    assert masters.server == names[1]
    assert not first.open


async def test_an_answer_that_says_no_is_an_answer(fake, kit, two) -> None:
    masters, names = two
    fake.script(methods.PRODUCER_CLOSE, kit.refuse(415))
    assert (await ask(masters)).errCode == 415
    assert masters.server == names[0]


async def test_once_round_and_no_further(fake, kit, two) -> None:
    masters, names = two
    fake.script(methods.PRODUCER_CLOSE, kit.standby, kit.silence)
    with pytest.raises(RequestTimeoutError):
        await ask(masters)
    assert masters.server == names[0]
    assert len(fake.asked(methods.PRODUCER_CLOSE)) == 2


async def test_a_master_that_is_down(fake) -> None:
    cluster = Cluster(ClientOptions(addresses=(("127.0.0.1", 1), ("127.0.0.1", fake.master.port))))
    assert (await ask(cluster.masters)).success
    await cluster.pool.close()


async def test_persistence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "LOG_WAIT_S", 0.01)
    attempts: list[int] = []

    async def attempt() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectError("no")
        return len(attempts)

    assert await retry(attempt, timeout_ms=5_000, final=()) == 3
    assert caplog.messages == ["Trying again for up to 5 s: no"]  # said once


@pytest.mark.parametrize(
    ("error", "timeout_ms", "tries"),
    [
        (RefusedError("no", code=400), 5_000, 1),
        (RefusedError("no", code=431), 30, 2),
        (UnavailableError("no"), 0, 1),
        (ProtocolError("no"), 5_000, 1),
    ],
)
async def test_an_end_to_persistence(error: Exception, timeout_ms: int, tries: int) -> None:
    attempts: list[int] = []

    async def attempt() -> None:
        attempts.append(1)
        raise error

    with pytest.raises(type(error)):
        await retry(attempt, timeout_ms=timeout_ms, final={400})
    assert len(attempts) >= tries
    assert len(attempts) <= tries + 1


@pytest.fixture
def closed_ports() -> Iterator[tuple[tuple[str, int], ...]]:
    """Addresses on which nobody listens."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))  # bound, but it does not listen
        yield one.getsockname(), other.getsockname()


@pytest.mark.parametrize("what", ["producer", "consumer", "partitions"])
async def test_nobody_waits_for_masters_whose_ports_are_closed(
    closed_ports: tuple[tuple[str, int], ...], what: str
) -> None:
    masters = ",".join(f"{host}:{port}" for host, port in closed_ports)
    async with tubemq.connect(f"tubemq://{masters}", timeout_ms=TIMEOUT_MS_MAX) as client:
        first_calls = {
            "producer": client.producer().start,
            "consumer": client.consumer("g", "demo").start,
            "partitions": lambda: client.partitions("demo"),
        }
        with pytest.raises(ConnectError, match="is that its port"):
            await first_calls[what]()


async def test_nobody_waits_for_a_port_that_is_no_masters() -> None:
    """Such as a port for TLS only: it ends each connection without an answer."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"tubemq://127.0.0.1:{port}"
        async with tubemq.connect(url, timeout_ms=TIMEOUT_MS_MAX) as client:
            with pytest.raises(DisconnectedError) as caught:
                await client.producer().start()
        assert "does the port speak this protocol" in caught.value.hint


async def test_a_master_that_was_there_is_waited_for(
    fake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=cluster.__name__)
    port = fake.master.port
    way = Cluster(ClientOptions(addresses=(("127.0.0.1", port),)))
    publisher = Publisher(way)
    await publisher.start(heartbeats=False)
    gone = asyncio.Event()
    way.pool.find("127.0.0.1", port).when_closed(gone.set)
    await fake.master.close(timeout_ms=0)
    await gone.wait()
    again = asyncio.ensure_future(publisher.start(heartbeats=False))
    await until(lambda: "Connection refused" in caplog.text)
    assert not again.done()
    fake.master = await fake.listen(port)
    await again
    await way.pool.close()
