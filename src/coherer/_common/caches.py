"""Caches of functions whose arguments go out of use, such as the names of deleted topics."""

from __future__ import annotations

from typing import Final, Protocol

SPARE: Final = 256
"""Fewer results are never worth clearing a cache."""


class _Info(Protocol):
    @property
    def currsize(self) -> int: ...


class Cached(Protocol):
    """A function with `lru_cache`."""

    def cache_info(self) -> _Info:
        """How many results it holds, and more."""
        ...

    def cache_clear(self) -> None:
        """Drop all results."""
        ...


def forget_unused(cached: Cached, in_use: int) -> None:
    """Clear a cache if most of its results are of arguments that are not in use any more.

    The limit of a cache is for the most arguments that may be in use. Without this it fills up to
    that limit, however few are in use at a time. What is in use is computed once more.

    Args:
        cached: the function.
        in_use: how many of its arguments are in use.

    >>> from functools import lru_cache
    >>> square = lru_cache(10_000)(lambda number: number * number)
    >>> for number in range(300):
    ...     _ = square(number)
    >>> forget_unused(square, in_use=100)
    >>> square.cache_info().currsize
    300
    >>> forget_unused(square, in_use=3)
    >>> square.cache_info().currsize
    0
    """
    if cached.cache_info().currsize > 2 * in_use + SPARE:
        cached.cache_clear()
