"""TubeMQ's HTTP administration: a table of methods, and the HTTP server that calls them.

See docs/protocol/tubemq.md, section 10, and docs/decisions/h11.md for why this is not a framework.

`GET /webapi.htm?method=<name>&…` calls the master, any other path the broker; Java's servers have a
port for each. Parameters come from the query or from a POSTed form; responses are JSON. Methods
that change something need the token, or an account where the node has accounts; then queries need
one of them, too (`Guard`).

Web pages cannot control a node. Java's servers do not check any of this:

* A request whose `Host` is a name that the node does not use is refused. A page can resolve its own
  name to this machine (DNS rebinding), but it cannot change the header. IP addresses need no check,
  because a page that was loaded from an address has that address as its origin.
* `Origin`, `Referer` and `Sec-Fetch-Site`, where present, must name this administration.
* A change that a browser requests must be a POST with an `Origin`. Some browsers omit all other
  headers for an image or a link to a plain `http` address, so `User-Agent` counts, too.

Java's own tools use GET and send none of these headers; they are served as before.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import h11
import msgspec

from coherer import limits
from coherer._common.guesses import ADDRESS
from coherer._common.logs import Log
from coherer._common.other_protocols import not_a_frame
from coherer._net import Connection, Receiver
from coherer._server.http.app import SLOWED, AdminApp, Headers, Page, Pages, Reply, SavedFiles
from coherer._server.http.guard import Authorization, Decision
from coherer._server.http.params import refused
from coherer.errors import StoreError

_log = Log(logging.getLogger(__name__))

MASTER_PATH: Final = "/webapi.htm"

_METHOD_PATHS: Final = frozenset({"", "/", MASTER_PATH, "/broker.htm"})
"""The paths of Java's administration. Others are administration only if they name a method."""

MASTER_HEADER: Final = "Coherer-Master"
BROKER_HEADER: Final = "Coherer-Broker"
"""Response headers with the identity of the master and of the broker."""

HEALTH: Final = "/health/"

_COMPRESSED_MIN: Final = 16_384
"""Shorter pages are sent as they are."""

_ACCEPTED: Final = b"accept-encoding"


