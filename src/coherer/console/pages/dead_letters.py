"""Dead letters: the groups, the dead letters of a group, one dead letter; replay, export, purge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from coherer._administration import dead_letters as letters
from coherer._administration.access import rocketmq_only
from coherer._administration.dead_letters import DeadLetter, DeadLetterQueue, Filter
from coherer._administration.export import LetterLine
from coherer._administration.replay import ReplayProgress, replay, replayed
from coherer._common.moments import floor_ms
from coherer.console.jobs import Job
from coherer.console.pages.common import (
    ROWS,
    Console,
    changing,
    matching,
    moment,
    part_of,
    path_of,
)
from coherer.errors import CohererError

FILTERS: Final = ("topic", "tag", "key", "reason", "since", "until")
"""The names of the filter's fields in forms."""


class DeadLetters:
    """Handlers of dead letters."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        console, group = self._console, "/dead-letters/{group}"
        return [
            Route("/dead-letters", self.groups, methods=["GET"]),
            Route(group, self.group, methods=["GET"]),
            Route(f"{group}/export", self.export, methods=["GET"]),
            Route(f"{group}/replay", changing(console, self.replay), methods=["POST"]),
            Route(f"{group}/purge", self.ask_purge, methods=["GET"]),
            Route(f"{group}/purge", changing(console, self.purge), methods=["POST"]),
            Route(f"{group}/letters/{{letter}}", self.letter, methods=["GET"]),
        ]

    async def groups(self, request: Request) -> Response:
        """The groups that have dead letters."""
        console = self._console
        if console.facts.rocket is None:
            return console.render(request, "no_dead_letters.html")
        names = await console.facts.dead_letter_groups()
        search = request.query_params.get("q", "")
        part = part_of(matching(names, search), request.query_params.get("page"))
        queues = await console.facts.dead_letter_queues(part.rows)
        queues.sort(key=lambda one: (-one.count, one.group))
        return console.render(request, "dead_letters.html", part=part, queues=queues, search=search)

    async def group(self, request: Request) -> Response:
        """The dead letters of a group."""
        console = self._console
        name = request.path_params["group"]
        queue = await console.facts.dead_letter_queue(name)
        if queue is None:
            return self._none(request, name)
        where = filter_of(dict(request.query_params))
        oldest = request.query_params.get("order") == "oldest"
        page = await letters.page(
            console.facts.cluster,
            name,
            newest_first=not oldest,
            limit=ROWS,
            cursor=request.query_params.get("cursor"),
            where=where,
        )
        sent = await self._replayed(page.letters)
        return console.render(
            request,
            "dead_letter_group.html",
            group=name,
            queue=queue,
            found=page,
            sent=sent,
            where=where,
            oldest=oldest,
            given={field: request.query_params.get(field, "") for field in FILTERS},
            filter_query=filter_query(dict(request.query_params)),
        )

    async def _replayed(self, found: tuple[DeadLetter, ...]) -> frozenset[str] | None:
        """The ids of the dead letters that were replayed; None if this is unknown."""
        try:
            return await replayed(self._console.facts.cluster, found)
        except CohererError:
            return None

    def _none(self, request: Request, group: str) -> Response:
        text = f"The group {group} has no dead letters."
        return self._console.refusal(request, text, 404)

    async def letter(self, request: Request) -> Response:
        """One dead letter."""
        name = request.path_params["group"]
        found = await letters.get(self._console.facts.cluster, name, request.path_params["letter"])
        if found is None:
            text = f"The group {name} has no such dead letter; it may have been deleted."
            return self._console.refusal(request, text, 404)
        sent = await self._replayed((found,))
        return self._console.render(
            request,
            "dead_letter.html",
            group=name,
            letter=found,
            was_sent=None if sent is None else found.id in sent,
        )

    async def export(self, request: Request) -> Response:
        """The dead letters that match the filter, as lines of JSON."""
        name = request.path_params["group"]
        where = filter_of(dict(request.query_params))
        cluster = rocketmq_only(self._console.facts.cluster, "dead letters")
        queue = await letters.queue(cluster, name)
        if queue is None:
            return self._none(request, name)
        letters.check_complete(queue)

        async def lines() -> AsyncGenerator[bytes]:
            some = letters.scan_queue(cluster, queue)
            try:
                async for letter in some:
                    if where.matches(letter):
                        yield msgspec.json.encode(LetterLine.of(letter)) + b"\n"
            finally:
                await some.aclose()

        file = f"attachment; filename*=UTF-8''{quote(name, safe='')}-dead-letters.jsonl"
        return StreamingResponse(
            lines(), media_type="application/jsonl", headers={"Content-Disposition": file}
        )

    async def replay(self, request: Request, form: FormData) -> Response:
        """Start a replay of the selected dead letters, or of all that match the filter."""
        name = request.path_params["group"]
        back = path_of("dead-letters", name)
        to = str(form.get("to", "")).strip() or None
        if form.get("scope") == "all":
            where = filter_of({field: str(form.get(field, "")) for field in FILTERS})
        else:
            chosen = frozenset(str(one) for one in form.getlist("letter"))
            if not chosen:
                return self._console.done(back, "nothing-chosen")
            where = Filter(ids=chosen)
        target = f"to {to}" if to else "to their topics"
        cluster = self._console.facts.cluster

        async def work(job: Job) -> None:
            def show(progress: ReplayProgress) -> None:
                show_progress(job, progress)

            show_progress(job, await replay(cluster, name, to=to, where=where, show=show))
            self._console.facts.forget()

        job = self._console.jobs.start(f"Replay of dead letters of {name} {target}", back, work)
        # A short replay can end before its page is shown.
        if job.task is not None:
            await asyncio.wait([job.task], timeout=0.2)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    async def ask_purge(self, request: Request) -> Response:
        """The page that asks for confirmation of a purge."""
        name = request.path_params["group"]
        queue = await self._console.facts.dead_letter_queue(name)
        if queue is None:
            return self._none(request, name)
        return self._console.render(request, "purge.html", group=name, queue=queue, problem=None)

    async def purge(self, request: Request, form: FormData) -> Response:
        """Delete all dead letters of a group if its name was typed."""
        name = request.path_params["group"]
        if str(form.get("confirm", "")).strip() != name:
            queue = await self._console.facts.dead_letter_queue(name)
            problem = "Type the name of the group to confirm."
            return self._console.render(
                request,
                "purge.html",
                status=400,
                group=name,
                queue=queue or DeadLetterQueue(name, "", ()),
                problem=problem,
            )
        await letters.purge(self._console.facts.cluster, name)
        return self._console.done("/dead-letters", "purged")


def show_progress(job: Job, progress: ReplayProgress) -> None:
    """Copy the progress of a replay to its job."""
    job.done, job.total, job.waiting = progress.seen, progress.total, progress.waiting
    job.details = {
        "sent": progress.sent,
        "sent by an earlier replay": progress.already,
        "not sent, because the original topic is unknown": progress.without_topic,
    }


def filter_of(given: dict[str, str]) -> Filter:
    """Return the filter that a form describes; empty fields are ignored.

    Raises:
        UsageError: a time is malformed.

    >>> filter_of({"topic": "orders", "tag": ""}).topic
    'orders'
    """
    texts = {name: given.get(name, "").strip() or None for name in FILTERS}
    return Filter(
        topic=texts["topic"],
        tag=texts["tag"],
        key=texts["key"],
        reason=texts["reason"],
        since_ms=time_ms(texts["since"]),
        until_ms=time_ms(texts["until"]),
    )


def time_ms(text: str | None) -> int | None:
    """Parse a time of a form to ms since 1970; without a zone it is UTC.

    Raises:
        UsageError: it is malformed.

    >>> time_ms("1970-01-01T00:01")
    60000
    """
    found = moment(text)
    return None if found is None else floor_ms(found)


def filter_query(given: dict[str, str]) -> str:
    """Format the fields of a filter that are set as the query of a URL."""
    return urlencode({name: given[name] for name in FILTERS if given.get(name)})
