"""Topics: the list, one topic with its partitions, rates, readers and settings, and changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coherer._record.properties import number_in
from coherer.console.history import series_name
from coherer.console.pages.common import Console, changing, matching, part_of, path_of, sorting_of
from coherer.errors import CohererError, UsageError

CREATE_WAIT_MS: Final = 5_000

ACCESS: Final = {
    "6": (True, True),
    "4": (False, True),
    "2": (True, False),
}
"""Whether a topic is writable and readable, by RocketMQ's permission numbers."""


READERS: Final = 20
"""The number of groups whose state the page of a topic shows."""


class Reader(msgspec.Struct, frozen=True):
    """A group that reads a topic; None stands for an unknown value.

    Args:
        group: its name.
        lag: its lag in the topic.
        oldest_ms: the age of its oldest unread message in the topic.
        members: the number of its members.
    """

    group: str
    lag: int | None = None
    oldest_ms: int | None = None
    members: int | None = None


class Topics:
    """Handlers of topics."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        console = self._console
        return [
            Route("/topics", self.index, methods=["GET"]),
            Route("/topics", changing(console, self.create), methods=["POST"]),
            Route("/topics/{topic}", self.topic, methods=["GET"]),
            Route("/topics/{topic}/settings", self.settings, methods=["GET"]),
            Route("/topics/{topic}/settings", changing(console, self.alter), methods=["POST"]),
            Route("/topics/{topic}/delete", self.ask_delete, methods=["GET"]),
            Route("/topics/{topic}/delete", changing(console, self.delete), methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """The topics."""
        console = self._console
        system = request.query_params.get("system") == "1"
        search = request.query_params.get("q", "")
        names = matching(await console.facts.topic_names(system=system), search)
        history = console.history
        lags = history.topic_lags()
        values: dict[str, Callable[[str], float | None]] = {
            "messages": lambda name: history.last(series_name("topic", name, "held")),
            "written": lambda name: history.last(series_name("topic", name, "in")),
            "lag": lags.get,
        }
        behind = request.query_params.get("only") == "behind"
        if behind:
            names = [name for name in names if lags.get(name)]
        sorting = sorting_of(request, values)
        if sorting.by in values:
            names = sorting.ordered(names, values[sorting.by])
        part = part_of(names, request.query_params.get("page"))
        rates = {name: values["written"](name) for name in part.rows}
        return console.render(
            request,
            "topics.html",
            part=part,
            topics=await console.facts.topics(part.rows),
            rates=rates,
            lags={name: lags.get(name) for name in part.rows},
            read_by={name: history.readers(name) for name in part.rows},
            search=search,
            system=system,
            sorting=sorting,
            behind=behind,
        )

    async def create(self, request: Request, form: FormData) -> Response:
        """Create a topic."""
        name = str(form.get("name", "")).strip()
        text = str(form.get("partitions", ""))
        partitions = number_in(text)
        if partitions is None:
            raise UsageError(f"{text!r} is not a number of partitions.")
        admin = self._console.facts.cluster.admin
        await admin.topics.create(name, partitions, wait_ms=CREATE_WAIT_MS)
        del request
        return self._console.done(path_of("topics", name), "topic-created")

    async def topic(self, request: Request) -> Response:
        """One topic."""
        console = self._console
        name = request.path_params["topic"]
        facts = await console.facts.topic(name)
        if facts.partitions is None:
            return console.refusal(request, facts.problem or f"Topic {name} is unknown.", 404)
        console.history.watch("topic", name, time.time())
        writable, readable = await console.facts.access(name)
        readers = await self._readers(name)
        rates = {series_name("topic", name, "in"): "written"}
        consumed = {series_name("group", group, "lag"): group for group in (readers or ())}
        return console.render(
            request,
            "topic.html",
            topic=facts,
            writable=writable,
            readable=readable,
            readers=readers,
            partitions=part_of(facts.partitions, request.query_params.get("page")),
            rate=console.history.last(series_name("topic", name, "in")),
            rates=console.chart(request, "Messages written per second", rates),
            lags=console.chart(request, "Lag of its groups, in messages", consumed),
            groups=await self._groups(name, readers or ()),
        )

    async def _groups(self, topic: str, readers: Sequence[str]) -> list[Reader]:
        """The groups that read a topic; their state is known for the first `READERS`."""
        facts = self._console.facts
        try:
            states = await facts.groups(readers[:READERS])
        except CohererError:
            return [Reader(name) for name in readers]
        known = {one.name: one for one in states}
        found: list[Reader] = []
        for name in readers:
            state = known.get(name)
            parts = [] if state is None else [one for one in state.partitions if one.topic == topic]
            lags = [one.lag for one in parts]
            if state is None or None in lags:
                found.append(Reader(name))
                continue
            ages = await facts.unread_ages(state)
            behind = [ages.get(one.key) for one in parts if one.lag]
            ages_known = [age for age in behind if age is not None]
            oldest = max(ages_known) if behind and len(ages_known) == len(behind) else None
            lag = sum(lag or 0 for lag in lags)
            found.append(Reader(name, lag, oldest, len(state.members)))
        return found

    async def _readers(self, topic: str) -> list[str] | None:
        try:
            found = await self._console.facts.readers(topic)
        except CohererError:
            return None
        for group in found:
            self._console.history.watch("group", group, time.time())
        return found

    async def settings(self, request: Request) -> Response:
        """The settings of a topic."""
        name = request.path_params["topic"]
        settings = await self._console.facts.topic_settings(name)
        return self._console.render(request, "topic_settings.html", topic=name, settings=settings)

    async def alter(self, request: Request, form: FormData) -> Response:
        """Change the number of partitions or the permission of a topic."""
        cluster = self._console.facts.cluster
        name = request.path_params["topic"]
        partitions = number_in(str(form.get("partitions", "")))
        access = str(form.get("access", ""))
        broker = str(form.get("broker", ""))
        if partitions is None or access not in ACCESS:
            raise UsageError("Give a number of partitions and an access.")
        writable, readable = ACCESS[access]
        await cluster.admin.topics.alter(
            name,
            partitions=partitions,
            writable=writable,
            readable=readable,
            brokers=[broker],
        )
        return self._console.done(path_of("topics", name, "settings"), "topic-changed")

    async def ask_delete(self, request: Request) -> Response:
        """The page that asks for confirmation of a deletion."""
        name = request.path_params["topic"]
        facts = await self._console.facts.topic(name)
        return self._console.render(
            request,
            "delete.html",
            kind="topic",
            name=name,
            action=path_of("topics", name, "delete"),
            back=path_of("topics", name),
            loss="its messages",
            held=facts.held,
            readers=await self._readers(name),
            problem=None,
        )

    async def delete(self, request: Request, form: FormData) -> Response:
        """Delete a topic if its name was typed."""
        name = request.path_params["topic"]
        if str(form.get("confirm", "")).strip() != name:
            raise UsageError(f"Type {name} to confirm; nothing was deleted.")
        await self._console.facts.cluster.admin.topics.delete(name)
        return self._console.done("/topics", "topic-deleted")
