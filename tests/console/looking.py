"""Checks every page with axe, at every size and in every color scheme."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from anyio.from_thread import start_blocking_portal

from coherer.console.options import ConsoleOptions
from coherer.console.serving import served
from tests.console.browser import SCHEMES, Browser, browser

PAGES: Final[Mapping[str, str]] = {
    "overview": "/overview",
    "topics": "/topics?sort=lag",
    "topic": "/topics/orders",
    "topic-settings": "/topics/orders/settings",
    "topic-delete": "/topics/orders/delete",
    "groups": "/groups?sort=lag",
    "group": "/groups/billing",
    "reset": "/groups/billing/reset?topic=orders&to=earliest",
    "messages": "/messages?topic=orders",
    "wrong-id": "/messages?by=id&id=x",
    "clients": "/clients",
    "brokers": "/brokers",
    "accounts": "/accounts",
    "send": "/send",
    "refusal": "/nothing",
}
ROCKETMQ: Final[Mapping[str, str]] = {
    "dead-letters": "/dead-letters",
    "dead-letter-group": "/dead-letters/billing?topic=orders",
    "purge": "/dead-letters/billing/purge",
    "broker": "/brokers/broker-a",
}
SERIOUS: Final = ("serious", "critical")


@contextmanager
def console(url: str, **options: object) -> Generator[Browser]:
    """A console in a thread, and a browser that shows it."""
    wanted = ConsoleOptions(**{"allow_changes": True, "sample_ms": 200, **options}, url=url, port=0)  # type: ignore[arg-type] # any option
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(served(wanted)) as serving,
        browser(serving.url) as one,
    ):
        yield one


DRAWN: Final = (
    "return [...document.querySelectorAll('[data-chart]')]"
    ".every((box) => box.querySelector('canvas, .empty'))"
)
"""Whether the charts of a page are there."""

ALL_VIEWS: Final = tuple((size, scheme) for size in ("desktop", "phone") for scheme in SCHEMES)
TWO_VIEWS: Final = (("desktop", "light"), ("phone", "dark"))


def look_at(
    one: Browser,
    folder: str,
    pages: Mapping[str, str],
    views: Sequence[tuple[str, str]] = ALL_VIEWS,
) -> list[str]:
    """Open and check pages, and keep screenshots of them; return their problems.

    Args:
        one: the browser.
        folder: the folder of the screenshots.
        pages: paths by the name of the page.
        views: sizes and color schemes.
    """
    found: list[str] = []
    for name, path in pages.items():
        one.open(path)
        if name not in {"refusal", "wrong-id"} and one.all("p.problem[role=alert]"):
            found.append(f"{name}: {one.text()}")
        for size, scheme in views:
            one.view(size, scheme)
            one.wait(DRAWN)
            where = f"{name}, {size}, {scheme}"
            one.screenshot(f"{folder}/{name}-{size}-{scheme}")
            wide = one.run("return document.documentElement.scrollWidth - window.innerWidth")
            if wide > 0:
                found.append(f"{where}: {wide} px too wide")
            found += [f"{where}: {each}" for each in one.violations()]
        found += [f"{name}: {each}" for each in one.problems() if "404" not in each]
    return found


def serious(found: Sequence[str]) -> list[str]:
    """The problems, without axe's minor advice."""
    return [one for one in found if not any(f": {kind} " in one for kind in ("minor", "moderate"))]
