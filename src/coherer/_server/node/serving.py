"""The pages of a node for programs that monitor it: health checks, metrics and status.

`/health/live` answers 200 while the event loop runs. `/health/ready` answers 200 if the node is
ready, otherwise 503 with the reason. `/metrics` is for Prometheus, and `/status` for
`coherer status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from coherer._server.node.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from coherer._server.http.service import Page
    from coherer._server.node.node import Node

_Reply: TypeAlias = "tuple[int, list[tuple[str, str]], bytes]"

_PLAIN: Final = [("Content-Type", "text/plain;charset=utf-8")]


def health_pages(node: Node) -> dict[str, Page]:
    """The health checks, by path."""

    async def live() -> _Reply:
        return 200, _PLAIN, b"alive\n"

    async def ready() -> _Reply:
        reason = node.not_ready()
        return 200 if reason is None else 503, _PLAIN, f"{reason or 'ready'}\n".encode()

    return {"/health/live": live, "/health/ready": ready}


def metrics_pages(node: Node) -> dict[str, Page]:
    """The metrics, by path."""

    async def metrics() -> _Reply:
        return 200, [("Content-Type", CONTENT_TYPE)], await node.metrics.text()

    return {"/metrics": metrics}


def status_pages(node: Node) -> dict[str, Page]:
    """The status, by path."""

    async def status() -> _Reply:
        found = msgspec.json.encode(await node.metrics.status())
        return 200, [("Content-Type", "application/json")], found

    return {"/status": status}
