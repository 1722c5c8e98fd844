"""One call over HTTP: forms, redirections, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from coherer import _net as net
from coherer import limits
from coherer._client.tubemq.administration.webapi import Endpoint, WebApi
from coherer.errors import (
    ConnectError,
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.tubemq import Admin

Reply = Callable[[str, str, dict[str, str]], bytes | None]


class Item(msgspec.Struct, rename="camel"):
    broker_id: int
    on: bool = False


class Server:
    """Answers each request with what `reply` makes of method, path and form; None says nothing."""

    def __init__(self) -> None:
        self.reply: Reply = lambda *_: None
        self.listener: net.Listener

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("http", self.listener.host, self.listener.port)

    def api(self, timeout_ms: int = 10_000) -> WebApi:
        return WebApi(self.endpoint, None, timeout_ms)


class Served:
    def __init__(self, server: Server, connection: net.Connection) -> None:
        self.server = server
        self.connection = connection
        self.data = b""

    def received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        verb, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        length = next(
            (int(h[16:]) for h in head.lower().split(b"\r\n") if h[:15] == b"content-length:"), 0
        )
        if not end or len(body) < length:
            return
        parts = urlsplit(target)
        form = {name: value[0] for name, value in parse_qs(parts.query + body.decode()).items()}
        answer = self.server.reply(verb, parts.path, form)
        if answer is not None:
            self.connection.write(answer)
            self.connection.close()

    def closed(self, error: Exception | None) -> None:
        pass


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    server.listener = await net.listen("127.0.0.1", 0, lambda c: Served(server, c))
    yield server
    await server.listener.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as one:
        yield one


@pytest.fixture
async def other() -> AsyncIterator[Server]:
    async with serving() as one:
        yield one


def ok(text: str, *, status: str = "200 OK", headers: str = "") -> bytes:
    # As Java's Jetty does it: the end of the connection is the end of the answer.
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n{text}".encode()


async def test_a_query_is_in_the_address_and_a_change_is_not(server: Server) -> None:
    seen: list[tuple[str, str, dict[str, str]]] = []

    def reply(verb: str, path: str, form: dict[str, str]) -> bytes:
        seen.append((verb, path, form))
        return ok('{"result":true,"errCode":0,"errMsg":"OK","data":[{"brokerId":"7","on":"true"}]}')

    server.reply = reply
    asked = await server.api().call(Item, "admin_q", {"topicName": "ä&b=c"})
    changed = await server.api().call(Item, "admin_c", {"confModAuthToken": "abc"}, post=True)
    assert asked.data == changed.data == [Item(7, on=True)]
    assert seen == [
        ("GET", "/webapi.htm", {"method": "admin_q", "topicName": "ä&b=c"}),
        ("POST", "/webapi.htm", {"method": "admin_c", "confModAuthToken": "abc"}),
    ]


async def test_a_standby_leads_to_the_active_master(server: Server, other: Server) -> None:
    to = f"Location: http://127.0.0.1:{other.listener.port}/webapi.htm?method=admin_c\r\n"
    server.reply = lambda *_: ok("", status="302 Found", headers=to)
    other.reply = lambda verb, _, form: ok(
        msgspec.json.encode(
            {"result": verb == "POST" and form["confModAuthToken"] == "abc", "errMsg": verb}
        ).decode()
    )
    answer = await server.api().call(Item, "admin_c", {"confModAuthToken": "abc"}, post=True)
    assert answer.result


async def test_circles_are_left(server: Server) -> None:
    server.reply = lambda *_: ok("", status="302 Found", headers="Location: /webapi.htm?again\r\n")
    with pytest.raises(UnavailableError, match=r"circles.*Try again"):
        await server.api().call(Item, "m", {})


async def test_a_standby_is_passed_over(server: Server, other: Server) -> None:
    standby = ok('{"result":false,"errCode":511,"errMsg":"m1 is not master now"}')
    changed = '{"result":true,"data":[{"success":true,"errCode":0,"errInfo":""}]}'
    server.reply = lambda *_: standby
    deployed = '{"result":true,"data":[{"topicName":["jobs"]}]}'
    answers = {"admin_query_deployed_topics": deployed, "admin_add_new_topic_record": changed}
    other.reply = lambda _, __, form: ok(answers.get(form["method"], '{"result":true}'))
    masters = f"http://{server.endpoint.server},http://{other.endpoint.server}"
    await Admin(masters).topics.create("jobs", 1, [7])
    assert await Admin(masters).topics.names() == ["jobs"]
    other.reply = server.reply
    with pytest.raises(UnavailableError, match=r"m1 is not master now.*Try again"):
        await Admin(masters).topics.names()


async def test_only_a_query_goes_on_to_another_master_after_a_cut(
    server: Server, other: Server
) -> None:
    server.reply = lambda *_: b""
    other.reply = lambda *_: ok('{"result":true,"data":[{"topicName":["jobs"]}]}')
    masters = f"http://{server.endpoint.server},http://{other.endpoint.server}"
    assert await Admin(masters).topics.names() == ["jobs"]
    server.reply = lambda verb, *_: b"" if verb == "POST" else ok('{"result":true}')
    with pytest.raises(DisconnectedError):
        await Admin(masters).topics.create("jobs", 1, [7])


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            ok('{"result":false,"errCode":400,"errMsg":"bad topic!"}'),
            RefusedError,
            "m: bad topic. ",
        ),
        (
            ok('{"result":false,"errCode":511,"errMsg":"m1 is not master now"}'),
            UnavailableError,
            "m: m1 is not master now. .*Try again",
        ),
        (
            ok('{"result":false,"errCode":400,"errMsg":"illegal access, unauthorized request!"}'),
            RefusedError,
            "token",
        ),
        (ok("<html>", status="500 No"), RefusedError, "HTTP 500"),
        (ok("<html>"), ProtocolError, "m: "),
        (ok('{"result":true,"data":[{"brokerId":[]}]}'), ProtocolError, "brokerId"),
        (
            ok('{"result":true,"errMsg":"\xff"}').replace("\xff".encode(), b"\xff"),
            ProtocolError,
            "m: ",
        ),
        (b"SMTP?\r\n\r\n", ProtocolError, "Not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", ProtocolError, "Not HTTP"),
        (b"", DisconnectedError, "broke"),
        (b"HTTP/1.1 200", DisconnectedError, "broke"),
    ],
)
async def test_bad_answers(server: Server, answer: bytes, kind: type[Exception], text: str) -> None:
    server.reply = lambda *_: answer
    with pytest.raises(kind, match=text) as caught:
        await server.api().call(Item, "m", {})
    assert getattr(caught.value, "server") == server.endpoint.server  # noqa: B009


async def test_too_much_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADMIN_ANSWER_BYTES_MAX", 100)
    server.reply = lambda *_: ok("x" * 101)
    with pytest.raises(ProtocolError, match="Too long"):
        await server.api().call(Item, "m", {})


async def test_silence_ends(server: Server) -> None:
    with pytest.raises(RequestTimeoutError, match="30 ms"):
        await server.api(timeout_ms=30).call(Item, "m", {})


async def test_nobody_there(server: Server) -> None:
    await server.listener.close()
    with pytest.raises(ConnectError):
        await server.api().call(Item, "m", {})


async def test_a_cut_during_the_answer(server: Server) -> None:
    asked = asyncio.Event()
    server.reply = lambda *_: asked.set()
    call = asyncio.create_task(server.api().call(Item, "m", {}))
    await asked.wait()
    await server.listener.close(timeout_ms=0)
    with pytest.raises(DisconnectedError):
        await call


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("127.0.0.1:8080", Endpoint("http", "127.0.0.1", 8080)),
        ("http://a:1/", Endpoint("http", "a", 1)),
        ("https://a", Endpoint("https", "a", 443)),
        (" http://a/x.htm ", Endpoint("http", "a", 80, "/x.htm")),
        ("http://[::1]:8080", Endpoint("http", "::1", 8080)),
    ],
)
def test_urls(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(url) == endpoint
    assert Endpoint.parse(f"{endpoint.scheme}://{endpoint.server}{endpoint.path}") == endpoint


@pytest.mark.parametrize("url", ["", "http://", "tubemq://a:1", "http://a:b", "http://a:99999"])
def test_no_urls(url: str) -> None:
    with pytest.raises(UsageError, match="administration"):
        Endpoint.parse(url)


async def test_a_call_that_is_cancelled_while_it_connects(server: Server) -> None:
    """It left an error behind that asyncio printed: "Future exception was never retrieved"."""
    printed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: printed.append(context["message"])
    )
    for steps in range(12):
        asking = asyncio.create_task(server.api().page())
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    await server.listener.close()
    gc.collect()
    assert printed == []
