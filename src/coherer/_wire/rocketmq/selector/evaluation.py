"""The evaluation of selectors: nodes, and how values compare.

See docs/protocol/rocketmq.md, section 7.4.

A node has a function from properties to a value. A value is text (of a property), a number, a
boolean, or None for unknown. Numbers have Java's kinds: int of 32 bits, long of 64 bits, and
double. The kind matters, because text is parsed as exactly the kind of the number that it is
compared with. A node's `text` is what Java's objects print, since it occurs in error texts that
clients show.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from coherer.errors import CohererError, UsageError


class SelectorError(UsageError):
    """The text is not a valid selector.

    Args:
        reason: Java's error text.
        java_class: Java's exception.
    """

    def __init__(self, reason: str, java_class: str = "java.lang.RuntimeException") -> None:
        super().__init__(
            f"Invalid selector: {reason}",
            hint="See docs/protocol/rocketmq.md, section 7.2, for the syntax.",
        )
        self.reason = reason
        self.java_class = java_class

    @property
    def remark(self) -> str:
        """The remark of a broker's answer: Java's exception and its text."""
        return f"{self.java_class}: {self.reason}"


class UnmatchableError(CohererError):
    """A value of this message cannot be compared as the selector requires: it does not match."""


Value: TypeAlias = "str | int | float | bool | None"
Order: TypeAlias = Callable[[Value, Value], int]
"""Returns -1, 0 or 1 for two values other than None."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class Kind(enum.Enum):
    """The kind of an operand, known at compile time."""

    PROPERTY = enum.auto()
    STRING = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    BOOLEAN = enum.auto()
    NULL = enum.auto()
    """NULL, and a negated operand that is not a number."""


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
    # Both have at most 19 digits, but may have leading zeros.
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
    """Compare as Java's `Double.compare`: NaN is the largest, and -0.0 is less than 0.0.

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
    """Return the comparison of values of two kinds."""
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
    """Compare two texts as doubles."""
    return order_doubles(read_double(cast("str", one)), read_double(cast("str", other)))


def _different_texts(one: Value, other: Value) -> int:
    return 0 if one == other else -1


def _text_and_boolean(one: Value, other: Value) -> int:
    boolean = cast("str", one).lower() == "true"
    return boolean - cast("bool", other)


def _boolean_and_text(one: Value, other: Value) -> int:
    raise UnmatchableError(f"{one} cannot be compared with the text {other!r}.")


def _booleans(one: Value, other: Value) -> int:
    return cast("bool", one) - cast("bool", other)


_OTHERS: Final[dict[tuple[Kind, Kind], Order]] = {
    (Kind.STRING, Kind.STRING): _different_texts,
    (Kind.STRING, Kind.BOOLEAN): _text_and_boolean,
    (Kind.BOOLEAN, Kind.STRING): _boolean_and_text,
    (Kind.BOOLEAN, Kind.BOOLEAN): _booleans,
}
"""Comparisons without numbers; a missing pair, as a boolean and a number, compares as less."""


Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]
Predicate: TypeAlias = Callable[[Properties], "bool | None"]


class Node(NamedTuple):
    """An operand or an expression.

    Args:
        kind: the kind of its values.
        evaluate: returns the value for a message's properties.
        text: its text as printed by Java.
        literal: whether it is a literal; a negated number is not.
        value: the value of a literal.
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    literal: bool = False
    value: Value = None


def literal(kind: Kind, value: Value, text: str) -> Node:
    """Return the node of a literal."""
    return Node(kind, _always(value), text, literal=True, value=value)


def _always(value: Value) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        del properties
        return value

    return evaluate


def property_of(name: str) -> Node:
    """Return the node of a property; its value is None if the message does not have it."""

    def evaluate(properties: Properties) -> Value:
        return properties.get(name)

    return Node(Kind.PROPERTY, evaluate, name)


