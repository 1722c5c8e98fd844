"""Plain values of parameters become what typer makes of them, without pydantic."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from coherer.cli.main import COMMANDS, app, load
from coherer.cli.values import NOT_PLAIN, plain_value

VALUES = (
    *("", "a", "-7", "0", "12", "007", " 5", "1_000", "9" * 30, "1.5", "nan", "yes", "true"),
    *(str(Path(__file__)), "/nowhere/at/all", ".", "-", None, True, False, 0, 7, 2.0, Path("x")),
)


def params() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = load(name)
        for one in (command, *getattr(command, "commands", {}).values()):
            for param in one.params:
                yield f"{name} {one.name} {param.name}", param


PARAMS = dict(params())


@pytest.mark.skipif(
    not hasattr(next(iter(PARAMS.values())), "get_runtime_param"), reason="typer before 0.29"
)
@pytest.mark.parametrize("name", PARAMS)
def test_a_plain_value_is_what_typer_makes_of_it(name: str) -> None:
    param = PARAMS[name]
    for value in (*VALUES, param.default):
        found = plain_value(value, param)
        if found is NOT_PLAIN:
            continue
        made = param.get_runtime_param().coerce(value, param=param, ctx=None)
        assert (made, type(made)) == (found, type(found))


def test_commands_load_no_pydantic() -> None:
    program = (
        "import sys; from coherer.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('pydantic' in sys.modules)"
    )
    for arguments in (
        ("topics", "list", "--url", "tubemq://127.0.0.1:1"),
        ("status", "--url", "rocketmq://127.0.0.1:1"),
        ("serve", "--master-port", "99999"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, check=True
        )
        assert b"error: " in done.stderr
        assert done.stdout == b"False\n"


def test_wrong_values_are_refused_by_typer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        get_command(app)(["topics", "create", "orders", "--partitions", "many"])
    assert ended.value.code == 2
    assert "--partitions" in capsys.readouterr().err


@pytest.mark.skipif(
    not hasattr(next(iter(PARAMS.values())), "get_runtime_param"), reason="typer before 0.29"
)
@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--directory", ""),
        ("verify", ""),
        ("backup", "copy", "--directory", ""),
        ("restore", "copy", ""),
    ],
)
def test_an_empty_path_is_not_the_current_directory(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        get_command(app)(list(arguments))
    assert ended.value.code == 2
    assert "path is empty." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
