"""The HTTP administration: parameters, HTTP, and access."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from coherer import _net as net
from coherer import limits
from coherer._common.guesses import ADDRESS
from coherer._server.http.app import AdminApp, Method
from coherer._server.http.guard import Authorization, Decision, Guard
from coherer._server.http.operators import Operators
from coherer._server.http.params import Answer, ParamError, Params, found
from coherer._server.http.service import AdminService
from coherer._wire.tubemq.credentials import broker_token
from coherer.errors import CohererError

# -- parameters


def test_either_name_of_a_parameter_is_found() -> None:
    params = Params({"topic": "a", "groupName": "g"})
    assert params["topicName"] == "a"
    assert params["groupName"] == "g"
    assert params.get("consumeGroup") is None
    assert "confModAuthToken" not in params
    assert dict(params) == {"topic": "a", "groupName": "g"}
    assert len(params) == 2


def test_numbers_flags_and_lists() -> None:
    params = Params({"brokerId": "1, 2,,1", "numPartitions": " 8 ", "withTopic": "TRUE", "x": ""})
    assert params.numbers("brokerId") == [1, 2]
    assert params.words("brokerId") == ["1", "2"]
    assert params.words("x") == []
    assert params.number("numPartitions") == 8
    assert params.number("x") is None
    assert params.flag("withTopic") is True
    assert params.flag("x") is None


@pytest.mark.parametrize("text", ["x", "1.5", "٣", "-", "1" * 20])
def test_invalid_numbers(text: str) -> None:
    with pytest.raises(ParamError, match="illegal value for brokerId"):
        Params({"brokerId": text}).number("brokerId")


def test_invalid_flags_and_missing_parameters() -> None:
    with pytest.raises(ParamError, match="true or false"):
        Params({"withTopic": "maybe"}).flag("withTopic")
    with pytest.raises(ParamError, match="Parameter modifyUser is missing or value is blank!"):
        Params({"modifyUser": " "}).required("modifyUser")


# -- the table


def echo(params: Params) -> Answer:
    if params.get("fail") == "param":
        raise ParamError("That is wrong.")
    if params.get("fail") == "refused":
        raise CohererError("That cannot be.", code=402)
    if params.get("fail") == "bug":
        raise RuntimeError("ours")
    return found([{key: params[key] for key in params if key != "confModAuthToken"}])


METHODS = {"admin_ask": Method(echo), "admin_change": Method(echo, changes=True)}
APP = AdminApp(METHODS, Guard("secret"))
UNAUTHORIZED = "Bad request from client, illegal access, unauthorized request!"


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        ("", {}, "Bad request from client, Please take with method parameter!"),
        ("admin_other", {}, "Bad request from client, unsupported method admin_other!"),
        ("admin_change", {}, UNAUTHORIZED),
        ("admin_change", {"confModAuthToken": "wrong"}, UNAUTHORIZED),
        ("admin_ask", {"authToken": "wrong"}, UNAUTHORIZED),
        ("admin_ask", {"fail": "param"}, "That is wrong."),
        ("admin_ask", {"fail": "refused"}, "That cannot be."),
    ],
)
def test_refused_requests(method: str, params: dict[str, str], text: str) -> None:
    assert APP.handle(method, params) == {"result": False, "errCode": 400, "errMsg": text}


def test_served_requests() -> None:
    assert APP.handle("admin_ask", {"a": "b"})["data"] == [{"a": "b"}]
    assert APP.handle("admin_change", {"authToken": "secret", "a": "b"})["result"] is True


def test_a_closed_table_says_why() -> None:
    app = AdminApp({"admin_ask": Method(echo)}, closed=lambda: "Not now.")
    assert app.handle("admin_ask", {}) == {"result": False, "errCode": 511, "errMsg": "Not now."}


# -- accounts

NOW_MS = 1_700_000_000_000


def guarded() -> AdminApp:
    return AdminApp(METHODS, Guard("token", {"ann": "pw"}, now_ms=lambda: NOW_MS))


def with_open_queries() -> AdminApp:
    return AdminApp(METHODS, Guard(None, {"ann": "pw"}, queries=False, now_ms=lambda: NOW_MS))


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def signed(name: str, password: str, ms: int = NOW_MS) -> str:
    return f"TubeMQ {broker_token(name, password, ms, 1)}"


@pytest.mark.parametrize(
    ("authorization", "allowed"),
    [
        ("", False),
        (basic("ann", "pw"), True),
        (basic("ann", "PW"), False),
        (basic("bob", ""), False),
        ("Basic %%%", False),
        (signed("ann", "pw"), True),
        (signed("ann", "guess"), False),
        (signed("bob", ""), False),
        (signed("ann", "pw", NOW_MS - 60_000), False),
        ("TubeMQ nonsense", False),
        ("Bearer token", True),
        ("Bearer abc", False),
    ],
)
def test_with_accounts_all_calls_need_one(authorization: str, allowed: bool) -> None:
    visit = Authorization(authorization)
    for method in METHODS:
        assert guarded().handle(method, {}, visit)["result"] is allowed
    app = with_open_queries()
    assert app.handle("admin_ask", {}, visit)["result"] is True, "queries are left open"
    with_account = allowed and not authorization.startswith("Bearer")
    assert app.handle("admin_change", {}, visit)["result"] is with_account


def test_with_accounts_a_token_works_only_where_one_was_chosen() -> None:
    for method in METHODS:
        assert guarded().handle(method, {"authToken": "token"})["result"] is True
        assert guarded().handle(method, {"authToken": "abc"})["errMsg"] == UNAUTHORIZED
    assert (
        with_open_queries().handle("admin_change", {"authToken": "abc"})["errMsg"] == UNAUTHORIZED
    )
    # Our client sends the well-known token along with a signature; the signature decides.
    visit = Authorization(signed("ann", "pw"))
    assert with_open_queries().handle("admin_change", {"authToken": "abc"}, visit)["result"] is True


@pytest.mark.parametrize("kind", ["password", "signature", "token", "operator"])
def test_guesses_are_slowed_down_for_their_address_only(kind: str, tmp_path: Path) -> None:
    operators = Operators(tmp_path)
    operators.put("scraper", "scraper-pw", changes=False)
    guard = Guard(
        "token", {"ann": "pw"}, operators, now_ms=lambda: NOW_MS, monotonic_s=lambda: 100.0
    )
    right, wrong = {
        "password": (basic("ann", "pw"), basic("ann", "guess")),
        "signature": (signed("ann", "pw"), signed("ann", "guess")),
        "token": ("Bearer token", "Bearer guess"),
        "operator": (basic("scraper", "scraper-pw"), basic("scraper", "guess-pw")),
    }[kind]

    def ask(authorization: str, peer: str) -> Decision:
        return guard.decide(None, Authorization(authorization, peer), changes=False)

    assert ask(right, "10.0.0.1") is Decision.ALLOWED
    found = [ask(wrong, "10.0.0.9") for _ in range(60)]
    slowed = 60 - ADDRESS.at_once
    assert found == [Decision.REFUSED] * ADDRESS.at_once + [Decision.SLOWED] * slowed
    assert ask(right, "10.0.0.9") is Decision.SLOWED, "not even looked at"
    assert ask(right, "10.0.0.1") is Decision.ALLOWED, "it has been used there"
    assert ask(right, "10.0.0.2") is Decision.ALLOWED
    app = AdminApp(METHODS, guard)
    answer = app.handle("admin_ask", {}, Authorization(wrong, "10.0.0.9"))
    assert "too many wrong passwords" in answer["errMsg"]


def test_an_account_that_only_reads_cannot_change(tmp_path: Path) -> None:
    operators = Operators(tmp_path)
    operators.put("scraper", "scraper-pw", changes=False)
    guard = Guard(None, {}, operators)
    visit = Authorization(basic("scraper", "scraper-pw"), "10.0.0.1")
    for _ in range(2 * ADDRESS.at_once):
        assert guard.decide(None, visit, changes=False) is Decision.ALLOWED
        assert guard.decide(None, visit, changes=True) is Decision.REFUSED


def test_repr_of_the_guard_shows_no_secret() -> None:
    shown = repr(Guard("token", {"ann": "pw"})) + repr(Authorization(basic("ann", "pw")))
    assert "token" not in shown
    assert "pw" not in shown
    assert basic("ann", "pw").split()[1] not in shown


# -- HTTP


class Http:
    """Send bytes and wait for the response."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def send(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await writer.wait_closed()
        return answer

    async def get(self, target: str, *headers: str) -> tuple[int, str, bytes]:
        lines = [f"GET {target} HTTP/1.1", "Host: node:8080", "Connection: close", *headers]
        return parted(await self.send("\r\n".join([*lines, "", ""]).encode()))

    async def post(self, target: str, form: bytes, *headers: str) -> tuple[int, str, bytes]:
        lines = [f"POST {target} HTTP/1.1", "Host: node:8080", "Connection: close", *headers]
        lines.append(f"Content-Length: {len(form)}")
        return parted(await self.send("\r\n".join([*lines, "", ""]).encode() + form))