class AdminService:
    """Serves administrations over HTTP: `net.listen(host, port, AdminService(…).make)`.

    Args:
        master: handles `/webapi.htm`; None without a master.
        broker: handles every other path; None without a broker.
        active_admin_url: returns the base URL of the active master's administration while this
            master is a standby, else None.
        names: the host names of this node; requests with other names in `Host` are refused. None
            accepts every name.
        master_id: the random id of this run of the master, which it also tells its clients
            (`RegisterResponseM2P.masterId`); a header of every response.
        broker_id: id and address of the broker, as the master knows it; a header of every response.
        files: writes files; a request that changes one is answered after it is on disk.
        news: called before a request; returns a function that is called after a change and returns
            an awaitable until name servers know the changed topics, or None.
        pages: further pages, such as the metrics.
    """

    def __init__(
        self,
        master: AdminApp | None = None,
        broker: AdminApp | None = None,
        *,
        active_admin_url: Callable[[], str | None] = lambda: None,
        names: Collection[str] | None = None,
        master_id: str = "",
        broker_id: str = "",
        files: SavedFiles | None = None,
        news: Callable[[], Callable[[], Awaitable[None] | None]] = lambda: lambda: None,
        pages: Pages | None = None,
    ) -> None:
        self._pages = pages or Pages()
        self.files = files
        self.news = news
        self._master = master
        self._broker = broker
        self._active_admin_url = active_admin_url
        self._names = None if names is None else frozenset(name.lower() for name in names)
        self._marks = [
            (name, value)
            for name, value in ((MASTER_HEADER, master_id), (BROKER_HEADER, broker_id))
            if value
        ]

    def make(self, connection: Connection) -> Receiver:
        """Create the receiver of a new connection."""
        return _HttpConnection(self, connection)

    def page(self, target: str, headers: Mapping[str, str], peer: str = "") -> Page | None:
        """Return the page of a path, or a refusal; None if the administration owns the path."""
        path = urlsplit(target).path
        pages = self._pages
        if path in pages.open:
            return pages.open[path]
        if path.startswith(HEALTH):
            return _fixed(404, b"See /health/live and /health/ready.\n")
        if path not in pages.guarded:
            if path in _METHOD_PATHS or "method=" in urlsplit(target).query:
                return None
            return _fixed(404, b"There is no such page. See /health/live and /health/ready.\n")
        wrong = self._wrong_host(headers) or _wrong_origin(headers)
        if wrong:
            return _fixed(403, wrong.encode())
        authorization = Authorization(headers.get("authorization", ""), peer)
        text = b"An account is required.\n"
        if authorization.authorization:
            text = b"The account or its password is wrong, or it may not use HTTP.\n"
        return self._refusal(None, authorization, text, changes=False) or pages.guarded[path]

    def _refusal(
        self, token: str | None, authorization: Authorization, text: bytes, *, changes: bool
    ) -> Page | None:
        guard = self._pages.guard
        decision = guard.decide(token, authorization, changes=changes) if guard else None
        if decision is Decision.REFUSED:
            return _fixed(401, text, ("WWW-Authenticate", "Basic"))
        if decision is Decision.SLOWED:
            return _fixed(429, SLOWED.encode() + b"\n", ("Retry-After", str(ADDRESS.pause_s)))
        return None

    def action(
        self, target: str, form: str, headers: Mapping[str, str], peer: str = ""
    ) -> Page | None:
        """Return the handler of a POST, or a refusal; None if the path has no action."""
        action = self._pages.actions.get(urlsplit(target).path)
        if action is None:
            return None
        wrong = self._wrong_host(headers) or _wrong_origin(headers)
        if wrong or (_is_browser(headers) and "origin" not in headers):
            return _fixed(403, (wrong or "A browser must send an Origin.").encode())
        authorization = Authorization(headers.get("authorization", ""), peer)
        text = b"A token (Authorization: Bearer) or an account is required.\n"
        if authorization.authorization:
            text = b"The account, password or token is wrong, or may not make changes.\n"
        refusal = self._refusal(None, authorization, text, changes=True)
        if refusal is not None:
            return refusal
        fields = dict(parse_qsl(form, max_num_fields=limits.ADMIN_FIELDS_MAX))
        return partial(action, fields)

    def respond(
        self, target: str, form: str, headers: Mapping[str, str], *, post: bool, peer: str = ""
    ) -> Reply:
        """Status, headers and body of a response.

        Args:
            target: path and query.
            form: the POSTed form; "" for none.
            headers: of the request, with names in lower case.
            post: whether it is a POST.
            peer: the address of the client.
        """
        wrong = self._wrong_host(headers) or _wrong_origin(headers)
        if wrong:
            return _forbidden(wrong)
        parts = urlsplit(target)
        try:
            pairs = [
                pair
                for text in (parts.query, form)
                for pair in parse_qsl(text, max_num_fields=limits.ADMIN_FIELDS_MAX)
            ]
        except ValueError:
            return 400, [], b"More than %d parameters." % limits.ADMIN_FIELDS_MAX
        params = dict(pairs)
        is_master = parts.path == MASTER_PATH
        admin = self._master if is_master else self._broker
        if admin is None:
            return 404, self._marks, b""
        base = self._active_admin_url() if is_master else None
        if base is not None:
            return 302, [("Location", base.rstrip("/") + target)], b""
        method = params.pop("method", "").strip()
        if admin.changes(method) and _is_browser(headers) and not (post and "origin" in headers):
            return _forbidden("A browser must send a change as a POST with an Origin header.")
        authorization = Authorization(headers.get("authorization", ""), peer)
        answer = msgspec.json.encode(admin.handle(method, params, authorization))
        callback = params.get("callback", "")
        if callback.isidentifier():
            text = callback.encode() + b"(" + answer + b")"
            return 200, [("Content-Type", "text/plain;charset=utf-8"), *self._marks], text
        return 200, [("Content-Type", "application/json;charset=utf-8"), *self._marks], answer

    def _wrong_host(self, headers: Mapping[str, str]) -> str:
        """Why the `Host` header is refused; "" if it is not."""
        given = headers.get("host", "")
        if self._names is None or not given:
            return ""
        try:
            name = (urlsplit(f"//{given}").hostname or "").rstrip(".")
        except ValueError:
            return "The Host header is invalid."
        if name in self._names or _is_address(name):
            return ""
        return (
            f"{name!r} is not a host name of this node. If it should be, start the node with "
            f"--admin-name {name}."
        )


