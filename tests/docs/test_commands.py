"""Every command line that pages, help texts and hints name exists, with its options."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coherer.cli.main import COMMANDS, load

ROOT = Path(__file__).parents[2]
PAGES = [
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "changes").glob("*.md")),
]
SOURCES = sorted((ROOT / "src" / "coherer").rglob("*.py"))
OF_ALL = {"--help", "--install-completion", "--show-completion", "--version"}
NO_COMMANDS = {"COMMAND", "replication"}
"""A placeholder, and a name in the protocol of replication."""

find = functools.cache(load)


def in_page(text: str) -> Iterator[str]:
    """The command lines of a page: in code between backticks, and in blocks."""
    yield from re.findall(r"`coherer ([^`]+)`", text.replace("\n", " "))
    for block in re.findall(r"(?ms)^```(?:bash|text|console)?\n(.*?)^```", text):
        yield from re.findall(r"(?m)^(?:\$ )?(?:[A-Z_]+=\S+ )*coherer ([a-z].*)", block)


def in_source(text: str) -> Iterator[str]:
    """The command lines in the texts of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
            yield from re.findall(r"`coherer ([^`]+)`", "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"`coherer ([^`]+)`", node.value.replace("\n", " "))


def flaws(line: str) -> Iterator[str]:
    """What does not exist of a command line."""
    words = [word.rstrip(",") for word in line.partition(" #")[0].split()]
    if words[0] in OF_ALL | NO_COMMANDS:
        return
    if words[0] not in COMMANDS:
        yield words[0]
        return
    command: Any = find(words[0])
    below: dict[str, Any] = getattr(command, "commands", {})
    if below and len(words) > 1 and re.fullmatch("[a-z-]+", words[1]):
        if words[1] not in below:
            yield " ".join(words[:2])
            return
        command = below[words[1]]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = (word.split("=")[0].rstrip(".]") for word in words if word.startswith("--"))
    yield from (f"{words[0]} {name}" for name in given if name not in known | OF_ALL)


def test_the_commands_of_pages_exist() -> None:
    for path in PAGES:
        lines = set(in_page(path.read_text("utf-8")))
        assert [flaw for line in lines for flaw in flaws(line)] == [], path


def test_the_commands_in_texts_of_the_program_exist() -> None:
    texts = (path.read_text("utf-8") for path in SOURCES)
    lines = {line for text in texts if "`coherer " in text for line in in_source(text)}
    assert len(lines) > 50
    assert [flaw for line in lines for flaw in flaws(line)] == []
