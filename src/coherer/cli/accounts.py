"""`coherer accounts`: the accounts of a node, in the files of its directory.

There are two kinds, because the protocols differ:

* Accounts of clients (`conf/plain_acl.yml`, in Java's format). TubeMQ and RocketMQ sign requests
  with the secret, so the file holds the secret in plain text.
* Accounts for the HTTP administration only (`conf/administration.json`). HTTP transmits the
  password, so the file holds a hash of it.

A running node reads the files again within 5 s, and at once on SIGHUP.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from coherer._rules.rocketmq.acl import Account, check_listed
from coherer._server.http.operators import Operators
from coherer._server.node.version import check_version
from coherer._server.rocketmq.acl import Access
from coherer.cli.backup import Directory
from coherer.cli.options import Json, Yes
from coherer.cli.output import print_done, print_json, print_table
from coherer.cli.questions import ask_password, confirm
from coherer.cli.serve.node_config import DIRECTORY
from coherer.errors import UsageError

LENGTH_MIN: Final = 7
"""The least length of a name and a password of a client, as RocketMQ's brokers require it."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Create, list, change and remove the accounts of a node.",
)

_SECRET_BYTES: Final = 24

Name = Annotated[str, typer.Argument(help="The name of the account; RocketMQ's access key.")]
Admin = Annotated[
    bool | None,
    typer.Option(
        "--admin/--no-admin",
        help="An administrator. Without --topic and --group it may do everything, over both "
        "protocols and HTTP.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC=PERMISSION", help="PUB, SUB, PUB|SUB or DENY; may be repeated."
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="GROUP=PERMISSION",
        help="SUB or DENY for a group, or PUB|SUB to give reasons with retries; may be repeated.",
    ),
]
DefaultTopic = Annotated[
    str | None,
    typer.Option(metavar="PERMISSION", help="Permission for other topics. Default: DENY."),
]
DefaultGroup = Annotated[
    str | None,
    typer.Option(metavar="PERMISSION", help="Permission for other groups. Default: DENY."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Addresses from which the account needs neither signature nor permission, such as "
        "10.0.0.* (RocketMQ)."
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="File with the password in its first line; - for stdin."),
]
Generate = Annotated[
    bool, typer.Option("--generate", help="Generate a password, and print it once.")
]
ReadOnly = Annotated[
    bool | None,
    typer.Option("--read-only/--changes", help="With --http-only: whether it may change anything."),
]


class Listed(msgspec.Struct):
    """An account as `--json` prints it, without its secret.

    Args:
        kind: "client" for TubeMQ and RocketMQ, "http" for the HTTP administration only.
        stored: how its password is stored, "secret" or "hash".
        admin: whether it is an administrator; for "http" whether it may change something.
        default_topic: its permission for other topics; None if it is not set.
        default_group: its permission for other groups; None if it is not set.
        address: the trusted addresses, which need no signature; "" without any.
    """

    name: str
    kind: Literal["client", "http"]
    stored: Literal["secret", "hash"]
    admin: bool
    topics: list[str] = []
    groups: list[str] = []
    default_topic: str | None = None
    default_group: str | None = None
    address: str = ""


