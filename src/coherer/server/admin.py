"""TubeMQ's HTTP administration: a table of methods behind one address (section 10).

`GET /webapi.htm?method=<name>&…` asks the master, any other path the broker, as it is with Java's
servers, which have a port for each. Parameters come in the address or as a POSTed form; answers are
JSON. Methods that change the master need its token.

A browser's script from another origin is refused, so that no web page can order a node on the same
machine about; Java's servers have no such check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import h11
import msgspec

from coherer import limits
from coherer.errors import CohererError
from coherer.net import Connection, Receiver
from coherer.server.admin_params import Answer, ParamError, Params, refused

_log = logging.getLogger(__name__)

MASTER_PATH: Final = "/webapi.htm"
BROKER_PATH: Final = "/broker.htm"

NOT_ACTIVE: Final = 511
"""errCode of a standby that does not know the active master."""

_Headers: TypeAlias = "list[tuple[str, str]]"
_Reply: TypeAlias = "tuple[int, _Headers, bytes]"


class Method(msgspec.Struct, frozen=True):
    """A row of a table of methods.

    Args:
        call: takes the parameters, gives the answer; `ParamError` and our own errors become
            answers that refuse.
        changes: it changes something, and needs the token.
    """

    call: Callable[[Params], Answer]
    changes: bool = False


class AdminApp:
    """A table of methods.

    Args:
        methods: by name.
        token: what changes must give as `confModAuthToken`; None asks for nothing.
        closed: why nothing is served now; None while everything is.

    >>> app = AdminApp({"admin_ping": Method(lambda params: {"result": True})}, token="abc")
    >>> app.handle("admin_ping", {})
    {'result': True}
    >>> app.handle("admin_pong", {})["errMsg"]
    'Bad request from client, unsupported method!'
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        token: str | None = None,
        *,
        closed: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._methods = methods
        self._token = token
        self._closed = closed

    def handle(self, method: str, params: Mapping[str, str]) -> Answer:
        """Calls a method; never raises for what a caller did."""
        given = Params(params)
        row = self._methods.get(method)
        if not method:
            return refused("Bad request from client, Please take with method parameter!")
        if row is None:
            return refused("Bad request from client, unsupported method!")
        shown = given.get("confModAuthToken")
        # A token that is given must be right, also where none is needed.
        if self._token is not None and shown != self._token and (row.changes or shown):
            return refused("Bad request from client, illegal access, unauthorized request!")
        reason = self._closed()
        if reason is not None:
            return refused(reason, NOT_ACTIVE)
        try:
            return row.call(given)
        except ParamError as error:
            return refused(str(error))
        except CohererError as error:
            return refused(error.text)


class Admin(Protocol):
    """What answers one path."""

    def handle(self, method: str, params: Mapping[str, str]) -> Answer:
        """Calls a method."""
        ...


class AdminService:
    """Gives administrations to the network: `net.listen(host, port, AdminService(…).make)`.

    Args:
        master: answers `/webapi.htm`; None where there is no master.
        broker: answers every other path; None where there is no broker.
        elsewhere: gives the base URL of the active master's administration while this master is
            a standby, else None.
    """

    def __init__(
        self,
        master: Admin | None = None,
        broker: Admin | None = None,
        *,
        elsewhere: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._master = master
        self._broker = broker
        self._elsewhere = elsewhere

    def make(self, connection: Connection) -> Receiver:
        """Serves a connection."""
        return _Visitor(self, connection)

    def respond(self, target: str, form: str) -> _Reply:
        """Status, headers and body of an answer.

        Args:
            target: path and query.
            form: what was POSTed; "" for nothing.
        """
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
            return 404, [], b""
        base = self._elsewhere() if is_master else None
        if base is not None:
            return 302, [("Location", base.rstrip("/") + target)], b""
        answer = msgspec.json.encode(admin.handle(params.pop("method", "").strip(), params))
        callback = params.get("callback", "")
        if callback.isidentifier():
            text = callback.encode() + b"(" + answer + b")"
            return 200, [("Content-Type", "text/plain;charset=utf-8")], text
        return 200, [("Content-Type", "application/json;charset=utf-8")], answer


class _Visitor:
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

    def received(self, data: bytes) -> None:
        """One socket read."""
        self._unanswered_bytes += len(data)
        try:
            self._http.receive_data(data)
            while self._step():
                pass
        except h11.RemoteProtocolError as error:
            self._fail(error)
        self._connection.keeps((self._unanswered_bytes, 0))

    def closed(self, error: Exception | None) -> None:
        """Nothing is left to do."""

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
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        if request.method not in {b"GET", b"POST"}:
            self._send(405, [("Allow", "GET, POST")], b"")
        elif _is_foreign(headers):
            self._send(403, [], b"")
        else:
            self._send(*self._reply(request))
        if self._http.our_state is h11.MUST_CLOSE:
            self._connection.close()
        else:
            self._http.start_next_cycle()

    def _reply(self, request: h11.Request) -> _Reply:
        try:
            form = self._form.decode() if request.method == b"POST" else ""
            return self._service.respond(request.target.decode("ascii"), form)
        except ValueError:  # not UTF-8, or no address
            return 400, [], b""
        except Exception:  # noqa: BLE001 - a bug in one answer must not end the connection
            _log.exception("The administration failed at %s", request.target)
            return 500, [], b""

    def _send(self, status: int, headers: _Headers, body: bytes) -> None:
        head = h11.Response(
            status_code=status,
            headers=[*headers, ("Content-Length", str(len(body))), ("Cache-Control", "no-store")],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self._connection.write(self._http.send(event) or b"")

    def _fail(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._send(error.error_status_hint, [("Connection", "close")], b"")
        self._connection.close()


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page from somewhere else asks."""
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
