"""Shared by all commands: connection options, output, administration, and signals.

Tables are for people, JSON is for programs, and an error is one line on stderr.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter
from math import nan
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
)

import msgspec
import typer

from coherer import _net as net
from coherer import blocking
from coherer._client.engine.options import url_from_environment
from coherer._common.masking import masked
from coherer._common.urls import is_rocketmq
from coherer.cli.early import EARLY
from coherer.errors import CohererError, UsageError

# A command loads the client of one protocol, which takes 0.1 s less than both, and no tables for
# --json.
if TYPE_CHECKING:
    from rich.table import Table

    from coherer._administration.access import Cluster
    from coherer._client.rocketmq.administration.admin import Admin as RocketAdmin
    from coherer._client.tubemq.administration.admin import Admin
    from coherer.blocking.rocketmq import Client as RocketClient

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound=msgspec.Struct)

AnyAdmin: TypeAlias = "Admin | RocketAdmin"

DEFAULT_URL: Final = "tubemq://127.0.0.1:8715"

DEFAULT_ROCKETMQ_URL: Final = "rocketmq://127.0.0.1:9876"
"""The RocketMQ port of the same node, for commands that TubeMQ does not support."""

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes."""

UNKNOWN: Final = "?"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT: Final = 1024
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


# Options of several commands


def command_url(given: str | None) -> str:
    """The given URL, else that of the environment, else that of `coherer serve` on this machine."""
    return given or url_from_environment() or DEFAULT_URL


def rocketmq_command_url(given: str | None) -> str:
    """The same for a command that only RocketMQ supports.

    >>> import os
    >>> _ = os.environ.pop("COHERER_URL", None), os.environ.pop("NAMESRV_ADDR", None)
    >>> rocketmq_command_url(""), rocketmq_command_url("tubemq://a")
    ('rocketmq://127.0.0.1:9876', 'tubemq://a')
    """
    url = command_url(given)
    return DEFAULT_ROCKETMQ_URL if url is DEFAULT_URL else url


SECONDS_MAX: Final = 366 * 86_400
"""The largest number of seconds that an option accepts; event loops cannot wait for any time."""


def seconds_option(*names: str, least: float = 0, about: str) -> Any:
    """Create an option for a number of seconds; without `names` it is called as its parameter."""

    # `min` of typer's own type accepts `nan`.
    def parse(given: str | float) -> float:
        try:
            found = float(given)
        except ValueError:
            found = nan
        if not least <= found <= SECONDS_MAX:
            text = f"{given!r} is not a number of seconds from {least:g} to {SECONDS_MAX}."
            raise typer.BadParameter(text)
        return found

    return typer.Option(*names, parser=parse, metavar="SECONDS", help=about)


Url = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar="COHERER_URL",
        help="The cluster: tubemq://host:port with the masters, separated by commas, or "
        "rocketmq://host:port with the name servers. For TLS: tubemqs://, rocketmqs://; "
        "SSL_CERT_FILE names a certificate authority of your own. Default: the name servers in "
        f"NAMESRV_ADDR if it is set, else {DEFAULT_URL}.",
        callback=command_url,
        show_default=False,
    ),
]
RocketUrl = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar="COHERER_URL",
        help="The RocketMQ cluster: rocketmq://host:port with the name servers, separated by "
        "commas; rocketmqs:// for TLS. Default: the name servers in NAMESRV_ADDR if it is set, "
        f"else {DEFAULT_ROCKETMQ_URL}.",
        callback=rocketmq_command_url,
        show_default=False,
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="COHERER_ADMIN",
        help="TubeMQ: HTTP administration of the master, http://host:port; without --url, the "
        "only server that is used. Default: the address that the master reports; Java's masters do "
        "not report it, and usually use port 8080.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="COHERER_TOKEN",
        help="TubeMQ: token for changes over HTTP. A node with accounts takes --user and "
        "--password instead. Default: abc, as in Java.",
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        envvar="COHERER_USER",
        help="Account, if the cluster requires one; RocketMQ's access key.",
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="COHERER_PASSWORD",
        help="Password of the account, RocketMQ's secret key. Prefer the environment variable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number.")]


