from __future__ import annotations

import asyncio
import time

import pytest

import coherer
from coherer._client.engine import connections
from coherer._client.tubemq.cluster import Cluster, Pool, TubeConnection
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    ForkedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)
from tests.waiting import until

CLOSE = pb.CloseRequestP2M(clientId="p")


@pytest.fixture
async def link(fake, way: Cluster) -> TubeConnection:
    return await way.pool.get("127.0.0.1", fake.master.port)


async def ask(link: TubeConnection, timeout_ms: int = 2_000) -> pb.CloseResponseM2P:
    return await link.ask(methods.PRODUCER_CLOSE, CLOSE, pb.CloseResponseM2P, timeout_ms)


async def test_many_requests_at_once(fake, link: TubeConnection) -> None:
    answers = await asyncio.gather(*(ask(link) for _ in range(100)))
    assert all(answer.success for answer in answers)
    assert len(fake.asked(methods.PRODUCER_CLOSE)) == 100


async def test_answers_in_any_order(fake, kit, link: TubeConnection) -> None:
    late = []
    fake.script(methods.PRODUCER_CLOSE, late.append)
    first = asyncio.ensure_future(ask(link))
    await fake.until(lambda: late)
    assert (await ask(link)).success
    assert not first.done()
    late[0].answer(errMsg="at last")
    assert (await first).errMsg == "at last"


async def test_no_answer_in_time(fake, kit, link: TubeConnection) -> None:
    fake.script(methods.PRODUCER_CLOSE, kit.silence, kit.silence)
    slow = asyncio.ensure_future(ask(link))
    with pytest.raises(RequestTimeoutError) as caught:
        await ask(link, timeout_ms=30)
    assert caught.value.server == link.server
    assert not slow.done()
    assert (await ask(link)).success
    slow.cancel()


