"""How values compare, as in Java (7.4).

A value is text (a property's), a number, a truth value, or None. Numbers have Java's kinds: int of
32 bits, long of 64, and double. The kind matters, because text is compared with a number by
reading it as exactly that kind.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from coherer._wire.rocketmq.selector.evaluation import UnmatchableError

Value: TypeAlias = "str | int | float | bool | None"
Order: TypeAlias = Callable[[Value, Value], int]
"""-1, 0 or 1 for two values that are not None."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class Kind(enum.Enum):
    """What an operand is, known before a message comes."""

    PROPERTY = enum.auto()
    STRING = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    TRUTH = enum.auto()
    NOTHING = enum.auto()
    """NULL, and what is negated but no number."""


NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.DOUBLE)
TEXTS: Final = (Kind.PROPERTY, Kind.STRING)

_INTEGER: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_JAVA_SPACE: Final = "".join(map(chr, range(33)))


def read_int(text: str) -> int:
    """Java's `Integer.valueOf`."""
    return _integer(text, INT_MAX)


def read_long(text: str) -> int:
    """Java's `Long.valueOf`."""
    return _integer(text, LONG_MAX)


def _integer(text: str, most: int) -> int:
    # Neither has more than 19 digits, but zeros may stand before them.
    if _INTEGER.fullmatch(text) and len(text) < 1000:
        number = int(text)
        if -most - 1 <= number <= most:
            return number
    raise UnmatchableError(f'For input string: "{text}"')


def read_double(text: str) -> float:
    """Java's `Double.valueOf`.

    >>> read_double(" 3.5d "), read_double("0x1p3"), read_double("-Infinity")
    (3.5, 8.0, -inf)
    """
    word = text.strip(_JAVA_SPACE)
    if _HEX_DOUBLE.fullmatch(word):
        try:
            return float.fromhex(word.rstrip("fFdD") if word[-1] in "fFdD" else word)
        except OverflowError:
            return -math.inf if word.startswith("-") else math.inf
    if _DOUBLE.fullmatch(word):
        return float(word if word.endswith(("N", "y")) else word.rstrip("fFdD"))
    raise UnmatchableError(f'For input string: "{text}"')


READERS: Final[dict[Kind, Callable[[str], int | float]]] = {
    Kind.INT: read_int,
    Kind.LONG: read_long,
    Kind.DOUBLE: read_double,
}


def order_doubles(left: float, right: float) -> int:
    """Java's `Double.compare`: NaN is the largest, and -0.0 is less than 0.0.

    >>> order_doubles(-0.0, 0.0), order_doubles(float("nan"), 1.0), order_doubles(1.0, 1.0)
    (-1, 1, 0)
    """
    if left < right:
        return -1
    if left > right:
        return 1
    ranks = [(math.isnan(one), math.copysign(1, one) if one == 0 else 0) for one in (left, right)]
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


def order_for(left: Kind, right: Kind) -> Order:
    """How to compare values of two kinds."""
    if left in NUMBERS and right in NUMBERS:
        return _by_number(left, right)
    if left in NUMBERS and right in TEXTS:
        read = READERS[left]
        numbers = _by_number(left, left)
        return lambda one, other: numbers(one, read(cast("str", other)))
    if left in TEXTS and right in NUMBERS:
        read_left = READERS[right]
        numbers = _by_number(right, right)
        return lambda one, other: numbers(read_left(cast("str", one)), other)
    return _OTHERS.get((_without_form(left), _without_form(right)), _less)


def _without_form(kind: Kind) -> Kind:
    return Kind.STRING if kind in TEXTS else kind


def _by_number(left: Kind, right: Kind) -> Order:
    if Kind.DOUBLE in (left, right):
        return lambda one, other: order_doubles(
            float(cast("float", one)), float(cast("float", other))
        )
    return lambda one, other: (
        (cast("int", one) > cast("int", other)) - (cast("int", one) < cast("int", other))
    )


def _less(one: Value, other: Value) -> int:
    del one, other
    return -1


def order_texts(one: Value, other: Value) -> int:
    """Two texts, to find which is more: both as doubles."""
    return order_doubles(read_double(cast("str", one)), read_double(cast("str", other)))


def _different_texts(one: Value, other: Value) -> int:
    return 0 if one == other else -1


def _text_and_truth(one: Value, other: Value) -> int:
    said = cast("str", one).lower() == "true"
    return said - cast("bool", other)


def _truth_and_text(one: Value, other: Value) -> int:
    raise UnmatchableError(f"{one} cannot be compared with the text {other!r}.")


def _truths(one: Value, other: Value) -> int:
    return cast("bool", one) - cast("bool", other)


_OTHERS: Final[dict[tuple[Kind, Kind], Order]] = {
    (Kind.STRING, Kind.STRING): _different_texts,
    (Kind.STRING, Kind.TRUTH): _text_and_truth,
    (Kind.TRUTH, Kind.STRING): _truth_and_text,
    (Kind.TRUTH, Kind.TRUTH): _truths,
}
"""Where no number is read; what is not here is "less", as a truth value and a number."""