def negated(operand: Node) -> Node:
    """Return the node of a negation: NULL unless the operand is a number (a property is text)."""
    text = f"(- {operand.text})"
    if operand.kind not in NUMBERS:
        return Node(Kind.NULL, _null_of(operand.evaluate), text)
    number = operand.evaluate({})
    opposite = -number if isinstance(number, (int, float)) else None
    return Node(operand.kind, _always(opposite), text)


def _null_of(evaluate: Evaluate) -> Evaluate:
    def null(properties: Properties) -> None:
        # Evaluated because it may raise UnmatchableError.
        evaluate(properties)

    return null


def boolean_of(operand: Node) -> Predicate:
    """Return an operand as a predicate: a property that exists is False, since it is text."""
    evaluate = operand.evaluate
    if operand.kind is Kind.PROPERTY:
        return lambda properties: None if evaluate(properties) is None else False

    def predicate(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return value if isinstance(value, bool) else None

    return predicate


def equal(left: Node, right: Node) -> Node:
    """`=`: two unknowns are equal; otherwise unknown on the right is False, on the left unknown."""
    order = order_for(left.kind, right.kind)
    one, other = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        first, second = one(properties), other(properties)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return order(first, second) == 0

    return Node(Kind.BOOLEAN, evaluate, f"({left.text} == {right.text})")


ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def ordered(sign: str, left: Node, right: Node) -> Node:
    """`>`, `>=`, `<`, `<=`: unknown if either operand is; two texts are compared as doubles."""
    texts = left.kind in TEXTS and right.kind in TEXTS
    order = order_texts if texts else order_for(left.kind, right.kind)
    one, other, holds = left.evaluate, right.evaluate, ORDERS[sign]

    def evaluate(properties: Properties) -> bool | None:
        first = one(properties)
        if first is None:  # the other is not evaluated, as it may not be comparable
            return None
        second = other(properties)
        return None if second is None else holds(order(first, second))

    return Node(Kind.BOOLEAN, evaluate, f"({left.text} {sign} {right.text})")


def inverted(operand: Node) -> Node:
    """`NOT`: unknown remains unknown."""
    predicate = boolean_of(operand)

    def evaluate(properties: Properties) -> bool | None:
        value = predicate(properties)
        return None if value is None else not value

    return Node(Kind.BOOLEAN, evaluate, f"(NOT {operand.text})")


def is_null(operand: Node) -> Node:
    """`IS NULL`: never unknown."""
    evaluate_operand = operand.evaluate

    def evaluate(properties: Properties) -> bool:
        return evaluate_operand(properties) is None

    return Node(Kind.BOOLEAN, evaluate, f"({operand.text} == NULL)")


def all_of(operands: Sequence[Node]) -> Node:
    """`AND`: False if any operand is, from left to right; otherwise unknown if any operand is."""
    return _joined(operands, "&&", decisive=False)


def any_of(operands: Sequence[Node]) -> Node:
    """`OR`: True if any operand is, from left to right; otherwise unknown if any operand is."""
    return _joined(operands, "||", decisive=True)


def _joined(operands: Sequence[Node], sign: str, *, decisive: bool) -> Node:
    predicates = [boolean_of(operand) for operand in operands]

    def evaluate(properties: Properties) -> bool | None:
        known = True
        for predicate in predicates:
            value = predicate(properties)
            if value is decisive:
                return decisive
            known = known and value is not None
        return not decisive if known else None

    # (((a OR b) OR c) OR d) at once: there may be thousands of operands.
    others = "".join([f" {sign} {operand.text})" for operand in operands[1:]])
    text = "(" * (len(operands) - 1) + operands[0].text + others
    return Node(Kind.BOOLEAN, evaluate, text)


def in_set(operand: Node, words: Collection[str], *, wanted: bool) -> Node:
    """`IN` and `NOT IN`: unknown if the message does not have the property."""
    evaluate_operand, held = operand.evaluate, frozenset(words)

    def evaluate(properties: Properties) -> bool | None:
        value = evaluate_operand(properties)
        return None if value is None else (value in held) is wanted

    sign = "IN" if wanted else "NOT IN"
    return Node(Kind.BOOLEAN, evaluate, f"{operand.text} {sign} ( {', '.join(words)} )")
