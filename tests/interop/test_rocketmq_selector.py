"""SQL92 selectors: thousands of expressions, by Java's compiler and evaluator and by ours."""

from __future__ import annotations

import base64
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from coherer._record.properties import decode
from coherer._wire.rocketmq.selector import SelectorError, UnmatchableError, compile_selector
from tests.interop.peers.rocket_site import RocketSite

pytestmark = pytest.mark.interop

EXPRESSIONS = 6_000
MESSAGES = 8
WAIT_S = 120

NUMBERS = ("5", "3", "3.5", "3.0", "-5", "2147483648", "1e3")
LITERALS = (
    *("0", "2147483647", "5L", ".5", "-.5", "TRUE", "false", "NULL", "''"),
    *("'x'", "'3'", "'true'", "'3.5'"),
)
VALUES = (
    *("3", "3.5", "x", "true", "TRUE", "-5", "2147483648", " 3", "3d", "NaN", "Infinity", "1e3"),
    *("0x1p3", "\u0663", "+3", "-0.0", "0.0", "'"),
)
JUNK = ("AND", "OR", "NOT", "(", ")", "x", ">", "=", "IN", "IS", "--", "/*", "BETWEEN", ",", "#")

Case = tuple[str, list[dict[str, str]]]


class Writer:
    """Writes expressions at random, most of which compile."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def cases(self, count: int) -> Iterator[Case]:
        for _ in range(count):
            depth = self._random.choice((0, 0, 1))
            text = self._garbled(self._any_of(depth))
            yield text, [self._properties() for _ in range(MESSAGES)]

    def _properties(self) -> dict[str, str]:
        names = [name for name in "abcd" if self._random.random() < 0.6]
        return {name: self._random.choice(VALUES) for name in names}

    def _garbled(self, text: str) -> str:
        if self._random.random() < 0.85:
            return text
        words = text.split(" ")
        words[self._random.randrange(len(words))] = self._random.choice((*JUNK, *LITERALS))
        return " ".join(words)

    def _unary(self, depth: int) -> str:
        chance = self._random.random()
        if chance < 0.7:
            return self._random.choice("abcd")
        if chance < 0.8:
            return self._random.choice(NUMBERS)
        if chance < 0.85:
            return self._random.choice(LITERALS)
        if chance < 0.9:
            return self._random.choice(("-", "+", "NOT ", "- -")) + self._unary(depth)
        return f"({self._any_of(depth - 1)})" if depth > 0 else "a"

    def _comparison(self, depth: int) -> str:
        one, other = self._unary(depth), self._unary(depth)
        sign = self._random.choice((">", ">=", "<", "<="))
        return self._random.choice(
            (
                one,
                f"{one} {sign} {other}",
                f"{one} {sign} {other}",
                f"{one} BETWEEN {other} AND {self._unary(depth)}",
                f"{one} NOT BETWEEN {other} AND {self._unary(depth)}",
                f"{one} IN ('x','3')",
                f"{one} NOT IN ('true')",
            )
        )

    def _equality(self, depth: int) -> str:
        one = self._comparison(depth)
        return self._random.choice(
            (
                one,
                f"{one} = {self._comparison(depth)}",
                f"{one} <> {self._comparison(depth)}",
                f"{one} IS NULL",
                f"{one} IS NOT NULL",
            )
        )

    def _all_of(self, depth: int) -> str:
        return " AND ".join(self._several(self._equality, depth))

    def _any_of(self, depth: int) -> str:
        return " OR ".join(self._several(self._all_of, depth))

    def _several(self, write: Callable[[int], str], depth: int) -> list[str]:
        return [write(depth) for _ in range(self._random.choice((1, 1, 2)))]


def java_says(site: RocketSite, cases: Sequence[Case]) -> list[str]:
    lines = [
        " ".join(base64.b64encode(part.encode()).decode() for part in (text, *map(written, held)))
        for text, held in cases
    ]
    done = subprocess.run(
        site.java.command("SelectorPeer", heap_mb=256, log="off"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_S,
        check=True,
    )
    return done.stdout.splitlines()


def written(properties: Mapping[str, str]) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items())


def we_say(text: str, messages: list[dict[str, str]]) -> str:
    try:
        selector = compile_selector(text)
    except SelectorError as error:
        return f"error {error.remark}"
    return " ".join(["ok", *(result(selector.evaluate, each) for each in messages)])


def result(
    evaluate: Callable[[Mapping[str, str]], bool | None], properties: Mapping[str, str]
) -> str:
    try:
        found = evaluate(decode(written(properties).encode()))
    except UnmatchableError:
        return "exception"
    return "null" if found is None else str(found).lower()


@pytest.mark.parametrize("seed", range(2))
def test_random_selectors(rocket: RocketSite, seed: int) -> None:
    cases = list(Writer(seed).cases(EXPRESSIONS))
    ours = [we_say(*case) for case in cases]
    compiled = sum(one.startswith("ok") for one in ours)
    assert compiled > EXPRESSIONS // 3, "most say something"
    differences = [
        (text, java, mine)
        for (text, _), java, mine in zip(cases, java_says(rocket, cases), ours, strict=True)
        # Of two errors in one text we may find the other first.
        if java != mine and not (java.startswith("error ") and mine.startswith("error "))
    ]
    assert differences == []


@pytest.mark.parametrize(
    "text",
    [
        "a BETWEEN 5 AND 1",
        "a BETWEEN NULL AND 3",
        "a > (NOT b AND -5 = c)",
        "a > (b = 123456789.125)",
        "a > (b IN ('it''s','y'))",
        "a = NULL",
        "TRUE = 1",
        "1 IN ('x')",
        "a AND 1",
        "a = 0.0",
        "a = 1e400",
        "a = 9223372036854775808",
        "a == 3",
        "a IS junk",
        "a IN 'x'",
        "(a",
    ],
)
def test_the_words_of_errors(rocket: RocketSite, text: str) -> None:
    (java,) = java_says(rocket, [(text, [])])
    assert we_say(text, []) == java
