"""The pages of a node: TubeMQ's administration, and pages for programs that monitor it.

`/health/live` answers 200 while the event loop runs. `/health/ready` answers 200 if the node is
ready, otherwise 503 with the reason. `/metrics` is for Prometheus, `/status` for `coherer status`,
and `/node/drain` for `coherer drain`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from coherer._server.http.app import Page, Pages, Reply, SavedFiles
from coherer._server.http.guard import Guard
from coherer._server.http.service import AdminService
from coherer._server.node.drain import Drain
from coherer._server.node.metrics import CONTENT_TYPE, Metrics
from coherer._server.node.parts import NodeParts
from coherer._server.tubemq.broker.admin import broker_admin
from coherer._server.tubemq.master.admin import active_admin_url, master_admin

_PLAIN: Final = [("Content-Type", "text/plain;charset=utf-8")]


def administration(
    node: NodeParts, metrics: Metrics, drain: Drain, guard: Guard, files: SavedFiles | None
) -> AdminService:
    """The service on the port of the HTTP administration."""
    master, broker, options = node.tubemq.master, node.tubemq.broker, node.options
    return AdminService(
        master_admin(master, guard) if master is not None else None,
        broker_admin(broker, guard) if broker is not None else None,
        active_admin_url=lambda: active_admin_url(master) if master is not None else None,
        names=options.names,
        master_id=master.state.master_id if master is not None else "",
        broker_id=broker.state.address if broker is not None else "",
        files=files,
        news=lambda: _news(node),
        pages=Pages(
            open=_health_pages(node),
            guarded=_status_pages(metrics)
            | (_metrics_pages(metrics) if options.metrics else {})
            | drain.pages(),
            actions=drain.actions(),
            guard=guard,
        ),
    )


def monitoring(node: NodeParts, metrics: Metrics) -> AdminService:
    """Health checks and metrics for everyone, for a port of their own."""
    return AdminService(pages=Pages(open=_health_pages(node) | _metrics_pages(metrics)))


def _news(node: NodeParts) -> Callable[[], Awaitable[None] | None]:
    """Remember the topics' version; the result returns an awaitable if it has changed."""
    broker = node.rocketmq.broker
    if broker is None:
        return lambda: None
    state, before = broker.state, broker.state.topics.version
    return lambda: state.announced_since(before)


def _health_pages(node: NodeParts) -> dict[str, Page]:
    async def live() -> Reply:
        return 200, _PLAIN, b"alive\n"

    async def ready() -> Reply:
        reason = node.not_ready()
        return 200 if reason is None else 503, _PLAIN, f"{reason or 'ready'}\n".encode()

    return {"/health/live": live, "/health/ready": ready}


def _metrics_pages(metrics: Metrics) -> dict[str, Page]:
    async def text() -> Reply:
        return 200, [("Content-Type", CONTENT_TYPE)], await metrics.text()

    return {"/metrics": text}


def _status_pages(metrics: Metrics) -> dict[str, Page]:
    async def status() -> Reply:
        found = msgspec.json.encode(await metrics.status())
        return 200, [("Content-Type", "application/json")], found

    return {"/status": status}
