"""The server side of connections (docs/protocol/rocketmq.md, sections 1.2 to 1.4)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from coherer import _net as net
from coherer import limits
from coherer._common import machine
from coherer._server.rocketmq.remoting import IDLE_MS, Channel, Refusal, RemotingServer
from coherer._wire.rocketmq.codes import refused
from coherer._wire.rocketmq.command import Command
from coherer.errors import DisconnectedError, ProtocolError, RequestTimeoutError
from tests.server.rocketmq_caller import Caller
from tests.waiting import until

ECHO, REFUSE, FAIL, LATER, NEVER, BATCH, HEADLESS, BROKEN, LARGE = range(1000, 1009)


class Harness:
    """A server with a handler of each kind."""

    def __init__(self, *, silent: bool = False) -> None:
        self.now_ms = 0
        self.batches: list[int] = []
        self.lost: asyncio.Queue[Channel] = asyncio.Queue()
        self.channels: list[Channel] = []
        self.go_on = asyncio.Event()
        self.handled = 0
        self.remoting = RemotingServer(
            {
                ECHO: self.echo,
                REFUSE: self.refuse,
                FAIL: self.fail,
                LATER: self.later,
                NEVER: self.never,
                BROKEN: self.broken,
                HEADLESS: self.headless,
                LARGE: self.large,
            },
            closed=self.lost.put_nowait,
            check=self.check,
            batch_codes={BATCH},
            batch=self.batch,
            silent=silent,
            now_ms=lambda: self.now_ms,
        )
        self.listener: net.Listener

    def check(self, channel: Channel, request: Command) -> Command | None:
        self.channels.append(channel)
        if request.fields.get("AccessKey") == "wrong":
            return Command(1, remark="No accessKey is configured")
        return None

    def echo(self, channel: Channel, request: Command) -> Command:
        self.handled += 1
        return Command(0, remark="heard", fields=request.fields, body=request.body)

    def refuse(self, channel: Channel, request: Command) -> Command:
        raise Refusal(17, "No topic", {"why": "so"})

    def fail(self, channel: Channel, request: Command) -> Command:
        raise KeyError("ours")

    def headless(self, channel: Channel, request: Command) -> Command:
        raise refused(1, "the field <topic> is missing or no number")

    def broken(self, channel: Channel, request: Command) -> Command:
        raise ProtocolError("Their body.")

    async def later(self, channel: Channel, request: Command) -> Command:
        await self.go_on.wait()
        if request.body == b"refuse":
            raise Refusal(24)
        return Command(0, body=b"late")

    def never(self, channel: Channel, request: Command) -> None:
        channel.respond_pieces(request, {"by": "hand"}, [b"a", memoryview(b"bc")])

    def large(self, channel: Channel, request: Command) -> Command:
        self.handled += 1
        return Command(0, body=bytes(1024 * 1024))

    def batch(self, channel: Channel, requests: Sequence[Command]) -> None:
        self.batches.append(len(requests))
        for request in requests:
            if request.body == b"fail":
                raise KeyError("ours")
            channel.respond(request, body=request.body)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    harness.listener = await net.listen("127.0.0.1", 0, harness.remoting.make)
    yield harness
    await harness.listener.close()


@pytest.fixture
async def caller(harness: Harness) -> Caller:
    return await Caller.dial(harness.listener.port)


async def test_a_handler_answers_by_returning(caller: Caller) -> None:
    answer = await caller.ask(ECHO, {"a": "ü"}, b"body")
    assert (answer.code, answer.remark, answer.fields) == (0, "heard", {"a": "ü"})
    assert bytes(answer.body) == b"body"


async def test_a_refusal_and_a_failure_are_answers(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    refused = await caller.ask(REFUSE)
    assert (refused.code, refused.remark, refused.fields) == (17, "No topic", {"why": "so"})
    with caplog.at_level(logging.ERROR, "coherer"):
        failed = await caller.ask(FAIL)
    assert failed.code == 1
    assert failed.remark == "KeyError: 'ours', fail(test_remoting.py)"
    assert "Code 1002" in caplog.text
    broken = await caller.ask(BROKEN)
    assert broken.code == 1
    assert (broken.remark or "").startswith("ProtocolError: Their body.")
    headless = await caller.ask(HEADLESS)
    assert (headless.code, headless.remark) == (1, "the field <topic> is missing or no number")
    assert (await caller.ask(ECHO)).code == 0


async def test_an_unknown_code_has_the_remark_of_4_9(caller: Caller) -> None:
    answer = await caller.ask(350)
    assert (answer.code, answer.remark) == (3, " request type 350 not supported")


async def test_a_name_server_ignores_unknown_codes() -> None:
    harness = Harness(silent=True)
    harness.listener = await net.listen("127.0.0.1", 0, harness.remoting.make)
    caller = await Caller.dial(harness.listener.port)
    unheard = caller.begin(350)
    await caller.ask(ECHO)
    assert not unheard.done()
    await harness.listener.close()


async def test_the_check_precedes_the_handler(harness: Harness, caller: Caller) -> None:
    for code in (ECHO, BATCH, 350):
        answer = await caller.ask(code, {"AccessKey": "wrong"})
        assert (answer.code, answer.remark) == (1, "No accessKey is configured")
    assert (harness.handled, harness.batches) == (0, [])


async def test_one_way_requests_are_handled_and_never_answered(
    harness: Harness, caller: Caller
) -> None:
    for code in (ECHO, REFUSE, FAIL, NEVER, BATCH, 350):
        caller.send_oneway(code)  # a response would match no request and close the connection
    assert (await caller.ask(ECHO)).code == 0
    assert (harness.handled, harness.batches) == (2, [1])


async def test_answers_may_come_late_and_out_of_order(harness: Harness, caller: Caller) -> None:
    late, refused = caller.begin(LATER), caller.begin(LATER, body=b"refuse")
    assert (await caller.ask(ECHO)).code == 0
    assert not late.done()
    harness.go_on.set()
    assert bytes((await late).body) == b"late"
    assert (await refused).code == 24


async def test_answers_in_pieces(caller: Caller) -> None:
    answer = await caller.ask(NEVER)
    assert (answer.code, answer.fields, bytes(answer.body)) == (0, {"by": "hand"}, b"abc")


async def test_requests_of_one_read_are_a_batch(harness: Harness, caller: Caller) -> None:
    frames = [caller.begin(BATCH, body=bytes([number])) for number in range(20)]
    answers = await asyncio.gather(*frames)
    assert [bytes(answer.body) for answer in answers] == [bytes([n]) for n in range(20)]
    assert harness.batches == [20]


async def test_a_failing_batch_answers_everybody(caller: Caller) -> None:
    answers = await asyncio.gather(*[caller.begin(BATCH, body=b"fail") for _ in range(3)])
    assert [answer.code for answer in answers] == [1, 1, 1]


async def test_asking_the_client(harness: Harness, caller: Caller) -> None:
    await caller.ask(ECHO)
    [channel] = set(harness.channels)
    asking = asyncio.create_task(channel.call(220, {"topic": "t"}, b"body", 5_000))
    asked = await caller.next_asked()
    assert (asked.code, asked.fields, bytes(asked.body)) == (220, {"topic": "t"}, b"body")
    caller.answer(asked, 1, b"no")
    answer = await asking
    assert (answer.code, bytes(answer.body)) == (1, b"no")
    caller.answer(asked)  # a second response
    channel.notify(40, {"consumerGroup": "g"})
    told = await caller.next_asked()
    assert (told.code, told.is_oneway) == (40, True)
    with pytest.raises(RequestTimeoutError, match="1 ms"):
        await channel.call(220, timeout_ms=1)


async def test_calls_end_with_the_connection(harness: Harness, caller: Caller) -> None:
    waiting = caller.begin(LATER)
    await caller.ask(ECHO)
    [channel] = set(harness.channels)
    asking = asyncio.create_task(channel.call(220, timeout_ms=60_000))
    await caller.next_asked()
    await caller.hang_up()
    assert await harness.lost.get() is channel
    with pytest.raises(DisconnectedError):
        await asking
    with pytest.raises(DisconnectedError):
        await channel.call(220)
    channel.notify(40)
    assert channel.closed
    assert waiting.cancelled()
    assert not harness.remoting.channels


async def test_a_client_that_does_not_read_is_not_served(harness: Harness, caller: Caller) -> None:
    caller.connection.pause_reading()
    count = 64
    answers = [caller.begin(LARGE) for _ in range(count)]
    other = await Caller.dial(harness.listener.port)
    await other.ask(ECHO)
    assert harness.handled < net.ConnectionLimits().write_buffer_high_bytes // 2**20 + 10
    assert (await other.ask(ECHO)).code == 0
    caller.connection.resume_reading()
    async with asyncio.timeout(20):
        done = await asyncio.gather(*answers)
    assert {len(answer.body) for answer in done} == {1024 * 1024}
    assert harness.handled == count + 2


async def test_connections_with_much_to_do_take_turns(harness: Harness, caller: Caller) -> None:
    """A flood of requests in one read does not block other connections."""
    floods = [await Caller.dial(harness.listener.port) for _ in range(4)]
    await caller.ask(ECHO)
    count = limits.REQUESTS_PER_TURN + 100
    answers = [flood.begin(BATCH, body=b"%d" % n) for flood in floods for n in range(count)]
    async with asyncio.timeout(20):
        assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    assert [bytes(answer.result().body) for answer in answers[:count]] == [
        b"%d" % n for n in range(count)
    ], "in order"
    assert sum(harness.batches) == 4 * count
    assert max(harness.batches) <= limits.REQUESTS_PER_TURN
    assert harness.remoting.catching_up == 0
    assert harness.remoting.at_once()[0] == limits.REQUESTS_PER_TURN


async def test_a_connection_whose_requests_take_long_lets_others_go_first(
    harness: Harness, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read can contain many filters, each of which takes a fifth of a second to compile."""
    await caller.ask(ECHO)
    # A request is begun with a look at the clock: each takes this long.
    ticks_ns = itertools.count(0, limits.TURN_MS * 1_000_000 // 3)
    monkeypatch.setattr(machine, "ticks_ns", lambda: next(ticks_ns))
    answers = [caller.begin(BATCH, body=b"%d" % n) for n in range(20)]
    async with asyncio.timeout(20):
        done = await asyncio.gather(*answers)
    assert [bytes(answer.body) for answer in done] == [b"%d" % n for n in range(20)], "in order"
    assert sum(harness.batches) == 20
    assert max(harness.batches) <= 4


async def test_a_connection_that_closes_while_others_are_served(harness: Harness) -> None:
    gone = await Caller.dial(harness.listener.port)
    for _ in range(3 * limits.REQUESTS_PER_TURN):
        gone.begin(BATCH)
    gone.connection.flush()
    await gone.hang_up()
    async with asyncio.timeout(10):
        await harness.lost.get()
    await until(lambda: harness.remoting.catching_up == 0)


async def test_an_unhandled_error_while_catching_up_closes_the_connection(
    harness: Harness,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, handle = 0, harness.remoting.handle

    def fails(channel: Channel, request: Command) -> None:
        nonlocal calls
        calls += 1
        if calls > limits.REQUESTS_PER_TURN:
            raise ZeroDivisionError
        handle(channel, request)

    monkeypatch.setattr(harness.remoting, "handle", fails)
    for _ in range(limits.REQUESTS_PER_TURN + 1):
        caller.begin(BATCH)
    async with asyncio.timeout(10):
        await caller.lost.wait()
    assert "ZeroDivisionError" in caplog.text


async def test_silence_ends_a_connection(harness: Harness, caller: Caller) -> None:
    await caller.ask(ECHO)
    harness.now_ms = IDLE_MS
    harness.remoting.tick()
    await caller.ask(ECHO)
    harness.now_ms = 2 * IDLE_MS + 1
    harness.remoting.tick()
    async with asyncio.timeout(10):
        await caller.lost.wait()


async def test_a_client_that_has_vanished_is_closed_once_and_does_not_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes nothing any more, and its connection never breaks."""
    harness = Harness()
    harness.listener = await net.listen(
        "127.0.0.1",
        0,
        harness.remoting.make,
        budget=net.ConnectionBudget(net.ConnectionLimits(write_stall_ms=20)),
    )
    caller = await Caller.dial(harness.listener.port)
    await caller.ask(ECHO)
    caller.connection.pause_reading()
    for _ in range(8):
        caller.begin(LARGE)
    caller.connection.flush()
    await until(lambda: harness.handled == 9)
    async with asyncio.timeout(10):
        [channel] = harness.remoting.channels
        with caplog.at_level(logging.INFO, "coherer._server"):
            for beats in range(1, 4):
                harness.now_ms = beats * 2 * IDLE_MS
                harness.remoting.tick()
        assert caplog.text.count("no traffic for two minutes") == 1
        assert await harness.lost.get() is channel
    assert not harness.remoting.channels
    caller.connection.abort()
    await harness.listener.close()


async def test_garbage_ends_only_its_connection(
    harness: Harness, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await Caller.dial(harness.listener.port)
    with caplog.at_level(logging.WARNING, "coherer"):
        bad.connection.write(b"\x7f garbage that is longer than any frame")
        async with asyncio.timeout(10):
            await bad.lost.wait()
    assert (await caller.ask(ECHO)).code == 0


async def test_the_address_is_as_records_store_it(harness: Harness, caller: Caller) -> None:
    await caller.ask(ECHO)
    [channel] = set(harness.channels)
    port = int(channel.peer.rpartition(":")[2])
    assert channel.host_port == b"\x7f\x00\x00\x01" + port.to_bytes(4, "big")
