"""`coherer status`: the state of a node or a cluster.

A Coherer node reports everything over HTTP. For other servers, this command shows what their
protocol reports; the rest is unknown.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from coherer._administration.access import Cluster
from coherer._administration.overview import Overview, overview
from coherer._common.node_status import DiskStatus, LimitStatus, NodeStatus
from coherer.cli.fitting import Part, fitted, unreachable
from coherer.cli.options import Json, seconds_option
from coherer.cli.output import (
    UNKNOWN,
    again,
    age,
    cell_text,
    duration,
    fail,
    print_json,
    readable,
    size,
)
from coherer.cli.target import AdminTarget, on_cluster_with_token

app = typer.Typer(add_completion=False)


@app.command()
@on_cluster_with_token
def status(
    target: AdminTarget,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh it until Ctrl-C.")] = False,
    interval_s: Annotated[
        float,
        seconds_option("--interval", least=0.1, about="With --watch: seconds between refreshes."),
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the state of a node or a cluster, with warnings.

    With a Coherer node's TubeMQ URL, or only --admin, the command shows everything. With Apache's
    clusters, or a RocketMQ URL, it shows what the protocol reports.
    """
    if watch:
        target.run_on_cluster(lambda cluster: _watch(cluster, interval_s, as_json=as_json))
        return
    found = target.run_on_cluster(overview)
    if as_json:
        print_json(found)
        return

    console = Console()
    console.print(rendered(found, console))


async def _watch(cluster: Cluster, interval_s: float, *, as_json: bool) -> None:
    found = await overview(cluster)
    if as_json:
        print_json(found)
        while True:
            await asyncio.sleep(interval_s)
            seen = await again(lambda: overview(cluster))
            if isinstance(seen, Overview):
                print_json(seen)
            else:
                fail(seen)
    console = Console()
    with Live(_view(found, console), console=console, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval_s)
            seen = await again(lambda: overview(cluster))
            if isinstance(seen, Overview):
                live.update(_view(seen, console), refresh=True)
            else:
                live.update(unreachable(seen), refresh=True)


def _view(found: Overview, console: Console) -> RenderableType:
    # The cursor is below the last line.
    return rendered(found, console, console.height - 1 if console.is_terminal else None)


def rendered(found: Overview, console: Console, height: int | None = None) -> RenderableType:
    """Format the status for a terminal: first the state and the problems, then the figures.

    `height` is the number of lines that fit; None for any number.
    """
    node = found.node
    figures = {
        "topics": cell_text(found.topics),
        "groups": cell_text(found.groups),
        "lag": cell_text(found.lag),
        **({} if node is None else _figures(node)),
    }
    brokers = [
        (
            f"{one.name}:{one.id}" if one.cluster else one.name,
            one.address,
            one.version,
            one.status,
            _rate(one.in_per_s),
            _rate(one.out_per_s),
        )
        for one in found.brokers
    ]
    behind = [(one.group, one.lag, age(one.oldest_ms), one.members) for one in found.behind]
    parts = [
        Part("state", lines=_state(found)),
        Part("groups", ("group", "lag", "oldest unread", "members"), behind),
        Part("figures", lines=_pairs(figures)),
        Part("brokers", ("broker", "address", "version", "state", "in/s", "out/s"), brokers),
    ]
    if node is not None:
        ports = [(one.name, one.address) for one in node.listeners]
        parts += [
            Part("limits", ("limit", "in use", "of", ""), [*map(_limit, node.limits)]),
            Part("ports", ("port", "address"), ports),
        ]
    return fitted(parts, console, height)


def _state(found: Overview) -> list[RenderableType]:
    """The state of a node, and the problems of its cluster."""
    lines: list[RenderableType] = []
    node = found.node
    if node is not None:
        state = ("ready", "bold green") if node.ready else ("not ready", "bold red")
        head = Text.assemble(f"coherer {node.version}, process {node.pid}: ", state)
        lines.append(head.append(f" for {duration(node.running_s)}"))
    lines += [
        Text.assemble(("! ", "bold red"), readable(one.text), (f" {one.action}", "dim"))
        for one in found.problems
    ]
    return lines if found.problems else [*lines, Text("No warnings.", style="green")]


def _figures(node: NodeStatus) -> dict[str, str]:
    figures = {
        one.name: f"{_amount(one.name, one.last_10_s)}/s, in the last minute "
        f"{_amount(one.name, one.last_minute)}/s"
        for one in node.rates
    }
    if node.disk is not None:
        figures |= _disk(node.disk)
    figures["files"] = node.directory
    figures["memory"] = size(node.memory_bytes)
    if node.mapped_bytes is not None:
        figures["memory"] += f", of which {size(node.mapped_bytes)} are pages of mapped files"
    late = UNKNOWN if node.loop_lag_ms is None else f"{node.loop_lag_ms:g} ms"
    figures["event loop"] = f"at most {late} late (99 %)"
    return figures


def _disk(disk: DiskStatus) -> dict[str, str]:
    limit = "" if disk.log_limit_bytes is None else f" of {size(disk.log_limit_bytes)}"
    age = "no message" if disk.oldest_ms is None else duration(disk.oldest_ms / 1000)
    return {
        "log": f"{size(disk.log_bytes)}{limit}, {size(disk.not_synced_bytes)} not synced yet",
        "oldest message": age,
        "disk": f"{size(disk.free_bytes)} of {size(disk.disk_bytes)} free",
    }


def _limit(one: LimitStatus) -> tuple[str, str, str, str]:
    show = size if one.unit == "bytes" else cell_text
    return one.name, show(one.used), show(one.limit), f"{one.used / one.limit:.0%}"


def _pairs(pairs: dict[str, str]) -> list[RenderableType]:
    width = max(map(len, pairs))
    return [Text.assemble((f"{name:{width}}  ", "dim"), value) for name, value in pairs.items()]


def _amount(name: str, value: float) -> str:
    return size(round(value)) if name.startswith("bytes") else f"{value:,.0f}"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"
