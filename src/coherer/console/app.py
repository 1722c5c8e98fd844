"""The console as an ASGI application."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.convertors import Convertor
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from coherer._administration.access import Cluster, opened
from coherer._common.logs import Log
from coherer.console import passwords
from coherer.console.facts import Facts
from coherer.console.guard import Guard
from coherer.console.options import DEFAULT_ACCOUNT, ConsoleOptions
from coherer.console.pages.common import Console
from coherer.console.pages.dead_letters import DeadLetters
from coherer.console.pages.entry import Entry
from coherer.console.pages.groups import Groups
from coherer.console.pages.messages import Messages
from coherer.console.pages.servers import Servers
from coherer.console.pages.topics import Topics
from coherer.console.passwords import Account, Passwords, hashed
from coherer.console.sampling import Sampler
from coherer.console.sessions import Sessions
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))


def passwords_of(options: ConsoleOptions) -> Passwords:
    """The accounts of the console: those in its file, and the one of `console_password`.

    Raises:
        UsageError: the file cannot be read, or is malformed.
    """
    accounts = {} if options.accounts is None else passwords.read(options.accounts)
    if options.console_password is not None:
        accounts[DEFAULT_ACCOUNT] = Account(DEFAULT_ACCOUNT, hashed(options.console_password))
    return Passwords(accounts)


@asynccontextmanager
async def running(options: ConsoleOptions) -> AsyncGenerator[Starlette]:
    """Connect to the cluster, start sampling, and yield the application of the console.

    Raises:
        UsageError: the URL or the accounts are malformed.
    """
    found = passwords_of(options)
    async with opened(
        options.url,
        user=options.user,
        password=options.password,
        admin=options.admin,
        token=options.token,
    ) as cluster:
        app, console = application(options, cluster, found)
        sampler = Sampler(console.facts, console.history, options.sample_ms)
        sampling = asyncio.create_task(sampler.run(), name="sample the cluster")
        try:
            yield app
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await console.jobs.close()
            await console.facts.close()


class _Name(Convertor[str]):
    """A name in a path, which `Guard` leaves encoded: a group of TubeMQ may have a `/` or `%`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


def application(
    options: ConsoleOptions, cluster: Cluster, accounts: Passwords
) -> tuple[Starlette, Console]:
    """Build the application from its parts."""
    # Browsers send cookies to all ports of a host, so each console has its own cookie name.
    place = f"{options.host}:{options.port} {options.url}"
    name = f"coherer-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    sessions = Sessions(name, secure=options.secure)
    console = Console(options, Facts(cluster), accounts, sessions)
    parts = (Entry, DeadLetters, Topics, Groups, Messages, Servers)
    static = StaticFiles(directory=Path(str(files("coherer.console"))) / "static")
    routes = [route for part in parts for route in part(console).routes()]
    for route in routes:
        names: dict[str, Convertor[Any]] = dict.fromkeys(route.param_convertors, _Name())
        route.param_convertors = names

    async def failed(request: Request, error: Exception) -> Response:
        if not isinstance(error, CohererError):
            raise error
        _log.warning("Cannot show %s: %s", request.url.path, error)
        return console.failure(request, error)

    async def not_found(request: Request, error: Exception) -> Response:
        del error
        return console.refusal(request, "This page does not exist.", 404)

    app = Starlette(
        routes=[*routes, Mount("/static", static, name="static")],
        middleware=[Middleware(Guard, options=options, sessions=sessions)],
        exception_handlers={CohererError: failed, 404: not_found},
    )
    return app, console
