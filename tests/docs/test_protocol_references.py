"""Every section that the code refers to exists in the protocol pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in (ROOT / "docs/protocol").glob("*.md")}
SOURCES = sorted(
    path
    for top in ("src", "tests", "benchmarks")
    for kind in ("*.py", "*.proto")
    for path in (ROOT / top).rglob(kind)
    if path != Path(__file__)
)
NUMBER = r"\d+(?:\.\d+)*"
REFERENCE = re.compile(
    rf"(?:docs/protocol/(\w+)\.md, )?[Ss]ections? ({NUMBER}(?:(?:, | and | to |, and ){NUMBER})*)"
)


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


@pytest.mark.parametrize("path", sorted(PAGES.values()), ids=lambda path: path.stem)
def test_the_pages_refer_to_their_own_sections(path: Path) -> None:
    text = path.read_text("utf-8")
    known = sections(path.stem)
    for numbers in re.findall(rf"\([Ss]ections? ({NUMBER}(?:, {NUMBER})*)\)", text):
        assert set(re.findall(NUMBER, numbers)) <= known
