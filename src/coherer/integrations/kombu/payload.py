"""How kombu's messages are stored: a line of JSON, then the body as it is.

The line has everything except the body: content type and encoding, headers and properties, under
kombu's names. The body is not encoded again, so that its size stays the same and other languages
can read it.

`decode` refuses types that would raise errors later, in the loops of kombu and of this plug: such a
message would come again and again, and nothing behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, cast

import msgspec

from coherer.integrations.kombu.untyped import dumps, loads

Payload = dict[str, Any]
"""A message as kombu's virtual transports handle it: `body`, `headers`, `properties` and others."""

_END: Final = b"\n"


class _DeliveryInfo(TypedDict, total=False):
    exchange: str | None
    routing_key: str | None


class _Properties(TypedDict, total=False):
    body_encoding: None  # the body is stored as it is
    delivery_info: _DeliveryInfo


_Head = TypedDict(
    "_Head",
    {
        "content-type": str | None,
        "content-encoding": str | None,
        "headers": dict[str, Any] | None,
        "properties": _Properties,
    },
    total=False,
)


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
        msgspec.convert(payload, _Head)
        info = payload["properties"].setdefault("delivery_info", {})
    except Exception:  # noqa: BLE001 - kombu's types of values raise many
        raise ValueError("the message was not sent by kombu") from None
    info.pop("consumer_tag", None)  # kombu would take it for that of a consumer here
    payload["body"] = body
    return payload


def delivery_info(payload: Payload) -> dict[str, Any]:
    """Exchange and routing key, and whether the message may have been delivered before."""
    return cast("dict[str, Any]", payload["properties"]["delivery_info"])


def priority_of(payload: Payload) -> int:
    """The priority from 0 to 9; 9 is the highest.

    >>> [priority_of({"properties": {"priority": given}}) for given in (12, -1, None, "high")]
    [9, 0, 0, 0]
    """
    return min(max(_integer(payload["properties"].get("priority")) or 0, 0), 9)


def lifetime_ms(payload: Payload) -> int | None:
    """How long the message may wait to be delivered, AMQP's `expiration`; None for no limit."""
    return _integer(payload["properties"].get("expiration"))


def eta(payload: Payload) -> datetime | None:
    """When Celery wants the task to run, with a time zone; None for at once.

    A time without a time zone is left to the worker: only the application knows what it means.
    """
    headers: dict[str, Any] = payload.get("headers") or {}
    given = headers.get("eta")
    if not isinstance(given, str):
        return None
    try:
        when = datetime.fromisoformat(given)
        return None if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _integer(given: Any) -> int | None:
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        return None