async def test_a_connection_that_has_fallen_silent_is_given_up(
    fake, kit, link: TubeConnection, way: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENT_MS", 40)
    fake.always(methods.PRODUCER_CLOSE, kit.silence)

    async def missed() -> None:
        with pytest.raises(RequestTimeoutError):
            await ask(link, timeout_ms=50)

    await missed()
    fake.script(methods.PRODUCER_CLOSE, lambda asked: asked.answer())
    await ask(link)  # it has been heard since
    await missed()
    assert link.open
    waiting = asyncio.ensure_future(ask(link))
    await missed()
    with pytest.raises(DisconnectedError):
        await waiting
    assert not link.open
    assert (await way.pool.get("127.0.0.1", fake.master.port)).open


async def test_an_answer_that_comes_too_late_is_dropped(fake, kit, link: TubeConnection) -> None:
    late = []
    fake.script(methods.PRODUCER_CLOSE, late.append)
    with pytest.raises(RequestTimeoutError):
        await ask(link, timeout_ms=20)
    late[0].answer()
    assert (await ask(link)).success


async def test_a_broken_connection_fails_what_is_under_way(fake, kit, link: TubeConnection) -> None:
    fake.script(methods.PRODUCER_CLOSE, kit.silence, kit.hang_up)
    results = await asyncio.gather(ask(link), ask(link), return_exceptions=True)
    assert [type(result) for result in results] == [DisconnectedError] * 2
    assert "may or may not" in str(results[0])
    assert "does the port speak this protocol" in str(results[0])
    assert not link.open
    with pytest.raises(DisconnectedError, match="nothing was sent"):
        await ask(link)


async def test_a_server_that_cannot_handle_a_request(fake, kit, link: TubeConnection) -> None:
    fake.script(methods.PRODUCER_CLOSE, lambda asked: asked.fail("java.lang.Exception", "oops"))
    with pytest.raises(RefusedError, match="oops"):
        await ask(link)
    assert link.open


async def test_an_answer_that_lacks_what_it_must_have(fake, kit, link: TubeConnection) -> None:
    fake.script(
        methods.PRODUCER_CLOSE,
        lambda asked: asked.connection.write(asked.session.reply_raw(asked.request, b"")),
    )
    with pytest.raises(ProtocolError):
        await ask(link)


async def test_garbage_breaks_the_connection(fake, kit, link: TubeConnection) -> None:
    await ask(link)
    fake.script(methods.PRODUCER_CLOSE, lambda asked: asked.connection.write(b"HTTP/1.1 400 no!"))
    with pytest.raises(DisconnectedError) as caught:
        await ask(link)
    assert "this port" not in caught.value.hint  # it does speak it: an answer has come before


async def test_who_keeps_the_loop_busy_is_not_told_that_the_server_was_late(
    fake, link: TubeConnection
) -> None:
    answers = [asyncio.ensure_future(ask(link, timeout_ms=100)) for _ in range(3)]
    await fake.until(lambda: len(fake.seen) == 3)
    time.sleep(0.2)  # noqa: ASYNC251 - somebody computes; the answers are in the socket
    assert all(answer.success for answer in await asyncio.gather(*answers))


async def test_idle_connections_are_closed(
    fake, kit, way: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await way.pool.get("127.0.0.1", fake.master.port)
    monkeypatch.setattr(link, "idle_ms", 0)
    late = []
    fake.script(methods.PRODUCER_CLOSE, late.append)
    waiting = asyncio.ensure_future(ask(link))
    await fake.until(lambda: late)
    link._check_idle()
    assert link.open  # somebody waits
    late[0].answer()
    await waiting
    link._check_idle()
    assert not link.open
    assert link.retired


async def test_the_time_until_an_idle_connection_is_closed_is_an_option(fake) -> None:
    async with coherer.connect(f"tubemq://127.0.0.1:{fake.master.port}", idle_ms=1) as client:
        await client.partitions("demo")
        [connection, *_] = [asked.connection for asked in fake.seen]
        await until(lambda: connection.closed)
    with pytest.raises(UsageError, match="idle_ms"):
        coherer.connect("tubemq://127.0.0.1:1", idle_ms=0)


async def test_a_cancelled_request_harms_nobody(fake, kit, link: TubeConnection) -> None:
    late = []
    fake.script(methods.PRODUCER_CLOSE, late.append)
    task = asyncio.ensure_future(ask(link))
    await fake.until(lambda: late)
    task.cancel()
    late[0].answer()
    assert (await ask(link)).success


async def test_everybody_shares_a_connection(fake, way: Cluster) -> None:
    port = fake.master.port
    links = await asyncio.gather(*(way.pool.get("127.0.0.1", port) for _ in range(5)))
    assert len({id(link) for link in links}) == 1
    assert await way.pool.get("127.0.0.1", port) is links[0]
    assert way.pool.find("127.0.0.1", port) is links[0]
    assert fake.master.connections == 1


async def test_a_broken_connection_is_made_anew(fake, way: Cluster, link: TubeConnection) -> None:
    await link.close()
    assert way.pool.find("127.0.0.1", fake.master.port) is None
    again = await way.pool.get("127.0.0.1", fake.master.port)
    assert again is not link
    assert (await ask(again)).success


async def test_nobody_listens() -> None:
    pool = Pool(connect_timeout_ms=500)
    with pytest.raises(ConnectError) as caught:
        await pool.get("127.0.0.1", 1)
    assert caught.value.server == "127.0.0.1:1"
    await pool.close()


async def test_one_who_gives_up_does_not_spoil_it_for_the_others(fake, way: Cluster) -> None:
    port = fake.master.port
    first = asyncio.ensure_future(way.pool.get("127.0.0.1", port))
    second = asyncio.ensure_future(way.pool.get("127.0.0.1", port))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).open


async def test_a_closed_pool(fake, way: Cluster, link: TubeConnection) -> None:
    waiting = asyncio.ensure_future(ask(link))
    await way.pool.close()
    assert not link.open
    assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None
    with pytest.raises(ClosedError):
        await way.pool.get("127.0.0.1", fake.master.port)


async def test_a_fork_is_noticed(forked, way: Cluster) -> None:
    with forked(), pytest.raises(ForkedError, match="Connect again"):
        way.pool.check()


def test_for_people(link: TubeConnection) -> None:
    assert "0 in flight" in repr(link)
