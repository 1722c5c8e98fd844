"""Tables, JSON, errors."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest
from rich.console import Console

from coherer.cli.output import fail, print_json, print_table, table, warn
from coherer.errors import ConnectError, UsageError


def test_a_table_is_not_truncated_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(("name", "lag"), [(long, 12345), ("[b]", None)], empty="nothing")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["name", "lag"]
    assert lines[2:] == [[long, "12,345"], ["[b]", "?"]]


def test_an_empty_table_prints_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [], empty="There is nothing.")
    assert capsys.readouterr() == ("", "There is nothing.\n")


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": None, "b": "ä\n"})
    out = capsys.readouterr().out
    assert (out.count("\n"), json.loads(out)) == (1, {"a": None, "b": "ä\n"})


def test_an_error_is_one_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(ConnectError("No\nconnection.", server="a:1", hint="Is it up?")) == 1
    assert fail(UsageError("Wrong.")) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: No connection. [server a:1] Is it up?",
        "error: Wrong.",
    ]


def test_nobody_else_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A client chooses its id, and an answer may quote it."""
    hostile = "\x1b]0;mine\x07\x9b31m"
    print_table(("member",), [(hostile,), ((hostile, "b"),)], empty="none")
    fail(ConnectError(f"Consumer {hostile} does not answer."))
    warn(hostile)
    written = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & {*written.out, *written.err}
    assert "]0;mine" in written.out
    assert "]0;mine" in written.err


def test_a_table_in_a_pipe_is_that_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("topic", "read", "größe")
    rows = [("a" * 300, 1, None), ("長い名前", 12_345, 2), ("[b]é[/b]", None, ("x", "y"))]
    print_table(columns, rows, empty="none")
    printed = capsys.readouterr().out
    Console(width=10_000).print(table(columns, rows))
    assert printed == capsys.readouterr().out


def test_a_table_goes_into_a_pipe_of_any_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(("topic",), [("a",)], empty="none")
    stream.flush()
    assert buffer.getvalue() == b"topic\n-----\na    \n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_has_names_that_the_encoding_of_the_output_lacks(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    value = {"directory": "gr\u00fcn", "not_utf8": os.fsdecode(b"gr\xfcn")}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_json(value)
    assert json.loads(written.getvalue().decode(encoding)) == value