@app.command()
def add(
    name: Name,
    *,
    directory: Directory = DIRECTORY,
    http_only: Annotated[
        bool,
        typer.Option("--http-only", help="For the HTTP administration only; stored as a hash."),
    ] = False,
    read_only: ReadOnly = None,
    admin: Admin = None,
    topic: Topics = None,
    group: Groups = None,
    default_topic: DefaultTopic = None,
    default_group: DefaultGroup = None,
    address: Address = None,
    password_file: PasswordFile = None,
    generate: Generate = False,
    as_json: Json = False,
) -> None:
    """Create an account. Without --generate or --password-file, the command asks for the password.

    Clients sign with the password, so the node has to store it: use a password that is used nowhere
    else.
    """
    access, operators = _open(directory)
    if _find(access, name) is not None or name in operators.accounts:
        raise _exists(name)
    given = _given(admin, topic, group, default_topic, default_group, address)
    if http_only and given:
        raise UsageError("With --http-only, the only permissions are --read-only and --changes.")
    if read_only is not None and not http_only:
        raise UsageError("--read-only and --changes are for accounts with --http-only.")
    least = 1 if http_only else LENGTH_MIN
    if len(name) < least:
        raise UsageError(f"The name {name!r} is too short: it needs {least} characters or more.")
    password = _password(name, password_file, generate=generate, least=least)
    if http_only:
        operators.put(name, password, changes=not read_only, is_new=True)
    else:

        def new(known: Account | None) -> dict[str, object]:
            if known is not None:  # another command was faster
                raise _exists(name)
            return {"secretKey": password, "admin": False} | given

        access.revise(name, new, _now_ms())
    if generate:
        _show_password(name, password, as_json=as_json)
    else:
        print_done("account", name, "created", as_json=as_json)
    typer.echo(
        "A node requires accounts if it is started with --rocketmq-access or --user; a running one "
        "reads the file within 5 s.",
        err=True,
    )


@app.command(name="list")
def list_accounts(*, directory: Directory = DIRECTORY, as_json: Json = False) -> None:
    """List the accounts in the files of a node, without their secrets.

    Accounts in the options of the node (--user) are not listed.
    """
    access, operators = _open(directory)
    rows = [*map(_client, access.accounts)]
    rows += [Listed(name, "http", "hash", one.changes) for name, one in operators.accounts.items()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("name", "kind", "stored as", "permissions"),
        [(row.name, row.kind, row.stored, _in_words(row)) for row in rows],
        empty=f"There are no accounts in {directory}.",
    )


