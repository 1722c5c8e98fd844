"""Shared by all commands: connection options, output, administration, and signals.

Tables are for people, JSON is for programs, and an error is one line on stderr.
"""

from __future__ import annotations

import asyncio
import getpass
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from math import nan
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast

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
    """The URL given, or that of the environment, or the default of `coherer serve`."""
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
    """Create an option for a number of seconds; `min` of typer's own type accepts `nan`.

    Args:
        names: of the option; none for the parameter's name.
        least: the smallest value.
        about: the help text.
    """

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


def print_json(value: object) -> None:
    """Print a JSON value on one line of stdout, and flush."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table; None is shown as unknown, and numbers are right-aligned.

    Args:
        columns: the headings.
        rows: with one cell for each heading.
        empty: printed on stderr if there are no rows.
    """
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
        # The local zone is unknown so close to the years 1 and 9999, and does not matter there.
        return found.replace(tzinfo=UTC)
    return found


def print_done(kind: str, name: str, done: str, *, as_json: bool) -> None:
    """Report a change that was made.

    Args:
        kind: `topic` or `group`.
        name: its name.
        done: the participle: `created`, `deleted`.
        as_json: for programs.
    """
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

    Args:
        prompt: what to ask for.
        instead: what to do without a terminal.

    Raises:
        UsageError: there is no terminal.
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
    """The administration that the options of a command name, of either protocol.

    Args:
        url: the cluster.
        admin: TubeMQ's HTTP administration, if given.
        token: for changes to TubeMQ's administration; None for Java's default.
        user: the account; RocketMQ's access key.
        password: its password; RocketMQ's secret key.
    """

    url: str
    admin: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None

    def run(self, work: Callable[[AnyAdmin], Awaitable[T]]) -> T:
        """Call the administration, and wait for the result.

        Raises:
            CohererError: raised by the administration.
        """
        return net.run(self._run(work))

    def run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Call a function of `coherer._administration`, and wait for the result.

        Raises:
            CohererError: raised by the function.
        """
        return net.run(self._run_on_cluster(work))

    async def _run_on_cluster(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        # Not for commands that need one protocol only, see above.
        from coherer._administration.access import TubeCluster, opened

        if self.admin is not None and self.url is DEFAULT_URL:
            # Only --admin was given: any cluster may answer there.
            from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

            async with connect_tubemq(self.url, user=self.user, password=self.password) as client:
                return await work(TubeCluster(self.admin, client, self._lone_admin(self.admin)))
        async with opened(
            self.url, user=self.user, password=self.password, admin=self.admin, token=self.token
        ) as cluster:
            return await work(cluster)

    def _lone_admin(self, url: str) -> Admin:
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
            # Only an administration was named, no cluster.
            return await work(self._lone_admin(self.admin))
        from coherer.tubemq import connect as connect_tubemq  # one protocol, see above

        async with connect_tubemq(
            self.url, user=self.user, password=self.password, admin=self.admin
        ) as client:
            return await work(client.admin(self.token))

    def __repr__(self) -> str:
        return masked(self, "token", "password")


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
    """Delete a topic or a group, after the user has confirmed.

    Args:
        target: where it is.
        kind: `topic` or `group`.
        name: its name.
        content: what is deleted with it, for the question.
        work: deletes it.
        yes: do not ask.
        as_json: for programs.
    """
    if not yes:
        confirm(f"Delete {name} with {content}?")
    target.run(work)
    print_done(kind, name, "deleted", as_json=as_json)


# Signals


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Inside, Ctrl-C and SIGTERM call `handler`. Outside the main thread, nothing changes."""
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
    """Inside, Ctrl-C and SIGTERM raise `KeyboardInterrupt`, so that everything is closed.

    Only the first one: a second signal means that closing takes too long, and the system ends the
    process at once.
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
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once.

    The second one is for a stop that takes too long, for example because a disk does not answer.
    The system then ends the process, and the next start recovers.
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
        if not scheduled:  # a storm of signals is one
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
