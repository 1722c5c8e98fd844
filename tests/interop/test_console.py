"""The console in Chromium, over Java's clusters."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest

from coherer._administration.access import opened
from tests.console import filling
from tests.console.browser import missing
from tests.console.looking import PAGES, ROCKETMQ, TWO_VIEWS, console, look_at, serious
from tests.interop.peers.java import HOST
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

WAIT_S: Final = 60


def test_the_console_shows_a_rocketmq_cluster_of_java(rocket: RocketSite) -> None:
    url = rocket.cluster("java").url

    async def prepare() -> None:
        await filling.fill(url)
        async with opened(url) as cluster:
            await filling.wait_dead(cluster)

    asyncio.run(prepare())
    with console(url) as one:
        pages = {**PAGES, **ROCKETMQ}
        assert serious(look_at(one, "java-rocketmq", pages, TWO_VIEWS)) == []
        one.open("/dead-letters/billing")
        assert "the card was declined" in one.text()
        one.find("button[value=all]").click()
        one.wait("return location.pathname.startsWith('/jobs/')")
        one.wait("return document.querySelector('.badge.good') !== null")
        assert "3 of 3 examined" in one.text()
        one.open("/brokers")
        assert "running" in one.text()


@scenario(PAIRS[:1], partitions=1, clients=("ours",))
async def test_the_console_shows_a_tubemq_cluster_of_java(at: At) -> None:
    url, web = f"tubemq://{at.master}", at.deployed.web
    access = {"admin": f"http://{HOST}:{web.port}", "token": web.token}
    # Other tests stop other brokers of this master for good.
    brokers = [broker.broker_id for broker in at.deployed.brokers]
    await filling.fill(url, **access, brokers=brokers)

    def look() -> None:
        with console(url, **access) as one:
            found = serious(look_at(one, "java-tubemq", PAGES, TWO_VIEWS))
            # A page says so if a busy broker did not answer, and its figures are unknown.
            wrong = {name: PAGES[name] for name in PAGES if any(x.startswith(name) for x in found)}
            assert serious(look_at(one, "java-tubemq", wrong, TWO_VIEWS)) == [], found
            deadline_s = time.monotonic() + WAIT_S
            one.open("/topics/orders")
            while one.find(".tiles dd").text == "unknown" and time.monotonic() < deadline_s:
                one.open("/topics/orders")
            assert "billing" in one.text()
            assert one.find(".tiles dd").text == str(filling.SENT)

    await asyncio.to_thread(look)
