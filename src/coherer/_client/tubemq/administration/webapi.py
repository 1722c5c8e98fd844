"""Calls of TubeMQ's HTTP administration: one request, one answer, one connection.

Changes are sent as a form by POST, so that the token is not in any log of addresses. A standby
master answers with a redirection, and the call follows it with the same form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import h11
import msgspec

from coherer import _net as net
from coherer import limits
from coherer._client.engine.tasks import retrieve
from coherer._common.decoding import decoder
from coherer._common.masking import masked_url
from coherer._wire.tubemq.codes import NOT_ACTIVE
from coherer.errors import (
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)

T = TypeVar("T")

JAVA_OFFSET_STEP: Final = 28
"""How far an offset of a Java broker moves with a message: the bytes of an index record."""

_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_REDIRECTIONS_MAX = 3
OK: Final = 200
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
_TEXT_CHARS_MAX = 500
_NAMES_MAX = 100
_UNAUTHORIZED = (
    "Is the token right (--token)? A node with accounts needs an account (--user, --password), or "
    "the token that it was started with (--admin-token)."
)
_ELECTING = "Several masters elect one of them, which takes seconds. Try again."
_DEFAULT_PORTS = {"http": 80, "https": 443}


class NotActiveError(UnavailableError):
    """This master is a standby, and has done nothing. Another one may be active."""


class Answer(msgspec.Struct, Generic[T], rename="camel", kw_only=True):
    """The JSON around every answer; masters fill `data`, brokers mostly `data_set`.

    Args:
        result: whether the call was served; single items may have failed.
        err_code: 0, or a number like those of HTTP.
        data_set: the records, of most methods of brokers.
        offset_step: how far an offset moves with one message; not reported by Java's brokers.
    """

    result: bool
    err_code: int = 0
    err_msg: str = ""
    data: list[T] = []
    data_set: list[T] = []
    offset_step: int = JAVA_OFFSET_STEP


async def for_names(
    ask: Callable[[Mapping[str, str]], Awaitable[Answer[T]]], field: str, names: Collection[str]
) -> Answer[T]:
    """Query a server for these names; without names, for everything.

    Java's servers refuse more than 100 names in one call (CFG_BATCH_RECORD_OPERATE_MAX_COUNT).

    Args:
        ask: the query, which takes its parameters.
    """
    if not names:
        return await ask({})
    ordered = sorted(names)
    parts = [ordered[n : n + _NAMES_MAX] for n in range(0, len(ordered), _NAMES_MAX)]
    answers = await asyncio.gather(*(ask({field: ",".join(part)}) for part in parts))
    return Answer(
        result=True,
        data=[record for answer in answers for record in answer.data],
        data_set=[record for answer in answers for record in answer.data_set],
        offset_step=answers[0].offset_step,
    )


class Endpoint(msgspec.Struct, frozen=True):
    """The address of an administration.

    >>> Endpoint.parse("http://10.0.0.1:8080")
    Endpoint(scheme='http', host='10.0.0.1', port=8080, path='/webapi.htm')
    """

    scheme: str
    host: str
    port: int
    path: str = "/webapi.htm"

    @property
    def server(self) -> str:
        """Its name in errors."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read a URL; without a scheme it is http.

        Raises:
            UsageError: it is not a valid URL.
        """
        text = url.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise UsageError(
                f"{masked_url(url)!r} is not a valid URL of an administration.",
                hint="It looks like http://127.0.0.1:8080.",
            )
        path = parts.path if parts.path.strip("/") else "/webapi.htm"
        return cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme], path)


class WebApi:
    """Calls one administration.

    Args:
        tls: for https; the system's authorities are trusted when None.
        timeout_ms: for one call with its redirections.
        authorization: makes the header of that name; None, or an empty text, for no header. Java's
            servers do not look at it.

    Attributes:
        master_id: the run of the master that sent the last answer; "" if it does not report it.
        broker_id: number, host and port of the broker that sent it; "" if it does not report them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tls: net.TlsOptions | None,
        timeout_ms: int,
        authorization: Callable[[], str] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.master_id = self.broker_id = ""
        self._authorization = authorization
        self._tls = tls
        self._timeout_ms = timeout_ms

    async def call(
        self, item: type[T], method: str, parameters: Mapping[str, str], *, post: bool = False
    ) -> Answer[T]:
        """Call a method; the answer with records of the type `item`.

        Raises:
            UnavailableError: no connection, or no answer in time.
            RefusedError: the call was refused.
            ProtocolError: the answer is invalid.
        """
        form = urlencode({"method": method, **parameters})
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                status, body = await self._follow(form, post=post)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{method}: no answer within {self._timeout_ms} ms.", server=self.endpoint.server
            ) from None
        return self._read(item, method, status, body)

    async def page(self) -> tuple[int, bytes]:
        """Fetch the status and body of the page at the endpoint's path.

        Raises:
            UnavailableError: no connection, or no answer in time.
            ProtocolError: the answer is invalid.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._follow("", post=False)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self.endpoint.path}: no answer within {self._timeout_ms} ms.",
                server=self.endpoint.server,
            ) from None

    async def _follow(self, form: str, *, post: bool) -> tuple[int, bytes]:
        endpoint, target = self.endpoint, self.endpoint.path
        if not post and form:
            target = f"{target}?{form}"
        for _ in range(_REDIRECTIONS_MAX):
            exchange = await net.dial(
                endpoint.host,
                endpoint.port,
                _Exchange,
                tls=(self._tls or net.TlsOptions()) if endpoint.scheme == "https" else None,
                timeout_ms=self._timeout_ms,
            )
            shown = "" if self._authorization is None else self._authorization()
            extra = {"Authorization": shown} if shown else {}
            status, body, said = await exchange.ask(
                endpoint.server, target, form if post else None, extra
            )
            location = said.get("location", "")
            if status not in _REDIRECTIONS or not location:
                self.master_id = said.get("coherer-master", "")
                self.broker_id = said.get("coherer-broker", "")
                return status, body
            location = urljoin(f"{endpoint.scheme}://{endpoint.server}{target}", location)
            endpoint = Endpoint.parse(location)
            parts = urlsplit(location)
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        raise UnavailableError(
            "Redirected in circles: perhaps no master is active now.",
            server=self.endpoint.server,
            hint=_ELECTING,
        )

    def _read(self, item: type[T], method: str, status: int, body: bytes) -> Answer[T]:
        server = self.endpoint.server
        try:
            answer = decoder(Answer[item], strict=False).decode(body)  # type: ignore[valid-type]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if status >= 400:
                text = body[:_TEXT_CHARS_MAX].decode("utf-8", "replace").strip()
                reason = f": {text}" if status == FORBIDDEN and text else "."
                raise RefusedError(
                    f"{method}: HTTP {status}{reason}", server=server, code=status
                ) from None
            raise ProtocolError(f"{method}: {error}", server=server) from error
        if answer.err_code == NOT_ACTIVE:
            raise NotActiveError(f"{method}: {answer.err_msg}.", server=server, hint=_ELECTING)
        if not answer.result:
            raise RefusedError(
                f"{method}: {answer.err_msg.rstrip('!.')}.",
                server=server,
                code=answer.err_code,
                hint=_UNAUTHORIZED if "unauthorized" in answer.err_msg else "",
            )
        return answer


class _Exchange:
    """One request and its answer."""

    def __init__(self, connection: net.Connection) -> None:
        self._connection = connection
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._said: dict[str, str] = {}
        self._body = bytearray()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(retrieve)  # `ask` may never be called

    async def ask(
        self, host: str, target: str, form: str | None, extra: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body, and headers by their names in lower case."""
        body = b"" if form is None else form.encode()
        headers = [("Host", host), ("Connection", "close"), *extra.items()]
        if form is not None:
            headers += [
                ("Content-Type", "application/x-www-form-urlencoded"),
                ("Content-Length", str(len(body))),
            ]
        request = h11.Request(
            method="GET" if form is None else "POST", target=target, headers=headers
        )
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._connection.write(self._http.send(event) or b"")
        try:
            await self._done
        finally:
            self._connection.close()
        return self._status, bytes(self._body), self._said

    def received(self, data: bytes) -> None:
        self._feed(data)

    def closed(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None and self._status:
            self._feed(b"")  # the end of the connection may be the end of the answer
        if not self._done.done():
            self._fail(DisconnectedError("The connection broke.", server=self._connection.peer))

    def _feed(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            self._take()
        except h11.RemoteProtocolError as error:
            self._fail(ProtocolError(f"Not HTTP: {error}.", server=self._connection.peer))

    def _take(self) -> None:
        while not self._done.done():
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Response):
                self._status = event.status_code
                self._said = {
                    name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
                }
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > limits.ADMIN_ANSWER_BYTES_MAX:
                    self._fail(ProtocolError("Too long an answer.", server=self._connection.peer))
            elif isinstance(event, h11.EndOfMessage):
                self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