def with_options(
    options: type[S],
    command: Callable[Concatenate[S, P], None],
    *,
    without: Collection[str] = (),
    **types: object,
) -> Callable[..., None]:
    """Replace the first parameter of a command, a struct, by an option for each of its fields.

    Args:
        options: the struct; the types of its fields declare the options, as Typer wants them.
        command: the command.
        without: fields that are no options of this command.
        types: fields that have another type here.
    """
    shared = get_type_hints(options, include_extras=True) | types
    fields = [one for one in msgspec.structs.fields(options) if one.name not in without]
    first, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:  # Any: Typer calls it with the values of the options
        one = options(**{field.name: given.pop(field.name) for field in fields})
        cast("Callable[..., None]", command)(**{first.name: one}, **given)

    parameters = [
        *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own),
        *(
            Parameter(
                one.name,
                Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=shared[one.name],
            )
            for one in fields
        ),
    ]
    # All help texts show `--json` last.
    parameters.sort(key=lambda one: one.name == "as_json")
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def connect(
    url: str, user: str | None, password: str | None
) -> blocking.tubemq.Client | RocketClient:
    """A client with the connection options of a command."""
    if is_rocketmq(url):
        return blocking.rocketmq.connect(url, user=user, password=password)
    return blocking.tubemq.connect(url, user=user, password=password)


# Output


def fail(error: CohererError) -> int:
    """Print an error on stderr, and return the exit code for it."""
    typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
    typer.echo(" ".join(str(error).split()), err=True)
    return MISUSED if isinstance(error, UsageError) else FAILED


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.secho("warning: ", err=True, nl=False, fg="yellow", bold=True)
    typer.echo(text, err=True)


def print_json(value: object) -> None:
    """Print a JSON value on one line of stdout, and flush."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or `empty` on stderr; None is shown as unknown, numbers are right-aligned."""
    listed = list(rows)
    if not listed:
        typer.echo(empty, err=True)
        return
    from rich.console import Console  # not for --json

    console = Console()
    if not console.is_terminal:
        # A pipe has no width: do not truncate.
        console = Console(width=10_000)
    console.print(table(columns, listed))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table for a terminal; see `print_table`."""
    # Not for --json.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    listed = list(rows)
    for column, cells in zip(
        columns, zip(*listed, strict=True) if listed else [()] * len(columns), strict=True
    ):
        numbers = all(cell is None or type(cell) is int for cell in cells)
        found.add_column(column, justify="right" if numbers else "left")
    for row in listed:
        found.add_row(*(Text(cell_text(cell)) for cell in row))
    return found


def amount(count: int, thing: str) -> str:
    """A count with its noun.

    >>> amount(1, "message"), amount(2_000, "byte")
    ('1 message', '2,000 bytes')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def cell_text(cell: object) -> str:
    """The text of a table cell.

    >>> [cell_text(cell) for cell in (None, 1234567, True, ("a", "b"), "x")]
    ['?', '1,234,567', 'yes', 'a, b', 'x']
    """
    match cell:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case tuple():
            return ", ".join(map(cell_text, cast("tuple[object, ...]", cell)))
        case _:
            return str(cell)


def time_text(time_ms: int | None) -> str | None:
    """Format a time in UTC; None if it is unknown.

    >>> time_text(1_700_000_000_123), time_text(None)
    ('2023-11-14 22:13:20.123Z', None)
    """
    if time_ms is None:
        return None
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(" ", "milliseconds").replace("+00:00", "Z")


def iso_time(time_ms: int | None) -> str | None:
    """A time for programs: ISO 8601 in UTC; None if it is unknown.

    >>> iso_time(1_700_000_000_123), iso_time(None)
    ('2023-11-14T22:13:20.123Z', None)
    """
    text = time_text(time_ms)
    return None if text is None else text.replace(" ", "T")


