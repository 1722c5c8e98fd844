"""The parts that all pages share: the console with its cluster, rendering, and paged lists."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from coherer._common.guesses import GuessLimit
from coherer._common.version import __version__
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.console import formatting
from coherer.console.charts import Chart, chart
from coherer.console.facts import Facts
from coherer.console.guard import read_form
from coherer.console.history import DEFAULT_SPAN, SPANS, History
from coherer.console.jobs import Jobs
from coherer.console.options import ConsoleOptions
from coherer.console.passwords import Passwords
from coherer.console.sessions import Session, Sessions, is_token
from coherer.errors import CohererError, RefusedError, UsageError

T = TypeVar("T")

ROWS: Final = 25
"""The number of rows on a page of a list."""

SPAN_COOKIE: Final = "coherer-span"
NOTICE: Final = "notice"

NAVIGATION: Final = (
    ("/overview", "Overview"),
    ("/dead-letters", "Dead letters"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/messages", "Messages"),
    ("/clients", "Clients"),
    ("/brokers", "Brokers"),
    ("/accounts", "Accounts"),
    ("/send", "Send"),
)

FILTERS: Final = (
    *("number", "rate", "size", "share", "when", "ago", "age"),
    *("payload", "preview", "yes_no", "or_unknown"),
)
"""The functions of `formatting` that templates use."""

NOTICES: Final = {
    "topic-created": "The topic was created.",
    "topic-deleted": "The topic and its messages were deleted.",
    "topic-changed": "The topic was changed.",
    "group-deleted": "The group and its offsets were deleted.",
    "offsets-reset": "The offsets were reset.",
    "purged": "The dead letters were deleted.",
    "account-saved": "The account was saved.",
    "account-deleted": "The account was deleted.",
    "nothing-chosen": "Nothing was selected, so nothing was done.",
}
"""The notices after a change, by the keyword in the URL: a link can only select one of them."""


MISSING_CODES: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST, 404})
"""The codes of RocketMQ and TubeMQ for a topic that does not exist."""

Form: TypeAlias = "Callable[[Request, FormData, str, int], Awaitable[Response]]"
"""Shows a form again; called with the request, the fields, the problem and the HTTP status."""


EXPIRED: Final = (
    "This form has expired: it belongs to an earlier session. Nothing was done. Check it, and send "
    "it again."
)

Handler = Callable[[Request], Awaitable[Response]]
Change = Callable[[Request, FormData], Awaitable[Response]]


class Part(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; pages count from 1, and `total` is the length of the whole list."""

    rows: Sequence[T]
    page: int
    pages: int
    total: int