def parted(answer: bytes) -> tuple[int, str, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head.decode(), body


class Standby:
    """Where the active master is."""

    url: str | None = None


@pytest.fixture
def standby() -> Standby:
    return Standby()


@pytest.fixture
async def http(standby: Standby) -> AsyncIterator[Http]:
    broker = AdminApp({"admin_hello": Method(lambda _: found([{"who": "broker"}]))})
    service = AdminService(APP, broker, active_admin_url=lambda: standby.url)
    listener = await net.listen("127.0.0.1", 0, service.make)
    yield Http(listener.port)
    await listener.close()


async def test_a_query_in_the_address(http: Http) -> None:
    status, head, body = await http.get("/webapi.htm?method=admin_ask&a=%C3%BC&b=x+y")
    assert status == 200
    assert "application/json" in head
    assert msgspec.json.decode(body)["data"] == [{"a": "ü", "b": "x y"}]


async def test_a_form(http: Http) -> None:
    form = b"method=admin_change&confModAuthToken=secret&a=b"
    status, _, body = await http.post("/webapi.htm", form)
    assert (status, msgspec.json.decode(body)["data"]) == (200, [{"a": "b"}])


async def test_other_paths_are_the_brokers(http: Http) -> None:
    for path in ("/broker.htm", "/"):
        _, _, body = await http.get(f"{path}?method=admin_hello")
        assert msgspec.json.decode(body)["data"] == [{"who": "broker"}]


@pytest.mark.parametrize(
    ("target", "status"),
    [("/health", 404), ("/nothing?a=1", 404), ("/webapi.htm", 200), ("/", 200)],
)
async def test_unknown_pages_are_not_found(http: Http, target: str, status: int) -> None:
    assert (await http.get(target))[0] == status


async def test_a_callback_wraps_the_answer(http: Http) -> None:
    status, head, body = await http.get("/webapi.htm?method=admin_ask&callback=show")
    assert status == 200
    assert "text/plain" in head
    assert body.startswith(b'show({"result":true')
    _, head, _ = await http.get("/webapi.htm?method=admin_ask&callback=alert(1)")
    assert "json" in head


async def test_a_standby_sends_on(http: Http, standby: Standby) -> None:
    standby.url = "http://10.0.0.1:8080/"
    status, head, _ = await http.get("/webapi.htm?method=admin_ask&a=b")
    assert status == 302
    assert "http://10.0.0.1:8080/webapi.htm?method=admin_ask&a=b" in head
    status, _, _ = await http.get("/broker.htm?method=admin_hello")
    assert status == 200


async def test_several_requests_on_one_connection(http: Http) -> None:
    one = b"GET /broker.htm?method=admin_hello HTTP/1.1\r\nHost: node\r\n\r\n"
    last = b"GET /broker.htm?method=admin_hello HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    answer = await http.send(one + one + last)
    assert answer.count(b"HTTP/1.1 200") == 3


async def test_100_continue(http: Http) -> None:
    status, head, _ = await http.post("/webapi.htm", b"method=admin_ask", "Expect: 100-continue")
    assert (status, "HTTP/1.1 100" in head) == (100, True)


FROM_ELSEWHERE = [
    "Origin: http://evil.example",
    "Origin: null",
    "Referer: http://evil.example/page",
    "Sec-Fetch-Site: cross-site",
    "Sec-Fetch-Site: same-site",
]


@pytest.mark.parametrize("header", FROM_ELSEWHERE)
async def test_pages_from_elsewhere_are_refused(http: Http, header: str) -> None:
    assert (await http.post("/webapi.htm", b"method=admin_ask", header))[0] == 403
    assert (await http.get("/webapi.htm?method=admin_ask", header))[0] == 403


@pytest.mark.parametrize(
    "header",
    ["Origin: http://node:8080", "Referer: http://node:8080/a", "Sec-Fetch-Site: same-origin"],
)
async def test_our_own_pages_are_not(http: Http, header: str) -> None:
    assert (await http.post("/webapi.htm", b"method=admin_ask", header))[0] == 200


CHANGE = "method=admin_change&confModAuthToken=secret"


@pytest.mark.parametrize(
    "header",
    [
        "Referer: http://node:8080/a",
        "Sec-Fetch-Site: none",
        "Sec-Fetch-Mode: navigate",
        # All that some browsers send for an image with referrerpolicy="no-referrer".
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15",
    ],
)
async def test_a_browser_changes_nothing_by_a_link(http: Http, header: str) -> None:
    status, _, body = await http.get(f"/webapi.htm?{CHANGE}", header)
    assert (status, b"POST with an Origin" in body) == (403, True)
    assert (await http.post("/webapi.htm", CHANGE.encode(), header))[0] == 403
    own = "Origin: http://node:8080"
    assert (await http.post("/webapi.htm", CHANGE.encode(), header, own))[0] == 200


@pytest.mark.parametrize("agent", ["User-Agent: Java/1.8.0_345", "User-Agent: curl/8.5", "X: y"])
async def test_tools_change_by_get(http: Http, agent: str) -> None:
    status, _, body = await http.get(f"/webapi.htm?{CHANGE}", agent)
    assert (status, msgspec.json.decode(body)["result"]) == (200, True)


async def test_no_answer_runs_as_a_script(http: Http) -> None:
    _, head, _ = await http.get("/webapi.htm?method=admin_ask&callback=show")
    assert "X-Content-Type-Options: nosniff" in head


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("[::1]:1", 200),
        ("10.1.2.3", 200),
        ("NODE.example:8080", 200),
        ("node.example.", 200),
        ("rebound.example:8080", 403),
        ("127.0.0.1.rebound.example", 403),
        ("[", 403),
    ],
)
async def test_an_unknown_host_name(host: str, status: int) -> None:
    service = AdminService(APP, names=["localhost", "node.example"])
    listener = await net.listen("127.0.0.1", 0, service.make)
    request = f"GET /webapi.htm?method=admin_ask HTTP/1.1\r\nHost: {host}\r\nConnection: close"
    found, _, body = parted(await Http(listener.port).send(f"{request}\r\n\r\n".encode()))
    await listener.close()
    assert found == status
    if "rebound" in host:
        assert b"--admin-name" in body


