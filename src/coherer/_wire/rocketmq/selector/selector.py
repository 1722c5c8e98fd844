"""What users of selectors call, with Java's cache of a hundred."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from coherer._common.logs import Log
from coherer._wire.rocketmq.selector.compiler import build, parse
from coherer._wire.rocketmq.selector.evaluation import SelectorError, UnmatchableError
from coherer.limits import SELECTOR_CHARS_MAX

_log = Log(logging.getLogger(__name__))

CACHED: Final = 100
"""Compiled selectors, and texts that are none, that are kept."""


class CompiledSelector:
    """A compiled selector; `compile_selector` makes it.

    Args:
        text: what was compiled.
    """

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._evaluate = build(parse(text)).evaluate

    def __repr__(self) -> str:
        return f"CompiledSelector({self.text!r})"

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Tell whether a message with these properties matches.

        What cannot be compared does not match.
        """
        try:
            return self._evaluate(properties) is True
        except UnmatchableError as error:
            _log.debug("%r does not match: %s", self, error)
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Evaluate; None is "unknown".

        Raises:
            UnmatchableError: this message has a value that cannot be compared.
        """
        value = self._evaluate(properties)
        return value if isinstance(value, bool) else None


def compile_selector(text: str) -> CompiledSelector:
    """Compile a selector, or take it from the cache.

    Raises:
        SelectorError: the text is none.

    >>> compile_selector("a BETWEEN 5 AND 1")
    Traceback (most recent call last):
    coherer._wire.rocketmq.selector.evaluation.SelectorError: No selector: Illegal values ...
    """
    if len(text) > SELECTOR_CHARS_MAX:
        raise SelectorError(f"It has {len(text)} characters; {SELECTOR_CHARS_MAX} are allowed.")
    found = _compiled(text)
    if isinstance(found, CompiledSelector):
        return found
    raise SelectorError(*found)


@lru_cache(maxsize=CACHED)
def _compiled(text: str) -> CompiledSelector | tuple[str, str]:
    try:
        return CompiledSelector(text)
    except SelectorError as error:
        return error.reason, error.java_class