def part_of(rows: Sequence[T], page: str | None, size: int = ROWS) -> Part[T]:
    """Return one page of a list: the first if `page`, from the URL, is not a number.

    >>> part_of([1, 2, 3], "2", size=2)
    Part(rows=[3], page=2, pages=2, total=3)
    """
    pages = max(-(-len(rows) // size), 1)
    number = min(max(int(page), 1), pages) if page and page.isdecimal() and len(page) < 9 else 1
    return Part(rows[(number - 1) * size : number * size], number, pages, len(rows))


def matching(names: Sequence[str], text: str) -> list[str]:
    """Return the names that contain a text; case does not matter."""
    wanted = text.strip().lower()
    return [name for name in names if wanted in name.lower()]


class Sorting(msgspec.Struct, frozen=True):
    """The order of a list, by a column."""

    by: str
    largest_first: bool

    def ordered(self, names: Sequence[str], value: Callable[[str], float | None]) -> list[str]:
        """Sort names by a value and by name; unknown values come last.

        >>> Sorting("lag", True).ordered(["c", "b", "a"], {"a": None, "b": 1, "c": 5}.get)
        ['c', 'b', 'a']
        """
        sign = -1 if self.largest_first else 1

        def place(name: str) -> tuple[bool, float, str]:
            found = value(name)
            return found is None, 0 if found is None else sign * found, name

        return sorted(names, key=place)


def sorting_of(request: Request, columns: Container[str]) -> Sorting:
    """The order in the URL; by default, by name."""
    by = request.query_params.get("sort", "name")
    by = by if by in columns else "name"
    return Sorting(by, request.query_params.get("order", "down") != "up")


class Console:
    """The parts of a running console."""

    def __init__(
        self, options: ConsoleOptions, facts: Facts, passwords: Passwords, sessions: Sessions
    ) -> None:
        self.options = options
        self.facts = facts
        self.passwords = passwords
        self.sessions = sessions
        self.history = History()
        self.jobs = Jobs()
        self.limit = GuessLimit()
        self.forms: dict[str, Form] = {}
        self._templates = _environment()

    # -- changes

    def may_change(self, session: Session) -> bool:
        """Whether the user of a session may change something."""
        if session.account is None or not self.options.allow_changes:
            return False
        account = self.passwords.get(session.account)
        if self.options.has_login:
            return account is not None and account.rights == "change"
        return session.rights == "change"

    def why_not(self, session: Session) -> str:
        """The reason why the user of a session cannot change anything."""
        if not self.options.allow_changes:
            return "This console is read-only: it was started without --allow-changes."
        return f"The account {session.account} is read-only."

    # -- answers

    def render(
        self, request: Request, template: str, *, status: int = 200, **values: object
    ) -> Response:
        """Render a page with a template and its values."""
        session: Session | None = request.scope.get("session")
        path = request.url.path
        span = self.span(request)
        context: dict[str, object] = {
            "request": request,
            "path": path,
            "path_of": path_of,
            "here": path + (f"?{request.url.query}" if request.url.query else ""),
            "cluster": self.options.cluster,
            "protocol": "RocketMQ" if self.facts.rocket is not None else "TubeMQ",
            "is_rocketmq": self.facts.rocket is not None,
            "version": __version__,
            "navigation": NAVIGATION,
            "session": session,
            "has_login": self.options.has_login,
            "may_change": session is not None and self.may_change(session),
            "csrf": session.csrf if session is not None else "",
            "notice": NOTICES.get(request.query_params.get(NOTICE, "")),
            "span": span,
            "spans": SPANS,
            "link": partial(self.link, request),
            "jobs": self.jobs.running(),
            "now_s": time.time(),
        }
        text = self._templates.get_template(template).render(context | values)
        response = HTMLResponse(text, status)
        if request.query_params.get("span") in SPANS:
            response.set_cookie(
                SPAN_COOKIE, span, max_age=30 * 86_400, samesite="strict", httponly=True
            )
        return response

    def refusal(self, request: Request, text: str, status: int) -> Response:
        """Render a page that says why a request failed."""
        return self.render(request, "refusal.html", status=status, text=text)

    def failure(self, request: Request, error: CohererError) -> Response:
        """Render the page of an error of the cluster or of the request."""
        return self.render(request, "refusal.html", status=self.status_of(error), text=str(error))

    def status_of(self, error: CohererError) -> int:
        """The HTTP status of an error."""
        if isinstance(error, UsageError):
            return 400
        if isinstance(error, RefusedError):  # the cluster answered: the request is at fault
            return 404 if error.code in MISSING_CODES else 409
        return 502

    def done(self, path: str, notice: str) -> Response:
        """Redirect to a page after a change, with a notice."""
        self.facts.forget()
        mark = "&" if "?" in path else "?"
        return RedirectResponse(f"{path}{mark}{urlencode({NOTICE: notice})}", 303)

    def link(self, request: Request, **changed: object) -> str:
        """The URL of this page with some parameters changed; None removes a parameter."""
        query = {**request.query_params, **changed}
        query.pop(NOTICE, None)
        kept = {name: str(value) for name, value in query.items() if value is not None}
        return f"{request.url.path}?{urlencode(kept)}" if kept else request.url.path

    async def again(
        self, request: Request, path: str, form: FormData, problem: str, status: int
    ) -> Response:
        """Show a form that was not handled again, with its fields and the token of the session."""
        shown = self.forms.get(path)
        if shown is not None:
            return await shown(request, form, problem, status)
        fields = [(name, str(value)) for name, value in form.multi_items() if name != "csrf"]
        return self.render(
            request, "again.html", status=status, action=path, fields=fields, problem=problem
        )

    # -- charts

    def span(self, request: Request) -> str:
        """The time span of charts: from the URL, otherwise the last choice."""
        for given in (request.query_params.get("span"), request.cookies.get(SPAN_COOKIE)):
            if given in SPANS:
                return given
        return DEFAULT_SPAN

    def chart(self, request: Request, title: str, labels: dict[str, str]) -> Chart:
        """Make a chart; `labels` has the label of each series by name."""
        return chart(self.history, title, labels, self.span(request), time.time())


def path_of(*parts: str) -> str:
    """Make a path from parts with any characters.

    >>> path_of("groups", "%RETRY%a/b")
    '/groups/%25RETRY%25a%2Fb'
    """
    return "/" + "/".join(quote(part, safe="") for part in parts)


def moment(text: str | None) -> datetime | None:
    """Parse a time of a form; without a zone it is UTC.

    Raises:
        UsageError: it is malformed.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        found.timestamp()
    except (ValueError, OverflowError):
        hint = "Write it like 2026-01-31T18:30; times are UTC."
        raise UsageError(f"{text!r} is not a time.", hint=hint) from None
    return found


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("coherer.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # jinja2's types list its own filters only.
    filters = cast("dict[str, object]", environment.filters)
    for name in FILTERS:
        filters[name] = getattr(formatting, name)
    return environment


def changing(console: Console, change: Change) -> Handler:
    """Make the handler of a form that changes something, if the console allows changes."""

    async def handler(request: Request) -> Response:
        session: Session = request.scope["session"]
        form = await read_form(request)
        if form is None:
            text = "This form is too large or malformed. Nothing was done."
            return console.refusal(request, text, 403)
        if not is_token(session, form.get("csrf")):
            return await console.again(request, request.url.path, form, EXPIRED, 403)
        if not console.may_change(session):
            return console.refusal(request, console.why_not(session), 403)
        return await change(request, form)

    return handler