class _HttpConnection:
    """One HTTP connection."""

    def __init__(self, service: AdminService, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=limits.ADMIN_REQUEST_BYTES_MAX
        )
        self._request: h11.Request | None = None
        self._form = bytearray()
        self._unanswered_bytes = 0
        self._late: asyncio.Task[None] | None = None

    def received(self, data: bytes) -> None:
        """Take a socket read."""
        if self._request is None and not self._unanswered_bytes and not data[:1].isalpha():
            # h11 would wait for the end of a line, and the peer for a response in its own protocol.
            self._fail(h11.RemoteProtocolError(not_a_frame("HTTP", data)))
            return
        self._unanswered_bytes += len(data)
        try:
            self._http.receive_data(data)
            self._go_on()
        except h11.RemoteProtocolError as error:
            self._fail(error)
        self._connection.report_unfinished((self._unanswered_bytes, 0))

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Cancel a response that is still waiting."""
        if self._late is not None:
            self._late.cancel()

    def _go_on(self) -> None:
        while self._late is None and self._step():
            pass

    def _step(self) -> bool:
        event = self._http.next_event()
        if isinstance(event, h11.Request):
            self._request = event
            self._form.clear()
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                self._connection.write(self._http.send(go_on) or b"")
        elif isinstance(event, h11.Data):
            self._form += event.data
            if len(self._form) > limits.ADMIN_REQUEST_BYTES_MAX:
                raise h11.RemoteProtocolError("The form is too long.", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            self._answer()
        elif isinstance(event, h11.ConnectionClosed):
            self._connection.close()
            return False
        return event is not h11.NEED_DATA and event is not h11.PAUSED

    def _answer(self) -> None:
        self._unanswered_bytes = 0
        request = self._request
        if request is None:
            return
        if request.method not in {b"GET", b"POST"}:
            self._send(405, [("Allow", "GET, POST")], b"")
        elif (page := self._page(request)) is not None:
            accepted = b",".join([value for name, value in request.headers if name == _ACCEPTED])
            late = self._send_page(page, accepted.decode("latin-1"))
            self._late = asyncio.get_running_loop().create_task(late)
            return
        else:
            files = self._service.files
            before = 0 if files is None else files.changes
            news = self._service.news()
            reply = self._reply(request)
            if files is not None and files.changes != before:
                late = self._send_late(reply, files, news())
                self._late = asyncio.get_running_loop().create_task(late)
                return
            self._send(*reply)
        self._answered()

    def _page(self, request: h11.Request) -> Page | None:
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        peer = self._connection.peer_host
        try:
            if request.method != b"GET":
                target = request.target.decode("ascii")
                return self._service.action(target, self._form.decode(), headers, peer)
            return self._service.page(request.target.decode("ascii"), headers, peer)
        except ValueError:  # an invalid URL
            return None

    async def _send_page(self, page: Page, accepted: str) -> None:
        reply: Reply = 500, [], b""
        try:
            reply = await _compressed(await page(), accepted)
        except Exception:  # noqa: BLE001 - a bug in one answer must not end the connection
            _log.exception("Unhandled error in a page", about=self._connection.peer_host)
        self._resume_after(reply)

    async def _send_late(
        self, reply: Reply, files: SavedFiles, news: Awaitable[None] | None
    ) -> None:
        """Answer a change after it is on disk and name servers know the changed topics."""
        if news is not None:
            await news
        try:
            await files.flush()
        except StoreError as error:
            status, headers, _ = reply
            outcome = "The change took effect, but could not be saved yet"
            if files.loses_unsaved:
                outcome = "The change could not be saved, and is given up"
            text = f"{outcome}: {error.text}"
            reply = status, headers, msgspec.json.encode(refused(text))
        self._resume_after(reply)

    def _resume_after(self, reply: Reply) -> None:
        """Send an answer that was not ready at once, and read the next request."""
        self._late = None
        self._send(*reply)
        self._answered()
        try:
            self._go_on()
        except h11.RemoteProtocolError as error:
            self._fail(error)

    def _answered(self) -> None:
        if self._http.our_state is h11.MUST_CLOSE:
            self._connection.close()
        else:
            self._http.start_next_cycle()

    def _reply(self, request: h11.Request) -> Reply:
        try:
            post = request.method == b"POST"
            form = self._form.decode() if post else ""
            headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
            target, peer = request.target.decode("ascii"), self._connection.peer_host
            return self._service.respond(target, form, headers, post=post, peer=peer)
        except ValueError:  # not UTF-8, or an invalid URL
            return 400, [], b""
        except Exception:  # noqa: BLE001 - a bug in one answer must not end the connection
            # Without the query, which may contain the token.
            _log.exception(
                "Unhandled error in the administration at %s",
                request.target.partition(b"?")[0],
                about=self._connection.peer_host,
            )
            return 500, [], b""

    def _send(self, status: int, headers: Headers, body: bytes) -> None:
        head = h11.Response(
            status_code=status,
            headers=[
                *headers,
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                # A page of another origin must not run a response with a callback as a script.
                ("X-Content-Type-Options", "nosniff"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self._connection.write(self._http.send(event) or b"")

    def _fail(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._send(error.error_status_hint, [("Connection", "close")], b"")
        self._connection.close()


async def _compressed(reply: Reply, accepted: str) -> Reply:
    """Compress a long page for a client that accepts it, in a thread."""
    status, headers, body = reply
    if len(body) < _COMPRESSED_MIN:
        return reply
    headers = [*headers, ("Vary", "Accept-Encoding")]
    if accepts_gzip(accepted):
        body = await asyncio.to_thread(gzip.compress, body, 1, mtime=0)
        headers.append(("Content-Encoding", "gzip"))
    return status, headers, body


def accepts_gzip(accepted: str) -> bool:
    """Whether a client with this `Accept-Encoding` accepts gzip (RFC 9110, 12.5.3).

    >>> [accepts_gzip(text) for text in ("gzip, br", "GZIP;q=0.5", "*", "gzip;q=0, *", "br", "")]
    [True, True, True, False, False, False]
    """
    weights: dict[str, bool] = {}
    for one in accepted.lower().split(","):
        coding, _, rest = one.partition(";")
        name, _, weight = rest.partition("=")
        weights[coding.strip()] = name.strip() != "q" or weight.strip().strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


def _fixed(status: int, text: bytes, *headers: tuple[str, str]) -> Page:
    """Make a page that is always the same."""

    async def page() -> Reply:
        return status, [("Content-Type", "text/plain;charset=utf-8"), *headers], text

    return page


def _wrong_origin(headers: Mapping[str, str]) -> str:
    """Why a request from a page of another origin is refused; "" if it is not."""
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return "The request comes from a page of another origin (Sec-Fetch-Site)."
    for name in ("origin", "referer"):
        given = headers.get(name)
        if given is not None and urlsplit(given).netloc.lower() != headers.get("host", "").lower():
            return f"The request comes from a page of another origin ({name.capitalize()})."
    return ""


def _is_browser(headers: Mapping[str, str]) -> bool:
    """Whether a request may come from a web page. All browsers call themselves Mozilla."""
    if headers.get("user-agent", "").startswith("Mozilla/"):
        return True
    return any(name in {"origin", "referer"} or name.startswith("sec-fetch-") for name in headers)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _forbidden(text: str) -> Reply:
    return 403, [("Content-Type", "text/plain;charset=utf-8")], text.encode()
