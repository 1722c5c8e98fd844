"""`coherer drain`: lets consumers finish, then stops a node, as in a rolling restart."""

from __future__ import annotations

import base64
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from coherer._common.drain_status import PATH, DrainStatus
from coherer._server.options.node import JAVA_TOKEN
from coherer.cli.options import Json, seconds_option
from coherer.cli.output import amount, print_json
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import Password, User
from coherer.errors import (
    CohererError,
    ConnectError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)

UNREAD: Final = 3
"""Exit code: the node has stopped, but connected consumers had not read everything."""

_POLL_S: Final = 0.3
_HTTP_TIMEOUT_S: Final = 10.0
_TOO_MANY: Final = 429

app = typer.Typer(add_completion=False)


class Drained(msgspec.Struct):
    """The result, as `--json` prints it.

    Args:
        state: "drained", "timed out", or "serving" after --cancel.
        lag: the number of messages that connected groups had not acknowledged, as far as it is
            known.
        elapsed_s: how long it took.
    """

    state: str
    lag: int
    elapsed_s: float


@app.command()
def drain(
    *,
    admin: Annotated[
        str,
        typer.Option("--admin", envvar="COHERER_ADMIN", help="HTTP administration of the node."),
    ] = "http://127.0.0.1:8080",
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="COHERER_TOKEN", help="Token for changes. Default: abc, as in Java."
        ),
    ] = None,
    user: User = None,
    password: Password = None,
    timeout: Annotated[
        float, seconds_option(about="Seconds after which the node stops in any case.")
    ] = 300.0,
    grace: Annotated[
        float,
        seconds_option(
            about="Seconds for which sends are accepted while producers move to other brokers.",
        ),
    ] = 15.0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel a drain: accept sends again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Move producers elsewhere, wait until connected consumers have read everything, and stop.

    A draining node accepts no more sends. Ctrl-C does not end the drain; --cancel does.

    Exit codes: 0 drained and stopped; 1 the node cannot be reached or refuses the account, or the
    drain was cancelled; 2 the command line is wrong, or this node cannot be drained now; 3 stopped
    after the timeout, with messages that connected consumers had not read.
    """
    node = _Node(admin, token, user, password)
    if cancel:
        _report(node.ask({"cancel": "true"}), as_json=as_json)
        return
    status = node.ask({"timeout_s": str(timeout), "grace_s": str(grace)})
    with signals_interrupt(), _progress(shown=not as_json) as show:
        status = _followed(node, status, show)
    _report(status, as_json=as_json)
    if status.state != "drained":
        raise typer.Exit(UNREAD if status.state == "timed out" else 1)


def _followed(node: _Node, status: DrainStatus, show: Callable[[DrainStatus], None]) -> DrainStatus:
    """Follow a drain; return its last status when the node has stopped or accepts sends again.

    Raises:
        CohererError: the node refuses the account now, or has not answered in its time.
    """
    end_s = time.monotonic() + status.timeout_s - status.elapsed_s + _HTTP_TIMEOUT_S
    while True:
        show(status)
        try:
            latest = node.ask()
        except RequestTimeoutError:  # it is busy
            if time.monotonic() > end_s:
                raise
            continue
        except ConnectError:
            return status
        if latest.state == "serving":  # it was cancelled, or the node has started again
            return status if status.state in {"drained", "timed out"} else latest
        status = latest
        time.sleep(_POLL_S)


def _report(status: DrainStatus, *, as_json: bool) -> None:
    if as_json:
        print_json(Drained(status.state, status.lag, status.elapsed_s))
        return
    match status.state:
        case "drained":
            text = f"Drained and stopped after {status.elapsed_s:.1f} s."
        case "timed out":
            unread = f"{amount(status.lag, 'message')} unread"
            if any(one.lag is None for one in status.groups):
                unread += ", and those of groups that have not committed yet"
            text = f"Stopped after {status.elapsed_s:.1f} s; {unread}, but stored."
        case "serving":
            text = "The node accepts sends again."
        case _:
            text = "The node stopped before the drain had ended."
    typer.echo(text)


class _Node:
    """The administration of one node."""

    def __init__(self, url: str, token: str | None, user: str | None, password: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--admin {url!r} is not a URL.", hint="Write http://host:port.")

        self._url = url.rstrip("/")
        if user is not None:
            proof = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._authorization = f"Basic {proof}"
        elif token and not (token.isascii() and token.isprintable()):
            raise UsageError("--token has characters that a token for HTTP cannot have.")
        else:
            self._authorization = f"Bearer {token or JAVA_TOKEN}"

    def ask(self, form: dict[str, str] | None = None) -> DrainStatus:
        """Start or cancel a drain with a form; without a form, ask for the progress.

        Raises:
            RequestTimeoutError: the node does not answer in time.
            ConnectError: it cannot be reached.
            RefusedError: the node refuses the account or token.
            UsageError: the server is not a Coherer node, or cannot drain.
        """
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self._url + PATH,
            None if form is None else urllib.parse.urlencode(form).encode(),
            {"Authorization": self._authorization},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_HTTP_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(), type=DrainStatus)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read().decode(errors="replace")) from error
        except (OSError, EOFError) as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise RequestTimeoutError(
                    f"The node at {self._url} did not answer within {_HTTP_TIMEOUT_S:.0f} s.",
                    hint="If a drain has begun, it goes on. Run the command again to follow it.",
                ) from error
            raise ConnectError(
                f"The node at {self._url} does not answer: {_reason(error)}.",
                hint="Name its HTTP administration with --admin. A node without one drains on "
                "SIGUSR1.",
            ) from error
        except msgspec.DecodeError as error:
            raise UsageError(f"{self._url} is not the administration of a Coherer node.") from error

    def _refused(self, status: int, text: str) -> CohererError:
        if status in {401, 403, _TOO_MANY}:
            hint = "Set --token, or --user and --password of an account with all permissions."
            return RefusedError(
                f"The node at {self._url} refused the request: {text.strip()}",
                hint="" if status == _TOO_MANY else hint,
            )
        hint = "" if status != 404 else "It may be a Java server, or an older Coherer."
        return UsageError(f"{self._url} answers {status}: {text.strip()}", hint=hint)


@contextmanager
def _progress(*, shown: bool) -> Generator[Callable[[DrainStatus], None]]:
    """Show the number of unread messages."""
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, most = bar.add_task("Draining", total=None), 0

        def show(status: DrainStatus) -> None:
            nonlocal most
            most = max(most, status.lag, 1)
            text = (
                f"{amount(status.lag, 'message')} unread by {amount(len(status.groups), 'group')}"
            )
            if status.senders:
                text += "; producers are still sending"
            bar.update(task, description=text, completed=most - status.lag, total=most)

        yield show


def _reason(error: Exception) -> str:
    """The reason of a failure, in the words of the operating system."""
    inner = getattr(error, "reason", error)
    return getattr(inner, "strerror", None) or str(inner)
