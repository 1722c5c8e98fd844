"""Questions that a command asks before it changes something."""

from __future__ import annotations

import getpass
import sys
import warnings
from collections.abc import Awaitable, Callable

import typer

from coherer.cli.output import print_done
from coherer.cli.target import AdminTarget, AnyAdmin
from coherer.errors import UsageError


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
