"""Somebody who uses the console through its pages."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from typing import Final

import httpx2
from starlette.applications import Starlette
from starlette.routing import Route

from coherer.console.app import running
from coherer.console.options import ConsoleOptions

BASE: Final = "http://127.0.0.1:8790"
PASSWORD: Final = "correct horse battery"


class Visitor:
    """A browser without JavaScript.

    Args:
        client: sends requests, and keeps cookies.
        app: the console.
    """

    def __init__(self, client: httpx2.AsyncClient, app: Starlette) -> None:
        self.client = client
        self.app = app

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """A page, without following redirects."""
        return await self.client.get(path, headers=headers)

    async def page(self, path: str) -> str:
        """The text of a page that must be there."""
        answer = await self.client.get(path, follow_redirects=True)
        assert answer.status_code == 200, (path, answer.status_code, words(answer.text))
        return words(answer.text)

    async def token(self, path: str = "/send") -> str:
        """The token of the forms on a page."""
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.get(path)).text)
        assert found is not None
        return found[1]

    async def post(self, path: str, data: Mapping[str, str | list[str]]) -> httpx2.Response:
        """Send a form with the session's token, without following redirects."""
        return await self.client.post(path, data={"csrf": await self.token(), **data})

    async def change(self, path: str, data: Mapping[str, str | list[str]]) -> str:
        """Send a form that must work; returns the text of the page that follows."""
        answer = await self.post(path, data)
        while answer.status_code == 303:
            answer = await self.get(answer.headers["location"])
        assert answer.status_code == 200, (path, answer.status_code, words(answer.text))
        return words(answer.text)

    async def log_in(self, name: str = "admin", password: str = PASSWORD) -> httpx2.Response:
        """Send the form of the login."""
        token = await self.token("/login")
        data = {"csrf": token, "name": name, "password": password, "next": "/topics"}
        return await self.client.post("/login", data=data)


@asynccontextmanager
async def visiting(url: str, **options: object) -> AsyncGenerator[Visitor]:
    """A console in this process, and its user."""
    wanted = ConsoleOptions(**{"sample_ms": 3_600_000, "allow_changes": True, **options}, url=url)  # type: ignore[arg-type] # any option
    async with running(wanted) as app:
        transport = httpx2.ASGITransport(app=app)
        base = BASE.replace("http", "https") if wanted.secure else BASE
        async with httpx2.AsyncClient(transport=transport, base_url=base, timeout=60) as client:
            yield Visitor(client, app)


def words(page: str) -> str:
    """The text of a page as a person reads it."""
    body = re.sub(r"(?s)<(script|svg|datalist)\b.*?</\1>", " ", page.partition('tabindex="-1">')[2])
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def changing_routes(app: Starlette) -> list[str]:
    """The paths of all routes that take forms, with names filled in."""
    found = [
        re.sub(r"{(\w+)}", "billing", route.path)
        for route in app.routes
        if isinstance(route, Route) and route.methods is not None and "POST" in route.methods
    ]
    return [path for path in found if path not in {"/login", "/login/kept", "/logout"}]
