"""Each sentence of the pages with promises names the test that fails if it is false.

`promises.toml` maps the sentences, list items and table rows of these pages to tests. A sentence
that is changed or added is not in the table: look for the test that shows it, or write one. Some
sentences promise nothing: a definition, an advice, a link. They are listed, too, with the word that
says what they are.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE: dict[str, dict[str, str | list[str]]] = tomllib.loads(
    (Path(__file__).parent / "promises.toml").read_text("utf-8")
)
NO_PROMISE = {"definition", "advice", "link", "java"}
"""`java`: what an Apache system does by itself, which Coherer does not promise."""
PAGES_WITHOUT_TABLES = {"docs/how-to/moving.md"}
"""`test_moving.py` checks the tables of this page."""
SCENARIOS = re.compile(
    r"tests/(client/rocket_(consuming|sharing)|administration/dead_letter_scenarios)\.py"
)
"""Modules whose functions are run as tests by others: against our node, and against Java's."""


def statements(page: str) -> Iterator[str]:
    """The sentences, list items and table rows of a page, or of a module's docstring."""
    text = (ROOT / page).read_text("utf-8")
    if page.endswith(".py"):
        text = ast.get_docstring(ast.parse(text)) or ""
        for name, promise in re.findall(r"^[│├└─ ]*(\w+Error) +(\S.*)$", text, re.MULTILINE):
            yield f"{name}: {promise}"
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.strip().splitlines()]
        if not lines or lines[0].startswith("#"):
            continue
        if lines[0].startswith("|"):
            if page not in PAGES_WITHOUT_TABLES:
                yield from (
                    " | ".join(cell.strip() for cell in row[1:-1].split(" | ")) for row in lines[2:]
                )
        else:
            for item in re.split(r"\n(?=\* |\d+\. )", "\n".join(lines)):
                plain = " ".join(re.sub(r"^(\* |\d+\. )", "", item).replace("**", "").split())
                yield from re.split(r"(?<=[.:!?])\s+(?=[A-Z`\[*])", plain)


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """The tests of a file: a helper with a fitting name is none."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.name.startswith("test_") or SCENARIOS.fullmatch(path))
    )


@pytest.mark.parametrize("page", sorted(TABLE))
def test_every_sentence_has_its_test(page: str) -> None:
    found = set(statements(page))
    missing = found - TABLE[page].keys()
    assert not missing, "no test is named for:\n" + "\n".join(sorted(missing))
    gone = TABLE[page].keys() - found
    assert not gone, "the page no longer says:\n" + "\n".join(sorted(gone))


@pytest.mark.parametrize("page", sorted(TABLE))
def test_every_named_test_exists(page: str) -> None:
    for text, named in TABLE[page].items():
        names = [named] if isinstance(named, str) else named
        assert names, f"no test is named for: {text}"
        for name in names:
            if name not in NO_PROMISE:
                path, _, test = name.partition("::")
                assert (ROOT / path).is_file(), f"{path}, named for: {text}"
                assert test in names_in(path), f"{name}, named for: {text}"
