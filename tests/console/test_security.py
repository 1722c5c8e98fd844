from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from pathlib import Path

import httpx2
import pytest

from coherer._common.guesses import ADDRESS
from coherer.console.app import passwords_of
from coherer.console.guard import HEADERS
from coherer.console.options import ConsoleOptions
from coherer.console.passwords import Account, hashed, line
from coherer.errors import UsageError
from coherer.testing import EmbeddedNode
from tests.console.visitor import BASE, PASSWORD, Visitor, changing_routes, visiting

PATHS = (
    "/dead-letters", "/dead-letters/billing", "/topics", "/topics/orders", "/groups",
    "/groups/billing", "/messages", "/clients", "/brokers", "/accounts", "/send", "/login",
    "/static/console.css", "/nothing",
)  # fmt: skip


async def test_every_answer_has_a_strict_policy(visitor: Visitor) -> None:
    for path in PATHS:
        answer = await visitor.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS), path
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


async def test_pages_have_no_inline_script_or_style_and_load_nothing_from_elsewhere(
    visitor: Visitor,
) -> None:
    for path in PATHS:
        text = (await visitor.get(path)).text
        assert " style=" not in text, path
        assert " onclick=" not in text, path
        assert "<style" not in text, path
        assert "<script>" not in text, path
        for source in ("src=", "href="):
            assert f'{source}"http' not in text, path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8790", 200),
        ("localhost", 200),
        ("[::1]:8790", 200),
        ("10.1.2.3:8790", 200),
        ("rebound.example.org", 400),
        ("127.0.0.1.evil.org", 400),
        ("127.0.0.1@evil.org", 400),
        ("localhost:x", 400),
        ("", 400),
    ],
)
async def test_another_host_name_is_refused(visitor: Visitor, host: str, status: int) -> None:
    assert (await visitor.get("/topics", host=host)).status_code == status


async def test_a_public_name_is_known(node: EmbeddedNode) -> None:
    options = {"public_url": "https://console.example.org", "console_password": PASSWORD}
    async with visiting(node.rocketmq_url, **options) as visitor:
        good = await visitor.get("/login", host="console.example.org")
        assert good.status_code == 200
        cookie = good.headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= {*cookie.split("; ")}
        assert "max-age" in good.headers["strict-transport-security"]


async def test_every_changing_route_needs_the_token_of_the_session(visitor: Visitor) -> None:
    routes = changing_routes(visitor.app)
    assert len(routes) >= 11
    token = await visitor.token()
    for path in routes:
        for given in ({}, {"csrf": ""}, {"csrf": token[:-1] + "x"}):
            answer = await visitor.client.post(path, data={"name": "x", **given})
            assert answer.status_code == 403, path
            assert "expired" in answer.text, path


async def test_every_changing_route_is_refused_without_allow_changes(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, allow_changes=False) as visitor:
        for path in changing_routes(visitor.app):
            answer = await visitor.post(path, {"name": "x", "confirm": "billing"})
            assert answer.status_code == 403, path
            assert "--allow-changes" in answer.text, path
        assert "3 dead letters" in await visitor.page("/dead-letters/billing")
        assert "Replay" not in await visitor.page("/dead-letters/billing")


async def test_a_read_only_account_changes_nothing(node: EmbeddedNode, tmp_path: Path) -> None:
    file = tmp_path / "accounts"
    accounts = [Account("ann", hashed("sesame street"), "read"), Account("bob", hashed(PASSWORD))]
    file.write_text("# people\n\n" + "\n".join(map(line, accounts)) + "\n")
    async with visiting(node.rocketmq_url, accounts=file) as visitor:
        assert (await visitor.log_in("ann", "sesame street")).status_code == 303
        for path in changing_routes(visitor.app):
            answer = await visitor.post(path, {"name": "x"})
            assert answer.status_code == 403, path
            assert "ann is read-only" in answer.text, path
        visitor.client.cookies.clear()
        assert (await visitor.log_in("bob")).status_code == 303
        await visitor.change("/topics", {"name": "by-bob", "partitions": "1"})


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_forms_of_other_sites_are_refused(visitor: Visitor, site: str) -> None:
    data = {"csrf": await visitor.token(), "name": "x", "partitions": "1"}
    for headers in ({"sec-fetch-site": site}, {"origin": "http://evil.example.org"}):
        answer = await visitor.client.post("/topics", data=data, headers=headers)
        assert answer.status_code == 403
        assert "another site" in answer.text


async def test_forms_must_be_forms_of_limited_size(visitor: Visitor) -> None:
    token = await visitor.token()
    whole = await visitor.client.post("/topics", json={"csrf": token})
    assert whole.status_code == 403
    huge = await visitor.client.post("/topics", data={"csrf": token, "name": "x" * (9 << 20)})
    assert huge.status_code == 403


