"""Groups: the list, one group with members and lag, resetting with a preview, deletion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coherer._administration.members import problems
from coherer._administration.overview import oldest_ms
from coherer._administration.resets import Move, planned
from coherer.admin import Partition
from coherer.console.charts import SERIES_MAX
from coherer.console.history import series_name
from coherer.console.pages.common import (
    Console,
    changing,
    matching,
    moment,
    part_of,
    path_of,
    sorting_of,
)
from coherer.errors import UsageError

ROWS: Final = 20
"""The number of groups on a page; each takes three requests to a broker."""

ASKED_MAX: Final = 50
"""If there are more groups, a list is sorted by their last samples."""

PARTITIONS: Final = 50
"""The number of rows in the table of partitions."""

Target: TypeAlias = Literal["earliest", "latest"] | datetime


class Groups:
    """Handlers of groups."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        console = self._console
        return [
            Route("/groups", self.index, methods=["GET"]),
            Route("/groups/{group}", self.group, methods=["GET"]),
            Route("/groups/{group}/reset", self.preview, methods=["GET"]),
            Route("/groups/{group}/reset", changing(console, self.reset), methods=["POST"]),
            Route("/groups/{group}/delete", self.ask_delete, methods=["GET"]),
            Route("/groups/{group}/delete", changing(console, self.delete), methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """The groups."""
        console = self._console
        search = request.query_params.get("q", "")
        names = matching(await console.facts.group_names(), search)
        sorting = sorting_of(request, ("lag", "consumed"))
        behind = request.query_params.get("only") == "behind"
        sampled = False
        if behind or sorting.by == "lag":
            lags, sampled = await self._lags(names)
            names = [name for name in names if lags[name] or not behind]
            names = sorting.ordered(names, lags.get) if sorting.by == "lag" else names
        if sorting.by == "consumed":
            names = sorting.ordered(names, self._consumed)
        part = part_of(names, request.query_params.get("page"), ROWS)
        found = {one.name: one for one in await console.facts.groups(part.rows)}
        groups = [found[name] for name in part.rows if name in found]
        dead = set(await console.facts.dead_letter_groups())
        return console.render(
            request,
            "groups.html",
            part=part,
            groups=groups,
            dead=dead,
            search=search,
            rates={name: self._consumed(name) for name in part.rows},
            sorting=sorting,
            behind=behind,
            sampled=sampled,
        )

    def _consumed(self, name: str) -> float | None:
        return self._console.history.last(series_name("group", name, "out"))

    async def _lags(self, names: Sequence[str]) -> tuple[dict[str, float | None], bool]:
        """The lags of groups, and whether they are samples: too many groups are not asked for."""
        console = self._console
        if len(names) > ASKED_MAX:
            last = console.history.last
            return {name: last(series_name("group", name, "lag")) for name in names}, True
        lags: dict[str, float | None] = dict.fromkeys(names)
        lags |= {one.name: one.lag for one in await console.facts.groups(names)}
        return lags, False

    async def group(self, request: Request) -> Response:
        """One group."""
        console = self._console
        name = request.path_params["group"]
        group = await console.facts.group(name)
        if group is None:
            return self._unknown(request, name)
        console.history.watch("group", name, time.time())
        partitions: Sequence[Partition] = group.partitions
        behind = sorted(partitions, key=lambda one: -(one.lag or 0))[:SERIES_MAX]
        lags = {series_name("group", name, "lag"): "all partitions"}
        lags |= {
            series_name("group", name, "lag", one.key): one.key for one in behind[: SERIES_MAX - 1]
        }
        health = await console.facts.health(name)
        ages = await console.facts.unread_ages(group)
        readers = {key: one.client.id for one in health for key in one.reads}
        return console.render(
            request,
            "group.html",
            group=group,
            members=health,
            problems=problems(health),
            ages=ages,
            oldest_ms=oldest_ms(group, ages),
            filters=await console.facts.filters(name),
            owners={one.key: one.owner or readers.get(one.key) for one in group.partitions},
            partitions=part_of(group.partitions, request.query_params.get("page"), PARTITIONS),
            has_dead=name in await console.facts.dead_letter_groups(),
            rate=console.history.last(series_name("group", name, "out")),
            lags=console.chart(request, "Lag, in messages", lags),
            rates=console.chart(
                request,
                "Messages consumed per second",
                {series_name("group", name, "out"): "consumed"},
            ),
        )

    def _unknown(self, request: Request, name: str) -> Response:
        return self._console.refusal(request, f"The group {name} does not exist.", 404)

    async def preview(self, request: Request) -> Response:
        """The preview of a reset."""
        console = self._console
        name = request.path_params["group"]
        group = await console.facts.group(name)
        if group is None:
            return self._unknown(request, name)
        topic = request.query_params.get("topic", "")
        to, time_text = request.query_params.get("to", ""), request.query_params.get("time", "")
        moves: Sequence[Move] | None = None
        if topic and to:
            target, facts = target_of(to, time_text), await console.facts.topic(topic)
            if facts.partitions is None:
                raise UsageError(facts.problem or f"Topic {topic} is unknown.")
            moves = await planned(
                console.facts.cluster, group.partitions, topic, facts.partitions, target
            )
        return console.render(
            request,
            "reset.html",
            group=group,
            topics=[one for one in group.topics if not one.startswith("%RETRY%")],
            topic=topic,
            to=to or "earliest",
            time_text=time_text,
            moves=moves,
            again=sum(-(one.change or 0) for one in moves or () if (one.change or 0) < 0),
            skipped=sum(one.change or 0 for one in moves or () if (one.change or 0) > 0),
        )

    async def reset(self, request: Request, form: FormData) -> Response:
        """Reset the offsets of a group in a topic."""
        name = request.path_params["group"]
        target = target_of(str(form.get("to", "")), str(form.get("time", "")))
        topic = str(form.get("topic", ""))
        await self._console.facts.cluster.admin.groups.reset_offsets(name, topic, target)
        return self._console.done(path_of("groups", name), "offsets-reset")

    async def ask_delete(self, request: Request) -> Response:
        """The page that asks for confirmation of a deletion."""
        name = request.path_params["group"]
        group = await self._console.facts.group(name)
        if group is None:
            return self._unknown(request, name)
        problem = None
        if group.members:
            problem = (
                f"Members: {len(group.members)}. Stop them first: their next commit would create "
                "the group again."
            )
        return self._console.render(
            request,
            "delete.html",
            kind="group",
            name=name,
            action=path_of("groups", name, "delete"),
            back=path_of("groups", name),
            loss="its offsets in all topics",
            held=None,
            readers=None,
            problem=problem,
        )

    async def delete(self, request: Request, form: FormData) -> Response:
        """Delete a group if its name was typed."""
        name = request.path_params["group"]
        if str(form.get("confirm", "")).strip() != name:
            raise UsageError(f"Type {name} to confirm; nothing was deleted.")
        self._console.facts.forget()
        group = await self._console.facts.group(name)
        if group is not None and group.members:
            raise UsageError(f"Group {name} has members; stop them first. Nothing was deleted.")
        await self._console.facts.cluster.admin.groups.delete(name)
        return self._console.done("/groups", "group-deleted")


def target_of(to: str, time_text: str) -> Target:
    """Return the position that a form names.

    Raises:
        UsageError: the form does not name a position.

    >>> target_of("earliest", "")
    'earliest'
    """
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    found = moment(time_text) if to == "time" else None
    if found is None:
        raise UsageError("Select the oldest message, the end, or a time.")
    return found