def size(size_bytes: int | None) -> str:
    """Format a number of bytes.

    >>> size(None), size(1023), size(1 << 20), size(3 << 29)
    ('?', '1,023 B', '1.0 MiB', '1.5 GiB')
    """
    if size_bytes is None:
        return UNKNOWN
    if size_bytes < _UNIT:
        return f"{size_bytes:,} B"
    value, units = float(size_bytes), iter(_UNITS[1:])
    unit = _UNITS[0]
    while value >= _UNIT and (following := next(units, None)) is not None:
        value, unit = value / _UNIT, following
    return f"{value:,.1f} {unit}"


def age(age_ms: int | None) -> str:
    """Format an age in ms; `?` if it is unknown.

    >>> age(None), age(61_000)
    ('?', '1 min 1 s')
    """
    return UNKNOWN if age_ms is None else duration(age_ms / 1000)


def duration(seconds: float) -> str:
    """Format a time span in its two largest units.

    >>> duration(4), duration(3_700), duration(200_000)
    ('4 s', '1 h 1 min', '2 d 7 h')
    """
    left, parts = int(seconds), list[str]()
    for name, span in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, span)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def body_text(body: bytes, limit: int = 200) -> str:
    r"""Format the beginning of a body: text on one line, or hexadecimal digits.

    >>> body_text(b"a\nb"), body_text(b"\xff\x00"), body_text(b"abc", 2)
    ('a b', 'ff00', 'ab…')
    """
    try:
        text = " ".join(body.decode().split())
    except UnicodeDecodeError:
        text = body[:limit].hex()
    readable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return readable if len(readable) <= limit else f"{readable[:limit]}…"


