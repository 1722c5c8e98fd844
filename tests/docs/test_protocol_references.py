"""Every section that the code refers to exists in the protocol pages."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in (ROOT / "docs/protocol").glob("*.md")}
SOURCES = sorted(
    path
    for top in ("src", "tests", "benchmarks")
    for kind in ("*.py", "*.proto")
    for path in (ROOT / top).rglob(kind)
    if path != Path(__file__) and not path.stem.endswith("_pb2")
)
NUMBER = r"\d+(?:\.\d+)*"
LIST = rf"{NUMBER}(?:(?:, and | and | to |, ){NUMBER})*"
BREAK = r"(?: |\s*\n\s*(?:# |// )?)"
"""A space, or the end of a line of a docstring or comment."""

REFERENCE = re.compile(
    rf"(?:docs/protocol/(\w+)\.md,{BREAK})?\b[Ss]ections?{BREAK}({LIST})(?!\w)",
)
VAGUE = re.compile(
    rf"[(\[](?:(?:rocketmq|tubemq|spark) )?({NUMBER})(?:[,;]? [\w.]+)*[)\]]"
    rf"|[Pp]rotocol page,? ({NUMBER})"
    rf"|\.md, ({NUMBER})"
    rf"|# -- ({NUMBER})"
)
"""Forms of a reference that do not say "section": (2.5.9), (rocketmq 6.5), protocol page, 6.5."""


def sections(page: str) -> set[str]:
    """The numbers of a page's headings."""
    text = PAGES[page].read_text("utf-8")
    return set(re.findall(rf"(?m)^#+ ({NUMBER})\.? ", text))


def references(path: Path) -> list[tuple[str, str]]:
    """Page and section of each reference in a file; a bare one means the page named before it."""
    text = path.read_text("utf-8")
    named = re.findall(r"docs/protocol/(\w+)\.md", text)
    found: list[tuple[str, str]] = []
    for page, numbers in REFERENCE.findall(text):
        assert page or len(set(named)) == 1, f"{path}: which page has section {numbers}?"
        found += [(page or named[0], number) for number in re.findall(NUMBER, numbers)]
    return found


def prose(path: Path) -> list[str]:
    """The comments and docstrings of a file."""
    text = path.read_text("utf-8")
    if path.suffix == ".proto":
        return re.findall(r"//.*", text)
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        or (token.type == tokenize.STRING and re.match(r'[rR]?"""', token.string))
    ]


def test_the_pages_are_there() -> None:
    assert set(PAGES) == {"tubemq", "rocketmq", "spark"}
    assert all(len(sections(page)) > 5 for page in PAGES)


@pytest.mark.parametrize("page", ["tubemq", "rocketmq", "spark"])
def test_the_code_refers_to_the_page(page: str) -> None:
    assert any(page == named for path in SOURCES for named, _ in references(path))


def test_every_reference_resolves() -> None:
    known = {page: sections(page) for page in PAGES}
    broken = [
        f"{path.relative_to(ROOT)}: {page}.md has no section {number}"
        for path in SOURCES
        for page, number in references(path)
        if number not in known[page]
    ]
    assert broken == []


def test_no_reference_omits_the_word_section() -> None:
    known = {number for page in PAGES for number in sections(page) if "." in number}
    vague = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SOURCES
        for text in prose(path)
        for match in VAGUE.finditer(text)
        if any(number in known for number in match.groups() if number)
    ]
    assert vague == []


@pytest.mark.parametrize("path", sorted(PAGES.values()), ids=lambda path: path.stem)
def test_the_pages_refer_to_their_own_sections(path: Path) -> None:
    text = path.read_text("utf-8")
    known = sections(path.stem)
    for numbers in re.findall(rf"\([Ss]ections? ({NUMBER}(?:, {NUMBER})*)\)", text):
        assert set(re.findall(NUMBER, numbers)) <= known
