"""Messages: searching by id, key, time or position; one message with its history; sending one."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coherer import admin
from coherer._administration import messages
from coherer._administration.messages import Search
from coherer._administration.trace import trace
from coherer._record.properties import number_in
from coherer.console.pages.common import Console, changing, moment
from coherer.errors import CohererError, RefusedError, UsageError
from coherer.message import Message, Receipt

LIMIT: Final = 50
"""The maximum number of messages that a search shows."""

SCAN_MAX: Final = 5_000
"""The maximum number of messages that a search reads; it limits the cost for the broker."""

ID_SCAN_MAX: Final = 20_000

SENT_MAX: Final = 1_000
"""The number of sent forms that are remembered."""

WAYS: Final = {"time": "Time", "id": "Id", "key": "Key", "place": "Partition and offset"}


class Messages:
    """Handlers of messages."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._sent: dict[bytes, asyncio.Future[Receipt]] = {}
        console.forms["/send"] = self._again

    def routes(self) -> list[Route]:
        return [
            Route("/messages", self.search, methods=["GET"]),
            Route("/messages/view", self.view, methods=["GET"]),
            Route("/messages/body", self.body, methods=["GET"]),
            Route("/send", self.show_send, methods=["GET"]),
            Route("/send", changing(self._console, self.send), methods=["POST"]),
        ]

    async def search(self, request: Request) -> Response:
        """The form, and the messages found."""
        given = dict(request.query_params)
        found: Search | None = None
        problem: str | None = None
        if given.get("topic") or given.get("id"):
            try:
                found = await self._found(given.get("by", "time"), given)
            except CohererError as error:
                problem = str(error)
        return await self._search_page(request, given, found, problem, 200)

    async def _search_page(
        self,
        request: Request,
        given: dict[str, str],
        found: Search | None,
        problem: str | None,
        status: int,
    ) -> Response:
        by = given.get("by", "time")
        return self._console.render(
            request,
            "messages.html",
            status=status,
            topics=await self._console.facts.topic_names(),
            given={name: given.get(name, "") for name in _FIELDS},
            by=by if by in WAYS else "time",
            ways=WAYS,
            found=found,
            problem=problem,
            limit=LIMIT,
        )

    async def _found(self, by: str, given: dict[str, str]) -> Search:
        cluster, topic = self._console.facts.cluster, given.get("topic", "").strip()
        if by == "id":
            message = await messages.by_id(
                cluster, given.get("id", "").strip(), topic=topic or None, limit=ID_SCAN_MAX
            )
            return Search((message,) if message else (), complete=True, scanned=0)
        if by == "key":
            return await messages.by_key(cluster, topic, given.get("key", "").strip(), limit=LIMIT)
        if by == "place":
            message = await self._at(topic, given)
            return Search((message,) if message else (), complete=True, scanned=0)
        text = given.get("contains", "").encode()

        def matches(message: admin.Message) -> bool:
            return text in message.body and given.get("tag", "") in {"", message.tag}

        return await messages.search(
            cluster,
            topic,
            begin=moment(given.get("since")),
            end=moment(given.get("until")),
            matches=matches,
            limit=LIMIT,
            scan_max=SCAN_MAX,
        )

    async def _at(self, topic: str, given: dict[str, str]) -> admin.Message | None:
        partition, offset = number_in(given.get("partition")), number_in(given.get("offset"))
        if partition is None or offset is None:
            raise UsageError("Give a partition and an offset, both as numbers.")
        return await messages.at(
            self._console.facts.cluster,
            topic,
            partition,
            offset,
            broker=given.get("broker") or None,
        )

    async def _message(self, request: Request) -> admin.Message | None:
        """The message that the URL names: by its offset if the URL has one, otherwise by its id."""
        given = dict(request.query_params)
        if given.get("offset"):
            return await self._at(given.get("topic", ""), given)
        return await messages.by_id(
            self._console.facts.cluster,
            given.get("id", ""),
            topic=given.get("topic") or None,
            limit=ID_SCAN_MAX,
        )

    async def view(self, request: Request) -> Response:
        """One message, or the search form if the id in the URL is wrong."""
        given = dict(request.query_params)
        try:
            message = await self._message(request)
        except (UsageError, RefusedError) as error:
            if given.get("offset"):
                raise
            status = 400 if isinstance(error, UsageError) else 404
            return await self._search_page(request, {**given, "by": "id"}, None, str(error), status)
        if message is None:
            return self._gone(request)
        found = await trace(self._console.facts.cluster, message)
        return self._console.render(request, "message.html", message=message, trace=found)

    async def body(self, request: Request) -> Response:
        """The payload of a message, as a file."""
        message = await self._message(request)
        if message is None:
            return self._gone(request)
        name = quote(f"{message.topic}-{message.partition}-{message.offset}", safe="")
        return Response(
            message.body,
            media_type="application/octet-stream",
            headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
        )

    def _gone(self, request: Request) -> Response:
        text = "The message does not exist. Brokers delete messages after the retention time."
        return self._console.refusal(request, text, 404)

    async def show_send(self, request: Request) -> Response:
        """The form for sending."""
        given = {name: request.query_params.get(name, "") for name in _SENT}
        return await self._send_page(request, given)

    async def _send_page(
        self,
        request: Request,
        given: dict[str, str],
        *,
        problem: str | None = None,
        receipt: object = None,
        repeated: bool = False,
        status: int = 200,
    ) -> Response:
        return self._console.render(
            request,
            "send.html",
            status=status,
            topics=await self._console.facts.topic_names(),
            given=given,
            problem=problem,
            receipt=receipt,
            repeated=repeated,
            form=secrets.token_hex(16),
        )

    async def _again(self, request: Request, form: FormData, problem: str, status: int) -> Response:
        given = {name: str(form.get(name, "")) for name in _SENT}
        return await self._send_page(request, given, problem=problem, status=status)

    async def send(self, request: Request, form: FormData) -> Response:
        """Send a message, once: a page that is reloaded, or a double click, sends nothing."""
        given = {name: str(form.get(name, "")) for name in _SENT}
        page = str(form.get("form", "")) or secrets.token_hex(16)
        key = hashlib.sha256(repr((page, given)).encode()).digest()
        known = self._sent.get(key)
        sending = self._sent[key] = known or asyncio.ensure_future(self._send(given))
        while len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]
        try:
            receipt = await asyncio.shield(sending)
        except CohererError as error:
            self._sent.pop(key, None)
            return await self._send_page(request, given, problem=str(error), status=400)
        self._console.facts.forget()
        return await self._send_page(request, given, receipt=receipt, repeated=known is not None)

    async def _send(self, given: dict[str, str]) -> Receipt:
        message = message_of(given, keys=self._console.facts.rocket is not None)
        async with self._console.facts.cluster.client.producer() as producer:
            return await producer.send(message)


_FIELDS: Final = (
    *("topic", "id", "key", "since", "until", "tag", "contains"),
    *("broker", "partition", "offset"),
)
_SENT: Final = ("topic", "tag", "keys", "properties", "body")


def message_of(given: dict[str, str], *, keys: bool) -> Message:
    """Make the message that a form describes.

    Raises:
        UsageError: a property is malformed.

    >>> message_of({"topic": "t", "body": "x", "properties": "a=1"}, keys=True).properties
    {'a': '1'}
    """
    properties: dict[str, str] = {}
    for line in given.get("properties", "").splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"The property {line!r} has no value.", hint="Write name=value.")
        properties[name.strip()] = value.strip()
    words: Sequence[str] = given.get("keys", "").split()
    if words and not keys:
        raise UsageError("TubeMQ's messages have no keys.")
    return Message(
        given.get("topic", "").strip(),
        given.get("body", "").replace("\r\n", "\n").encode(),
        tag=given.get("tag", "").strip() or None,
        keys=tuple(words),
        properties=properties,
    )
