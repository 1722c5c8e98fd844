"""The checks of every request: host name, session and form token; and the safe headers.

* A request with an unknown host name is refused. So a page of another site whose name resolves to
  this machine's address (DNS rebinding) has no access.
* Without a session, a page redirects to the login. A form is not handled: it goes to the login page
  (`KEPT`), which keeps its text in the browser and shows it again afterwards.
* A request that changes something is refused unless changes are allowed, for the console and for
  the account, and unless its form has the session's token (`changing` in `pages.common`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from starlette.datastructures import FormData, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coherer.console.options import ConsoleOptions
from coherer.console.sessions import Session, Sessions

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

FORM_BYTES_MAX: Final = 8 * 1024 * 1024
"""The size limit of a form: more than people type, and little memory."""

FORM_FIELDS_MAX: Final = 10_000

KEPT: Final = "/login/kept"
"""The route of forms without a session; the scope has their path as `kept_path`."""

_OPEN: Final = ("/login", "/static/", "/health")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Middleware of all requests."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions, sessions: Sessions) -> None:
        self._app = app
        self._options = options
        self._sessions = sessions
        self._names = {"localhost", platform.node().lower(), options.host.lower()}
        if options.public_url is not None:
            self._names.add((urlsplit(options.public_url).hostname or "").lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with its session."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A decoded path would hide which slashes belong to a name.
        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        scope = {**scope, "path": raw.decode("ascii", "replace")}
        request = Request(scope)
        new: list[Session] = []

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(scope, message, new)
            await send(message)

        refusal = self._refusal(request, new)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        if request.method not in _SAFE and not self._may_pass(request):
            path = request.url.path
            scope = {**scope, "path": KEPT, "raw_path": KEPT.encode(), "kept_path": path}
        await self._app(scope, receive, with_headers)

    def _may_pass(self, request: Request) -> bool:
        """Whether a request has a session with an account, or needs none."""
        session: Session | None = request.scope["session"]
        known = session is not None and session.account is not None
        return known or request.url.path.startswith(_OPEN)

    def _add_headers(self, scope: Scope, message: Message, new: list[Session]) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        if not scope["path"].startswith("/static/"):
            headers.setdefault("Cache-Control", "no-store")
        if self._options.secure:
            headers.setdefault("Strict-Transport-Security", "max-age=31536000")
        for session in new:
            cookie = Response()
            self._sessions.set(cookie, session)
            headers.append("Set-Cookie", cookie.headers["set-cookie"])

    def _refusal(self, request: Request, new: list[Session]) -> Response | None:
        host = request.headers.get("host", "")
        if not self._is_mine(host):
            text = (
                f"The console is not at {host[:200]!r}. Use the address it prints, or start it "
                "with --public-url.\n"
            )
            return PlainTextResponse(text, 400)
        if request.method not in _SAFE and not _same_site(request):
            return PlainTextResponse("The request comes from another site.\n", 403)
        session = self._sessions.of(request)
        if session is None and not self._options.has_login:
            session = self._sessions.new("local", "change")
            if not request.url.path.startswith(("/static/", "/health")):
                new.append(session)
        request.scope["session"] = session
        if self._may_pass(request):
            return None
        if request.headers.get("hx-request") == "true":
            # htmx would insert the login into a part of the page.
            shown = urlsplit(request.headers.get("hx-current-url", ""))
            return Response(status_code=401, headers={"HX-Redirect": _login(shown)})
        if request.method not in _SAFE:
            return None
        return RedirectResponse(_login(urlsplit(str(request.url))), 303)

    def _is_mine(self, host: str) -> bool:
        """Whether a Host header names this console; every IP address is accepted."""
        name = (urlsplit(f"//{host}").hostname or "").lower() if _is_host(host) else ""
        if name in self._names:
            return bool(name)
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _is_host(host: str) -> bool:
    try:
        urlsplit(f"//{host}").port  # noqa: B018 -- it raises
    except ValueError:
        return False
    return bool(host) and not set(host) & set("/?#@\\ ")


def _same_site(request: Request) -> bool:
    """Whether a page of the console sent the request, by the headers of the browser."""
    if request.headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _login(shown: SplitResult) -> str:
    """The path of the login that leads to a page afterwards."""
    path = shown.path + (f"?{shown.query}" if shown.query else "")
    return f"/login?next={quote(path)}" if path else "/login"


def safe_path(path: str) -> str:
    r"""Return a path of the console to redirect to; "/" for anything else.

    >>> [safe_path(one) for one in ("/topics?q=a", "//evil", "/\\evil", "https://evil", "")]
    ['/topics?q=a', '/', '/', '/', '/']
    """
    good = path.startswith("/") and path[1:2] not in {"/", "\\"} and path.isprintable()
    return path if good else "/"


async def read_form(request: Request) -> FormData | None:
    """Return the fields of a form; None if it is too large or malformed."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > FORM_BYTES_MAX:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind != "application/x-www-form-urlencoded":
        return None
    return parse_form(await request.body())


def parse_form(body: bytes) -> FormData | None:
    """Parse an encoded form; None if it is malformed."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        return None
    return FormData([(name, value) for name, value in pairs])
