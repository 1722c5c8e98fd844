"""`coherer console`: serves pages for the operators of a cluster until a signal stops it."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coherer import _net as net
from coherer.cli.options import Json
from coherer.cli.output import print_json
from coherer.cli.questions import ask_password
from coherer.cli.signals import on_signal, stop_event
from coherer.cli.target import AdminTarget, on_cluster_with_token
from coherer.errors import UsageError

# `serve` imports this module; a node without a console loads nothing of it.
if TYPE_CHECKING:
    from coherer.console.options import ConsoleOptions

app = typer.Typer(add_completion=False)


def check_installed() -> None:
    """Check that the packages that the console needs are installed.

    Raises:
        UsageError: a package is missing.
    """
    missing = [
        name
        for name in ("starlette", "uvicorn", "jinja2", "itsdangerous")
        if find_spec(name) is None
    ]
    if missing:
        raise UsageError(
            f"The console needs {', '.join(missing)}.", hint='pip install "coherer[console]"'
        )


Host = Annotated[
    str,
    typer.Option(help="Address to listen on. If other machines can reach it, set a password."),
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="Allow changes: replay, purge, reset, create, delete, send. Otherwise the console "
        "is read-only.",
    ),
]
ConsolePassword = Annotated[
    str | None,
    typer.Option(
        envvar="COHERER_CONSOLE_PASSWORD",
        help="Password of the console's account admin. Prefer the environment variable.",
    ),
]
Accounts = Annotated[
    Path | None,
    typer.Option(
        envvar="COHERER_CONSOLE_ACCOUNTS",
        help="File of the console's accounts; --hash-password prints its lines.",
    ),
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        help="URL that browsers use, such as https://console.example.org, if it differs from "
        "the address to listen on.",
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="File of a certificate chain, for https.")]
TlsKey = Annotated[Path | None, typer.Option(help="File of its key.")]
SampleMs = Annotated[int, typer.Option(help="Interval of the charts' samples, in ms.")]
HashPassword = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Ask for the password of an account, print its line for --accounts, and exit.",
    ),
]
ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="With --hash-password: a read-only account.")
]


@app.command()
@on_cluster_with_token
def console(
    target: AdminTarget,
    host: Host = "127.0.0.1",
    port: Port = 8790,
    allow_changes: AllowChanges = False,
    console_password: ConsolePassword = None,
    accounts: Accounts = None,
    public_url: PublicUrl = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    sample_ms: SampleMs = 10_000,
    hash_password: HashPassword = None,
    read_only: ReadOnly = False,
    as_json: Json = False,
) -> None:
    """Serve the console: dead letters, topics, groups, messages, clients, brokers, accounts."""
    if hash_password is not None:
        _print_account(hash_password, read_only=read_only)
        return
    check_installed()

    from coherer.console.options import ConsoleOptions

    options = ConsoleOptions(
        url=target.url,
        admin=target.admin,
        token=target.token,
        user=target.user,
        password=target.password,
        host=host,
        port=port,
        allow_changes=allow_changes,
        console_password=console_password,
        accounts=accounts,
        public_url=public_url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        sample_ms=sample_ms,
    )
    net.run(_run(options, as_json=as_json))


def _print_account(name: str, *, read_only: bool) -> None:
    from coherer.console.passwords import Account, hashed, line

    if ":" in name or not name.strip() or name.startswith("#"):
        raise UsageError(f"{name!r} cannot be the name of an account.")
    password = ask_password("Password", instead="Run the command in a terminal.")
    typer.echo(line(Account(name.strip(), hashed(password), "read" if read_only else "change")))


async def _run(options: ConsoleOptions, *, as_json: bool) -> None:
    from coherer.console.serving import served

    with stop_event() as stopped, ExitStack() as stack:
        async with served(options) as serving:
            if serving.certificates is not None:
                stack.enter_context(on_signal("SIGHUP", serving.certificates.reload))
            announce(serving.url, options, as_json=as_json)
            await stopped.wait()


def announce(url: str, options: ConsoleOptions, *, as_json: bool) -> None:
    """Print the URL of the console."""
    if as_json:
        print_json({"url": url, "cluster": options.cluster, "changes": options.allow_changes})
        return
    typer.echo(f"The console of {options.cluster} is at {url}")
    if not options.allow_changes:
        typer.echo("It is read-only; --allow-changes allows changes.")
    if not (options.is_local or options.secure):
        typer.echo(
            "Passwords are sent in plain text: give --tls-cert and --tls-key, or --public-url with "
            "https if a proxy terminates TLS.",
            err=True,
        )
    typer.echo("Press Ctrl-C to stop.")