@contextmanager
def progress_bar(label: str) -> Generator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on stderr if that is a terminal.

    Yields a function that takes a text, the number of done items, and the total or None.
    """
    if not sys.stderr.isatty():
        yield lambda _text, _done, _total: None
        return
    # Scripts show no progress: 30 ms.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda text, done, total: bar.update(
            task, description=text or label, completed=done, total=total
        )


def parse_moment(text: str) -> datetime | None:
    """Parse a time such as 2026-01-31T18:30, local without a zone; None if it is malformed.

    >>> parse_moment("0001-01-01"), parse_moment("now")
    (datetime.datetime(1, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None)
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        found.timestamp()
    except (ValueError, OverflowError, OSError):
        # Local time cannot be computed near the years 1 and 9999; the zone does not matter there.
        return found.replace(tzinfo=UTC)
    return found


def print_done(kind: str, name: str, done: str, *, as_json: bool) -> None:
    """Report a change, such as `print_done("topic", "flights", "created", as_json=False)`."""
    if as_json:
        print_json({kind: name, "done": done})
    else:
        typer.echo(f"{name}: {done}")


def confirm(question: str) -> None:
    """Ask a question on stderr; without a terminal, say how to answer it.

    Raises:
        typer.Abort: the answer was no, or nobody answered.
    """
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if not sys.stdin.isatty():
            typer.echo("\nNot confirmed. In a script, use --yes.", err=True)
        raise


def ask_password(prompt: str, *, instead: str) -> str:
    """Ask for a new password, twice.

    Raises:
        UsageError: there is no terminal; `instead` is the hint.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            text: str = typer.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
        except getpass.GetPassWarning:
            typer.echo(err=True)
            text = "There is no terminal to ask for the password."
            raise UsageError(text, hint=instead) from None
    return text


# Administration


class AdminTarget(msgspec.Struct, frozen=True):
    """The cluster that the options of a command name, of either protocol."""

    url: Url = ""
    admin: AdminUrl = None
    token: Token = None
    user: User = None
    password: Password = None

    def run(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        """Call the administration, and wait for the result."""
        return net.run(self._run(work))

    def run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Call a function of `coherer._administration`, and wait for the result."""
        return net.run(self._run_on_cluster(work))

    async def _run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        # Commands that need only one protocol do not load this, see above.
        from coherer._administration.access import TubeCluster, opened

        if self.admin is not None and self.url is DEFAULT_URL:
            # Only --admin was given: any cluster may answer there.
            from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

            async with connect_tubemq(self.url, user=self.user, password=self.password) as client:
                return await work(TubeCluster(self.admin, client, self._http_admin(self.admin)))
        async with opened(
            self.url, user=self.user, password=self.password, admin=self.admin, token=self.token
        ) as cluster:
            return await work(cluster)

    def _http_admin(self, url: str) -> Admin:
        """The administration of `--admin` without a cluster."""
        # One protocol, see above.
        from coherer._client.tubemq.administration.admin import Admin
        from coherer._client.tubemq.administration.calls import AUTHOR

        return Admin(url, self.token, user=self.user or AUTHOR, password=self.password)

    async def _run(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        if is_rocketmq(self.url):
            from coherer.rocketmq import connect as connect_rocketmq  # one protocol, see above

            async with connect_rocketmq(self.url, user=self.user, password=self.password) as rocket:
                return await work(rocket.admin())
        if self.admin is not None and self.url is DEFAULT_URL:
            # Only --admin was given.
            return await work(self._http_admin(self.admin))
        from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

        async with connect_tubemq(
            self.url, user=self.user, password=self.password, admin=self.admin
        ) as client:
            return await work(client.admin(self.token))

    def __repr__(self) -> str:
        return masked(self, "token", "password")


def on_cluster(command: Callable[Concatenate[AdminTarget, P], None]) -> Callable[..., None]:
    """Give a command the options of a cluster that it reads, in place of its first parameter."""
    return with_options(AdminTarget, command, without=("token",))


def on_cluster_with_token(
    command: Callable[Concatenate[AdminTarget, P], None],
) -> Callable[..., None]:
    """The same with `--token`, which changes over TubeMQ need."""
    return with_options(AdminTarget, command)


def on_rocketmq(command: Callable[Concatenate[AdminTarget, P], None]) -> Callable[..., None]:
    """The same for a command that only RocketMQ supports."""
    return with_options(AdminTarget, command, without=("admin", "token"), url=RocketUrl)


def confirm_and_delete(
    target: AdminTarget,
    kind: str,
    name: str,
    content: str,
    work: Callable[[AnyAdmin], Awaitable[object]],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a topic or a group after a question, which mentions the `content` deleted with it."""
    if not yes:
        confirm(f"Delete {name} with {content}?")
    target.run(work)
    print_done(kind, name, "deleted", as_json=as_json)


# Signals


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Call `handler` on Ctrl-C and SIGTERM. Outside the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def signals_interrupt() -> AbstractContextManager[None]:
    """Raise `KeyboardInterrupt` on the first Ctrl-C or SIGTERM, so that everything is closed.

    A second signal means that closing takes too long: the system ends the process at once.
    """
    return on_stop_signals(_interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    let_signals_kill()
    raise KeyboardInterrupt


def let_signals_kill() -> None:
    """Restore the system's handling: the next signal ends the process at once."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def stop_event() -> Generator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets.

    A second one is for a stop that takes too long, for example because a disk does not answer: the
    system ends the process at once, and the next start recovers.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        let_signals_kill()
        loop.call_soon_threadsafe(stopped.set)

    with on_stop_signals(stop):
        yield stopped


@contextmanager
def on_signal(name: str, action: Callable[[], None]) -> Generator[None]:
    """Call `action` in the event loop on each signal of that name, if the system has it."""
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    scheduled = False

    def run() -> None:
        nonlocal scheduled
        scheduled = False
        action()

    def arrived(number: int, frame: FrameType | None) -> None:
        nonlocal scheduled
        del number, frame
        if not scheduled:  # one call for all signals that arrive before it
            scheduled = True
            loop.call_soon_threadsafe(run)

    before = signal.signal(number, arrived)
    if name in EARLY:
        EARLY.discard(name)
        loop.call_soon(action)
    try:
        yield
    finally:
        signal.signal(number, before)