async def test_answers_say_which_master_and_broker_it_is() -> None:
    service = AdminService(APP, master_id="m1", broker_id="1:127.0.0.1:8123")
    listener = await net.listen("127.0.0.1", 0, service.make)
    _, head, _ = await Http(listener.port).get("/webapi.htm?method=admin_ask")
    await listener.close()
    assert "Coherer-Master: m1" in head
    assert "Coherer-Broker: 1:127.0.0.1:8123" in head


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n\xff\xff", 400),
        (b"GET http://[x/ HTTP/1.0\r\n\r\n", 400),
    ],
)
async def test_invalid_requests(http: Http, data: bytes, status: int) -> None:
    assert parted(await http.send(data))[0] == status


async def test_long_requests_are_cut_off(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADMIN_REQUEST_BYTES_MAX", 1000)
    assert (await http.post("/webapi.htm", b"a" * 1001))[0] == 413
    assert parted(await http.send(b"GET /webapi.htm?a=" + b"a" * 1001))[0] == 431


async def test_an_unhandled_error_is_answered_with_500(
    http: Http, caplog: pytest.LogCaptureFixture
) -> None:
    target = "/webapi.htm?method=admin_ask&fail=bug&confModAuthToken=secret"
    assert (await http.get(target))[0] == 500
    assert "administration at b'/webapi.htm'" in caplog.text
    assert "secret" not in caplog.text


async def test_a_node_without_a_role_says_so() -> None:
    listener = await net.listen("127.0.0.1", 0, AdminService(APP).make)
    assert (await Http(listener.port).get("/broker.htm?method=admin_hello"))[0] == 404
    await listener.close()