@app.command()
def grant(
    name: Name,
    *,
    directory: Directory = DIRECTORY,
    read_only: ReadOnly = None,
    admin: Admin = None,
    topic: Topics = None,
    group: Groups = None,
    default_topic: DefaultTopic = None,
    default_group: DefaultGroup = None,
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Change the permissions of an account. New values replace those of the same topic or group."""
    access, operators = _open(directory)
    given = _given(admin, topic, group, default_topic, default_group, address)
    account = _find(access, name)
    if account is None and name in operators.accounts:
        if given or read_only is None:
            raise UsageError(f"{name!r} is for HTTP only: use --read-only or --changes.")
        operators.put(name, None, changes=not read_only)
    elif account is None:
        raise _unknown(name)
    else:
        if read_only is not None:
            raise UsageError(
                f"{name!r} is a client's account: --read-only and --changes are for accounts with "
                "--http-only.",
                hint="Nothing was changed. --no-admin and --topic limit it.",
            )
        if not given:
            raise UsageError("Name the permissions.", hint="For example --topic flights=PUB.")
        access.revise(name, lambda known: _granted(known, given), _now_ms())
    print_done("account", name, "changed", as_json=as_json)


@app.command()
def password(
    name: Name,
    *,
    directory: Directory = DIRECTORY,
    password_file: PasswordFile = None,
    generate: Generate = False,
    as_json: Json = False,
) -> None:
    """Change the password of an account. Its clients are refused until they use the new one."""
    access, operators = _open(directory)
    known = _find(access, name)
    if known is None and name not in operators.accounts:
        raise _unknown(name)
    least = 1 if known is None else LENGTH_MIN
    new = _password(name, password_file, generate=generate, least=least)
    if known is not None:
        access.put({"accessKey": name, "secretKey": new}, _now_ms())
    else:
        operators.put(name, new, changes=None)
    if generate:
        _show_password(name, new, as_json=as_json)
    else:
        print_done("account", name, "changed", as_json=as_json)


@app.command()
def remove(
    name: Name, *, directory: Directory = DIRECTORY, yes: Yes = False, as_json: Json = False
) -> None:
    """Remove an account. A running node refuses its clients within 5 s."""
    access, operators = _open(directory)
    if _find(access, name) is None and name not in operators.accounts:
        raise _unknown(name)
    if not yes:
        confirm(f"Remove the account {name}?")
    if not access.delete(name, _now_ms()):
        operators.delete(name)
    print_done("account", name, "removed", as_json=as_json)


def _open(directory: Path) -> tuple[Access, Operators]:
    check_version(directory)
    return Access(directory, _now_ms()), Operators(directory)


def _find(access: Access, name: str) -> Account | None:
    return next((one for one in access.accounts if one.access_key == name), None)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"The files of the node have no account {name!r}.",
        hint="`coherer accounts list` shows them. Accounts of --user are in the node's options.",
    )


def _given(
    admin: bool | None,
    topic: list[str] | None,
    group: list[str] | None,
    default_topic: str | None,
    default_group: str | None,
    address: str | None,
) -> dict[str, object]:
    """Return the fields that the user gave, by their names in the file."""
    for flag, one in (("--default-topic", default_topic), ("--default-group", default_group)):
        if one is not None:
            try:
                check_listed([f"x={one}"])
            except UsageError as error:
                raise UsageError(f"{flag} {one!r} is not a permission.", hint=str(error)) from error
    fields = {
        "admin": admin,
        "topicPerms": topic,
        "groupPerms": group,
        "defaultTopicPerm": default_topic,
        "defaultGroupPerm": default_group,
        "whiteRemoteAddress": address,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _exists(name: str) -> UsageError:
    return UsageError(
        f"The account {name!r} exists.",
        hint="See `coherer accounts grant` and `coherer accounts password`.",
    )


def _granted(known: Account | None, given: dict[str, object]) -> dict[str, object]:
    """The given fields, with the permissions that the account has and keeps."""
    if known is None:  # another command removed it meanwhile
        raise UsageError("The account does not exist any more.")
    lists = {"topicPerms": known.topic_perms, "groupPerms": known.group_perms}
    merged = {key: _merged(lists[key] or (), given[key]) for key in lists.keys() & given.keys()}
    return given | merged


def _merged(known: object, given: object) -> list[str]:
    """Return the known permissions, with those of the same name replaced."""
    entries: dict[str, str] = {}
    for text in [*msgspec.convert(known, list[str]), *msgspec.convert(given, list[str])]:
        entries[text.partition("=")[0].strip()] = text
    return list(entries.values())


def _password(name: str, file: Path | None, *, generate: bool, least: int = 1) -> str:
    text = _read_password(name, file, generate=generate)
    if len(text) < least:
        raise UsageError(f"The password has {len(text)} characters; it needs {least} or more.")
    return text


def _read_password(name: str, file: Path | None, *, generate: bool) -> str:
    if generate:
        if file is not None:
            raise UsageError("--generate and --password-file exclude each other.")
        return secrets.token_urlsafe(_SECRET_BYTES)
    if file is None:
        return ask_password(
            f"Password of {name}", instead="Use --generate, --password-file FILE, or - for stdin."
        )
    try:
        lines = (sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
    if not lines or not lines[0]:
        raise UsageError(f"The first line of {file} is empty; it must be the password.")
    return lines[0]


def _show_password(name: str, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"account": name, "password": text})
    else:
        typer.echo(text)


def _client(account: Account) -> Listed:
    return Listed(
        account.access_key,
        "client",
        "secret",
        account.admin,
        list(account.topic_perms or ()),
        list(account.group_perms or ()),
        account.default_topic_perm,
        account.default_group_perm,
        account.white_remote_address,
    )


def _in_words(row: Listed) -> str:
    if row.kind == "http":
        return "changes" if row.admin else "read only"
    if row.admin and not (row.topics or row.groups):
        return "everything"
    parts = ["administrator"] if row.admin else []
    parts += [f"topic {one}" for one in row.topics] + [f"group {one}" for one in row.groups]
    parts += [f"other topics={row.default_topic}"] if row.default_topic else []
    parts += [f"other groups={row.default_group}"] if row.default_group else []
    parts += [f"trusted from {row.address}"] if row.address else []
    return ", ".join(parts) or "nothing"


def _now_ms() -> int:
    return time.time_ns() // 10**6
