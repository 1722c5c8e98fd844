"""How kombu's messages are stored: a line of JSON, then the body as it is.

The line has everything but the body: content type and encoding, headers and properties, under
kombu's names. The body is not encoded again, so that its size stays the same and other languages
can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from coherer.integrations.kombu.untyped import dumps, loads

Payload = dict[str, Any]
"""A message as kombu's virtual transports handle it: `body`, `headers`, `properties` and others."""

_END: Final = b"\n"


def encode(payload: Mapping[str, Any]) -> bytes:
    r"""The stored form of a message.

    >>> encode({"body": "[1]", "headers": {}, "properties": {"priority": 0}})
    b'{"headers": {}, "properties": {"priority": 0}}\n[1]'
    """
    body = payload["body"]
    head = dumps({name: value for name, value in payload.items() if name != "body"})
    return head.encode() + _END + (body.encode() if isinstance(body, str) else bytes(body or b""))


def decode(stored: bytes) -> Payload:
    """The message of a stored form.

    Raises:
        ValueError: these bytes were not written by `encode`.
    """
    head, _, body = stored.partition(_END)
    try:
        payload = cast("Payload", loads(head))
        payload["properties"].setdefault("delivery_info", {})
        payload["body"] = body
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError("the message was not sent by kombu") from None
    return payload


def delivery_info(payload: Payload) -> dict[str, Any]:
    """Exchange and routing key, and whether the message may have been delivered before."""
    return cast("dict[str, Any]", payload["properties"]["delivery_info"])


def priority_of(payload: Payload) -> int:
    """The priority from 0 to 9; 9 is the highest.

    >>> priority_of({"properties": {"priority": 12}}), priority_of({"properties": {}})
    (9, 0)
    """
    try:
        return min(max(int(payload["properties"].get("priority") or 0), 0), 9)
    except (TypeError, ValueError):
        return 0


def lifetime_ms(payload: Payload) -> int | None:
    """How long the message may wait to be delivered: AMQP's `expiration`; None without a limit."""
    try:
        return int(payload["properties"]["expiration"])
    except (KeyError, TypeError, ValueError):
        return None


def eta(payload: Payload) -> datetime | None:
    """When Celery wants the task to run, with a time zone; None for at once.

    A time without a time zone is the worker's business: only the application knows what it means.
    """
    headers: dict[str, Any] = payload.get("headers") or {}
    given = headers.get("eta")
    if not isinstance(given, str):
        return None
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        return None
    return None if when.tzinfo is None else when.astimezone(UTC)
