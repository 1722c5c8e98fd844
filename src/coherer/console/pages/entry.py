"""Login and logout, the data of charts, the progress of jobs, and health."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from coherer._administration.overview import BEHIND_MAX
from coherer.console.charts import chart
from coherer.console.guard import KEPT, parse_form, read_form, safe_path
from coherer.console.history import series_name
from coherer.console.options import DEFAULT_ACCOUNT
from coherer.console.pages.common import Console, Sorting, changing
from coherer.console.sessions import Session, is_token

WHOLE_MAX: Final = 30
"""If there are more groups, the overview asks only for those that lagged most when sampled."""

_CHECKS_AT_ONCE = 2
"""The number of concurrent password checks; each takes 16 MiB."""

KEPT_CHARS: Final = 2 * 1024 * 1024
"""The largest form that the login page keeps; encoded once more it fits into a form."""

_NOT_YET: Final = "You are logged in again. Nothing was done yet: check the form, and send it."


class Entry:
    """Handlers of login, logout, chart data, jobs and health."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)

    def routes(self) -> list[Route]:
        return [
            Route("/", self.first, methods=["GET"]),
            Route("/overview", self.overview, methods=["GET"]),
            Route("/login", self.show_login, methods=["GET"]),
            Route("/login", self.login, methods=["POST"]),
            Route(KEPT, self.keep, methods=["POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            Route("/series", self.series, methods=["GET"]),
            Route("/jobs/{job}", self.job, methods=["GET"]),
            Route("/jobs/{job}/cancel", changing(self._console, self.cancel), methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def first(self, request: Request) -> Response:
        """Redirect to the first page."""
        del request
        return RedirectResponse("/overview", 303)

    async def overview(self, request: Request) -> Response:
        """The state of the cluster: the problems, the rates, and the groups that lag most."""
        console = self._console
        history = console.history
        names = await console.facts.group_names()
        few = len(names) <= WHOLE_MAX
        lags = {name: history.last(series_name("group", name, "lag")) for name in names}
        ranked = Sorting("lag", largest_first=True).ordered(names, lags.get)
        found = await console.facts.overview(*([] if few else ranked[:BEHIND_MAX]))
        masters = [one.name for one in found.brokers if one.role != "slave"]
        series = {series_name("broker", name, "in"): f"{name}: written" for name in masters}
        series |= {series_name("broker", name, "out"): f"{name}: delivered" for name in masters}
        known = [one for one in found.brokers if one.in_per_s is not None]
        return console.render(
            request,
            "overview.html",
            found=found,
            few=few,
            running=sum(one.status == "running" for one in found.brokers),
            in_per_s=sum(one.in_per_s or 0 for one in known) if known else None,
            out_per_s=sum(one.out_per_s or 0 for one in known) if known else None,
            rates=console.chart(request, "Messages per second", series),
        )

    async def health(self, request: Request) -> Response:
        """The health check."""
        del request
        return PlainTextResponse("ok\n")

    async def show_login(self, request: Request) -> Response:
        """The login form; only without a session that has an account."""
        target = safe_path(request.query_params.get("next", "/"))
        if not self._console.options.has_login or _account(request) is not None:
            return RedirectResponse(target, 303)
        return self._login_page(request, None, 200, target=target)

    async def keep(self, request: Request) -> Response:
        """The login form after a form without a session, which it keeps.

        The browser keeps the text, not the console: anybody can send forms without a session.
        """
        path: str | None = request.scope.get("kept_path")
        if path is None or path == "/logout":  # whoever has no session is logged out
            return RedirectResponse("/login", 303)
        form = await read_form(request)
        pairs = [] if form is None else [one for one in form.multi_items() if one[0] != "csrf"]
        kept = urlencode([(name, str(value)) for name, value in pairs])
        if form is None or len(kept) > KEPT_CHARS:
            text = "Your session has ended, and the form was too large to keep. Nothing was done."
            return self._login_page(request, text, 401)
        text = "Your session has ended. Log in to continue with the form; nothing was done yet."
        return self._login_page(request, text, 401, kept=(path, kept))

    def _login_page(
        self,
        request: Request,
        problem: str | None,
        status: int,
        *,
        name: str = DEFAULT_ACCOUNT,
        target: str = "/",
        kept: tuple[str, str] = ("", ""),
    ) -> Response:
        # Each tab of a browser has its form, and all of them have one cookie.
        session = request.scope["session"] or self._console.sessions.new(None)
        request.scope["session"] = session
        response = self._console.render(
            request,
            "login.html",
            status=status,
            problem=problem,
            name=name,
            next_path=target,
            kept_path=kept[0],
            kept=kept[1],
        )
        self._console.sessions.set(response, session)
        return response

    async def login(self, request: Request) -> Response:
        """Check a name and a password."""
        console = self._console
        before: Session | None = request.scope["session"]
        form = await read_form(request) or FormData()
        if _account(request) is not None:  # another tab has logged in meanwhile
            return await self._enter(request, form)
        name, password = str(form.get("name", "")), str(form.get("password", ""))
        page = partial(
            self._login_page,
            request,
            name=name,
            target=safe_path(str(form.get("next", "/"))),
            kept=_kept(form),
        )
        if before is None or not is_token(before, form.get("csrf")):
            return page("The form has expired. Try again.", 403)
        peer = request.client.host if request.client is not None else ""
        wait_s = console.limit.begin(name, peer, time.monotonic())
        if wait_s:
            return page(f"Too many wrong passwords. Wait {math.ceil(wait_s)} seconds.", 429)
        async with self._checks:
            account = await asyncio.to_thread(console.passwords.check, name, password)
        if account is None:
            return page("The name or the password is wrong.", 401)
        console.limit.succeeded(name, peer, time.monotonic())
        session = request.scope["session"] = console.sessions.new(account.name, account.rights)
        response = await self._enter(request, form)
        console.sessions.set(response, session)
        return response

    async def _enter(self, request: Request, form: FormData) -> Response:
        """Go to the page, or show the form, that the login has interrupted."""
        kept_path, kept_text = _kept(form)
        fields = parse_form(kept_text.encode())
        if kept_path and fields is not None:
            return await self._console.again(request, kept_path, fields, _NOT_YET, 200)
        return RedirectResponse(safe_path(str(form.get("next", "/"))), 303)

    async def logout(self, request: Request) -> Response:
        """End the session."""
        session: Session = request.scope["session"]
        form = await read_form(request)
        if form is None or not is_token(session, form.get("csrf")):
            return self._console.refusal(request, "This form has expired.", 403)
        response = RedirectResponse("/login", 303)
        self._console.sessions.end(response, session)
        return response

    async def series(self, request: Request) -> Response:
        """The lines of a chart as JSON."""
        labels: dict[str, str] = {}
        for text in request.query_params.getlist("series"):
            name, _, label = text.partition("=")
            labels[name] = label
        console = self._console
        made = chart(console.history, "", labels, console.span(request), time.time())
        body = {"lines": made.lines, "begin": made.now_s - made.span_s, "end": made.now_s}
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def job(self, request: Request) -> Response:
        """The progress of a job."""
        job = self._console.jobs.get(request.path_params["job"])
        if job is None:
            text = "This job is unknown: it ended long ago, or the console was restarted."
            return self._console.refusal(request, text, 404)
        return self._console.render(request, "job.html", job=job)

    async def cancel(self, request: Request, form: FormData) -> Response:
        """Stop a job."""
        del form
        job = self._console.jobs.get(request.path_params["job"])
        if job is None:
            return self._console.refusal(request, "This job is unknown.", 404)
        await self._console.jobs.cancel(job)
        return RedirectResponse(f"/jobs/{job.id}", 303)


def _account(request: Request) -> str | None:
    """The account of the session, if it has one."""
    session: Session | None = request.scope["session"]
    return None if session is None else session.account


def _kept(form: FormData) -> tuple[str, str]:
    """The path and the text of the form that the login page has kept; empty without one."""
    path = str(form.get("kept_path", ""))
    return (safe_path(path), str(form.get("kept", ""))) if path else ("", "")