async def test_nothing_is_shown_before_the_login(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        for path in PATHS:
            if path.startswith(("/login", "/static")):
                continue
            answer = await visitor.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next="), path
        refresh = await visitor.get("/topics", **{"hx-request": "true"})
        assert (refresh.status_code, refresh.headers["hx-redirect"]) == (401, "/login")
        for path in changing_routes(visitor.app):
            assert (await visitor.client.post(path, data={})).status_code == 401, path
        assert (await visitor.get("/health")).text == "ok\n"
        assert (await visitor.log_in()).headers["location"] == "/topics"
        assert "orders" in await visitor.page("/topics")


async def test_a_logout_ends_the_session_also_for_a_copied_cookie(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        await visitor.log_in()
        copied = dict(visitor.client.cookies)
        token = await visitor.token()
        assert (await visitor.client.post("/logout", data={})).status_code == 403
        answer = await visitor.client.post("/logout", data={"csrf": token})
        assert answer.headers["location"] == "/login"
        for name, value in copied.items():
            visitor.client.cookies.set(name, value)
        assert (await visitor.get("/topics")).status_code == 303


async def test_a_changed_cookie_is_no_session(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        await visitor.log_in()
        [(name, value)] = dict(visitor.client.cookies).items()
        head, _, rest = value.partition(".")
        visitor.client.cookies.clear()
        visitor.client.cookies.set(name, head[:-2] + "AA." + rest)
        assert (await visitor.get("/topics")).status_code == 303


async def test_wrong_passwords_are_refused_and_slowed_down(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        for _ in range(ADDRESS.at_once):
            answer = await visitor.log_in(password="wrong")
            assert answer.status_code == 401
            assert "The name or the password is wrong" in answer.text
        late = await visitor.log_in()
        assert late.status_code == 429
        assert "Wait" in late.text


async def test_guesses_at_the_same_time_count_as_many(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        data = {"csrf": await visitor.token("/login"), "name": "admin", "password": "wrong"}
        cookies = dict(visitor.client.cookies)

        async def guess() -> int:
            transport = httpx2.ASGITransport(app=visitor.app)
            async with httpx2.AsyncClient(
                transport=transport, base_url=BASE, cookies=cookies, timeout=60
            ) as client:
                return (await client.post("/login", data=data)).status_code

        begun_s = time.monotonic()
        codes = await asyncio.gather(*(guess() for _ in range(60)))
        further = int((time.monotonic() - begun_s) / ADDRESS.pause_s)  # on a very slow machine
    assert set(codes) == {401, 429}
    assert ADDRESS.at_once <= codes.count(401) <= ADDRESS.at_once + further


@pytest.mark.parametrize("path", ["//evil.example.org", "https://evil.example.org", "/\\evil"])
async def test_a_login_leads_to_this_console_only(node: EmbeddedNode, path: str) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as visitor:
        data = {"csrf": await visitor.token("/login"), "name": "admin", "password": PASSWORD}
        answer = await visitor.client.post("/login", data={**data, "next": path})
        assert answer.headers["location"] == "/"


async def test_no_page_shows_a_secret(node: EmbeddedNode) -> None:
    options = {"console_password": PASSWORD, "user": "AccessKey", "password": "s3cr3t-of-cluster"}
    async with visiting(node.rocketmq_url, **options) as visitor:
        await visitor.log_in()
        for path in (*PATHS, "/brokers/broker-a"):
            text = (await visitor.client.get(path, follow_redirects=True)).text
            assert PASSWORD not in text, path
            assert "s3cr3t-of-cluster" not in text, path


def test_an_address_that_others_reach_needs_a_password() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.5", "console.example.org"):
        with pytest.raises(UsageError, match="has no password"):
            ConsoleOptions(url="rocketmq://a", host=host)
        assert ConsoleOptions(url="rocketmq://a", host=host, console_password="x").has_login
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert not ConsoleOptions(url="rocketmq://a", host=host).has_login


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"console_password": ""}, "empty"),
        ({"tls_cert": Path("a")}, "needs its key"),
        ({"sample_ms": 0}, "must be 1 ms or more"),
        ({"public_url": "console.example.org"}, "not the URL"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ConsoleOptions(url="rocketmq://a", **options)  # type: ignore[arg-type] # any option


def test_options_show_no_secret() -> None:
    options = ConsoleOptions(
        url="rocketmq://a", password="one", token="two", console_password="three"
    )
    assert not {"one", "two", "three"} & {*repr(options).replace("'", " ").split()}


@pytest.mark.parametrize("text", ["ann", "ann:read:x", "ann:admin:" + hashed("x"), "", "# none"])
def test_a_malformed_file_of_accounts_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "accounts"
    file.write_text(text)
    with pytest.raises(UsageError, match="account"):
        passwords_of(ConsoleOptions(url="rocketmq://a", accounts=file))


def test_accounts_are_checked_by_their_hash(tmp_path: Path) -> None:
    file = tmp_path / "accounts"
    file.write_text(line(Account("ann", hashed("sesame"), "read")))
    found = passwords_of(ConsoleOptions(url="rocketmq://a", accounts=file, console_password="x"))
    ann = found.check("ann", "sesame")
    assert ann is not None
    assert (ann.name, ann.rights) == ("ann", "read")
    assert "scrypt" not in repr(ann)
    assert found.check("ann", "Sesame") is None
    assert found.check("nobody", "sesame") is None
    admin = found.check("admin", "x")
    assert admin is not None
    assert admin.rights == "change"


async def test_a_form_after_the_end_of_the_session_comes_back_with_its_text(
    node: EmbeddedNode,
) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD, allow_changes=True) as one:
        await one.log_in()
        token = await one.token()
        await one.client.post("/logout", data={"csrf": token})
        body = "\nan order\nof & <two> lines"
        given = {"csrf": token, "topic": "orders", "body": body, "keys": "k1 k2"}
        login = await one.client.post("/send", data=given)
        assert login.status_code == 401
        assert "Your session has ended" in login.text
        data = {**hidden_fields(login.text), "name": "admin", "password": "wrong"}
        again = await one.client.post("/login", data=data)
        assert again.status_code == 401, "a wrong password keeps the text, too"
        data = {**hidden_fields(again.text), "name": "admin", "password": PASSWORD}
        page = await one.client.post("/login", data=data)
        assert page.status_code == 200
        assert "Nothing was done yet" in page.text
        assert 'action="/send"' in page.text
        assert "\n\nan order\nof &amp; &lt;two&gt; lines</textarea>" in page.text
        assert 'value="k1 k2"' in page.text
        sent = {**given, "csrf": hidden_fields(page.text)["csrf"]}
        assert "Sent to orders" in (await one.client.post("/send", data=sent)).text


async def test_any_form_comes_back_after_the_login(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD, allow_changes=True) as one:
        login = await one.client.post(
            "/accounts", data={"name": "operator", "secret": "s3cret-s3cret", "admin": "1"}
        )
        data = {**hidden_fields(login.text), "name": "admin", "password": PASSWORD}
        page = (await one.client.post("/login", data=data)).text
        assert 'action="/accounts"' in page
        assert 'value="operator"' in page
        assert 'type="password" value="s3cret-s3cret"' in page
        huge = await one.client.post("/login/kept", data={"body": "x"})
        assert huge.status_code == 303, "nobody sends a form to that route"


async def test_a_wrong_password_keeps_the_name_and_the_page_to_go_to(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as one:
        login = await one.get("/login?next=/groups%3Fq%3Db")
        given = {**hidden_fields(login.text), "name": "ann", "password": "wrong"}
        again = await one.client.post("/login", data=given)
        assert 'id="name" name="name" value="ann"' in again.text
        given = {**hidden_fields(again.text), "name": "admin", "password": PASSWORD}
        answer = await one.client.post("/login", data=given)
        assert answer.headers["location"] == "/groups?q=b"


async def test_tabs_log_in_one_after_the_other(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as one:
        first = hidden_fields((await one.get("/login?next=/groups")).text)
        kept = await one.client.post("/send", data={"topic": "orders", "body": "an order"})
        second = hidden_fields(kept.text)
        third = hidden_fields((await one.get("/login?next=/brokers")).text)
        known = {"name": "admin", "password": PASSWORD}
        for form, path in ((first, "/groups"), (third, "/brokers")):
            answer = await one.client.post("/login", data={**form, **known})
            assert (answer.status_code, answer.headers["location"]) == (303, path)
        page = await one.client.post("/login", data={**second, **known})
        assert "an order</textarea>" in page.text
        assert (await one.get("/login?next=/topics")).headers["location"] == "/topics"
        assert (await one.get("/groups")).status_code == 200, "all tabs are still logged in"


async def test_a_second_logout_does_not_ask_for_a_login(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as one:
        await one.log_in()
        data = {"csrf": await one.token()}
        for _ in range(2):
            answer = await one.client.post("/logout", data=data)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        page = await one.get("/login")
        assert "ended" not in page.text


async def test_a_form_that_is_too_large_to_keep_is_refused_with_words(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as one:
        login = await one.client.post("/send", data={"body": "x" * (3 << 20)})
        assert login.status_code == 401
        assert "too large to keep" in login.text
        assert len(login.text) < 10_000


async def test_a_refresh_after_the_session_leads_back_to_its_page(node: EmbeddedNode) -> None:
    async with visiting(node.rocketmq_url, console_password=PASSWORD) as one:
        headers = {"hx-request": "true", "hx-current-url": "http://127.0.0.1:8790/groups?q=b"}
        answer = await one.get("/groups?q=b", **headers)
        assert answer.headers["hx-redirect"] == "/login?next=/groups%3Fq%3Db"


def hidden_fields(page: str) -> dict[str, str]:
    """The hidden fields of the first form of a page."""
    form = page.partition("<form")[2].partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    found += re.findall(r'<textarea name="([^"]+)" hidden>([^<]*)</textarea>', form)
    return {name: unescape(value) for name, value in found}
