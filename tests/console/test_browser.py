"""The console in Chromium. Screenshots of every page are kept in `build/screenshots`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from coherer.testing import EmbeddedNode
from tests.console.looking import PAGES, ROCKETMQ, SERIOUS, console, look_at, serious

pytest.importorskip("selenium")

from selenium.webdriver.common.keys import Keys

from coherer._administration.access import opened
from coherer.message import Message
from tests.console import filling
from tests.console.browser import Browser, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


@pytest.fixture(scope="module")
def rocket(node: EmbeddedNode) -> Iterator[Browser]:
    with console(node.rocketmq_url) as one:
        yield one


@pytest.fixture(scope="module")
def tube(node: EmbeddedNode) -> Iterator[Browser]:
    with console(node.url) as one:
        yield one


@pytest.mark.parametrize("name", [*PAGES, *ROCKETMQ])
def test_pages_are_good_at_every_size_and_in_every_scheme(rocket: Browser, name: str) -> None:
    path = {**PAGES, **ROCKETMQ}[name]
    assert serious(look_at(rocket, "node-rocketmq", {name: path})) == []


@pytest.mark.parametrize("name", ["dead-letters", *PAGES])
def test_pages_of_tubemq_are_good_as_well(tube: Browser, name: str) -> None:
    path = {**PAGES, **ROCKETMQ}[name]
    assert serious(look_at(tube, "node-tubemq", {name: path})) == []


@pytest.mark.parametrize("page", ["", "/settings", "/delete"])
def test_long_names_fit_into_a_narrow_window(
    rocket: Browser, node: EmbeddedNode, page: str
) -> None:
    name = "x" * 127

    async def create() -> None:
        async with opened(node.rocketmq_url) as cluster:
            await cluster.admin.topics.create(name, 2, exist_ok=True)

    asyncio.run(create())
    looked = look_at(
        rocket, "node-rocketmq", {"long-name": f"/topics/{name}{page}"}, [("narrow", "light")]
    )
    assert serious(looked) == []


def test_a_double_click_sends_a_form_once(rocket: Browser, node: EmbeddedNode) -> None:
    rocket.view("desktop", "light")
    rocket.open("/topics")
    rocket.run(
        "document.querySelector('details').open = true;"
        "document.querySelector('#new-name').value = 'clicked';"
    )
    sent = rocket.run(
        "let sent = 0; document.addEventListener('submit', (event) => {"
        "  if (!event.defaultPrevented) sent += 1; event.preventDefault(); });"
        "const button = document.querySelector('form[action=\"/topics\"][method=post] button');"
        "button.click(); button.click(); return sent;"
    )
    assert sent == 1


def test_axe_finds_what_is_wrong(rocket: Browser) -> None:
    rocket.open("/topics")
    rocket.run(
        "const image = document.createElement('img'); image.src = '/static/icon.svg';"
        "document.querySelector('main').append(image);"
    )
    assert any(one.startswith(SERIOUS) for one in rocket.violations())


def test_a_legend_with_many_partitions_can_be_scrolled_by_keyboard(rocket: Browser) -> None:
    rocket.open("/groups/billing")
    rocket.view("phone", "dark")
    rocket.run(
        "const legend = document.querySelector('.legend');"
        "const item = legend.firstElementChild;"
        "for (let n = 0; n < 60; n++) legend.append(item.cloneNode(true));"
    )
    assert rocket.run(
        "const legend = document.querySelector('.legend');"
        "return legend.scrollHeight > legend.clientHeight;"
    )
    assert serious(rocket.violations()) == []


def test_the_policy_stops_scripts_and_styles_in_the_page(rocket: Browser) -> None:
    rocket.open("/topics")
    rocket.problems()
    rocket.run(
        "const script = document.createElement('script'); script.textContent = 'window.bad = 1';"
        "document.body.append(script);"
        "document.body.insertAdjacentHTML('beforeend', '<p id=styled style=\"color: red\">x</p>');"
    )
    assert rocket.run("return window.bad") is None
    assert len(rocket.problems()) == 2


def test_charts_are_drawn_and_keep_their_time_span(rocket: Browser) -> None:
    rocket.view("desktop", "light")
    rocket.open("/groups/billing")
    rocket.wait("return document.querySelectorAll('.plot canvas').length === 2")
    rocket.find(".spans a[href*='15m']").click()
    rocket.wait("return location.search.includes('span=15m')")
    rocket.open("/topics/orders")
    assert rocket.find(".spans [aria-current]").text == "15m"
    rocket.wait("return document.querySelectorAll('.plot canvas').length >= 1")
    assert rocket.problems() == []


def test_a_list_refreshes_itself_and_keeps_the_focus(rocket: Browser, node: EmbeddedNode) -> None:
    rocket.view("desktop", "light")
    rocket.open("/topics/orders")
    before = rocket.find(".tiles dd").text
    link = rocket.find("#live .rows a")
    rocket.run("arguments[0].focus()", link)

    async def send() -> None:
        async with (
            opened(node.rocketmq_url) as cluster,
            cluster.client.producer("orders") as producer,
        ):
            await producer.send(Message("orders", filling.order(99)))

    asyncio.run(send())
    rocket.wait(f"return document.querySelector('.tiles dd').textContent !== '{before}'")
    assert rocket.run("return document.activeElement === arguments[0]", link)
    assert rocket.problems() == []


def test_the_keyboard_reaches_everything(rocket: Browser) -> None:
    rocket.view("desktop", "light")
    rocket.open("/dead-letters/billing")
    reached: list[str] = []
    for _ in range(60):
        rocket.run("return document.activeElement").send_keys(Keys.TAB)
        label = rocket.run(
            "const one = document.activeElement; return one === document.body ? '' :"
            " (one.getAttribute('aria-label') || one.textContent || one.name).trim();"
        )
        if not label:
            break
        reached.append(label)
        outline = rocket.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", label
    assert reached[0] == "Skip to the content"
    for label in ("Dead letters", "Topics", "Filter", "Replay selected", "Export", "Purge …"):
        assert label in reached, reached
    rocket.open("/dead-letters/billing")
    rocket.find("body").send_keys(Keys.TAB)
    rocket.run("return document.activeElement").send_keys(Keys.ENTER)
    assert rocket.run("return document.activeElement.id") == "main"


def test_dead_letters_are_chosen_and_replayed(rocket: Browser) -> None:
    rocket.view("desktop", "light")
    rocket.open("/dead-letters")
    rocket.find("a[href='/dead-letters/billing']").click()
    rocket.wait("return document.querySelector('[data-all]') !== null")
    rocket.find("[data-all]").click()
    chosen = rocket.all("input[name=letter]")
    assert len(chosen) == filling.DEAD
    assert all(one.is_selected() for one in chosen)
    rocket.find("button[value=chosen]").click()
    rocket.wait("return document.querySelector('.badge.good') !== null")
    assert "3 of 3 examined" in rocket.text()
    rocket.screenshot("node-rocketmq/replayed")
    assert rocket.violations() == []
    rocket.find("main > p a").click()
    rocket.wait("return document.querySelectorAll('.badge.good').length === 3")


def test_a_login_in_the_browser(node: EmbeddedNode) -> None:
    with console(node.rocketmq_url, console_password="correct horse", allow_changes=False) as one:
        one.open("/groups")
        assert one.violations() == []
        one.screenshot("node-rocketmq/login")
        one.find("#password").send_keys("correct horse", Keys.ENTER)
        one.wait("return location.pathname === '/groups'")
        assert one.run("return document.cookie") == ""
        assert "Read-only" in one.find("header").text
        one.find("button.quiet").click()
        one.wait("return location.pathname === '/login'")
        assert one.problems() == []


def test_a_page_of_something_that_was_deleted_says_so(rocket: Browser, node: EmbeddedNode) -> None:
    node.create_topic("short-lived")
    rocket.view("desktop", "light")
    rocket.open("/topics/short-lived")

    async def delete() -> None:
        async with opened(node.rocketmq_url) as cluster:
            await cluster.admin.topics.delete("short-lived")

    asyncio.run(delete())
    rocket.wait("return document.getElementById('connection').textContent !== ''")
    assert rocket.find("#connection").text.startswith("This does not exist any more.")
    rocket.open("/topics")  # ends the refreshes
    rocket.driver.get_log("browser")  # it reports each answer of 404


def test_a_lost_cluster_is_reported_on_the_page() -> None:
    from coherer.testing import embedded_node

    with embedded_node() as away, console(away.rocketmq_url) as one:
        one.open("/brokers")
        assert "running" in one.text()
        away.stop()
        one.wait("return document.getElementById('connection').textContent.includes('not answer')")
        away.start()
