"""What is wrong with a selector, or with a message that it is asked about."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from coherer.errors import CohererError, UsageError


class SelectorError(UsageError):
    """The text is no selector.

    Args:
        reason: Java's words for it.
        java_class: the exception that Java throws for it.
    """

    def __init__(self, reason: str, java_class: str = "java.lang.RuntimeException") -> None:
        super().__init__(
            f"No selector: {reason}",
            hint="Sections of SQL92 are in coherer._wire.rocketmq.selector.",
        )
        self.reason = reason
        self.java_class = java_class

    @property
    def remark(self) -> str:
        """What a broker answers: Java's exception and its words."""
        return f"{self.java_class}: {self.reason}"


class UnmatchableError(CohererError):
    """A selector compares what cannot be compared in this message: it does not match."""


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


Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]
Truth: TypeAlias = Callable[[Properties], "bool | None"]


class Node(NamedTuple):
    """An operand or an expression.

    Args:
        kind: what its values are.
        evaluate: properties to value.
        text: as Java prints it.
        literal: whether it stands in the text as a value (a negated number does not).
        value: of a literal.
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    literal: bool = False
    value: Value = None


def literal(kind: Kind, value: Value, text: str) -> Node:
    """A value that stands in the text."""
    return Node(kind, _always(value), text, literal=True, value=value)


def _always(value: Value) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        del properties
        return value

    return evaluate


def property_of(name: str) -> Node:
    """The value of a property; None when the message has none of that name."""

    def evaluate(properties: Properties) -> Value:
        return properties.get(name)

    return Node(Kind.PROPERTY, evaluate, name)


def negated(operand: Node) -> Node:
    """A number with the other sign; of anything else nothing (a property is text)."""
    text = f"(- {operand.text})"
    if operand.kind not in NUMBERS:
        return Node(Kind.NOTHING, _nothing_of(operand.evaluate), text)
    number = operand.evaluate({})
    opposite = -number if isinstance(number, (int, float)) else None
    return Node(operand.kind, _always(opposite), text)


def _nothing_of(evaluate: Evaluate) -> Evaluate:
    def nothing(properties: Properties) -> None:
        # There may be something in it that cannot be compared: that is told.
        evaluate(properties)

    return nothing


def truth_of(operand: Node) -> Truth:
    """An operand as a truth value: a property that is there is False, being text."""
    evaluate = operand.evaluate
    if operand.kind is Kind.PROPERTY:
        return lambda properties: None if evaluate(properties) is None else False

    def truth(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return value if isinstance(value, bool) else None

    return truth


def equal(left: Node, right: Node) -> Node:
    """`=`: two unknowns are equal, an unknown on the right is not, one on the left is unknown."""
    order = order_for(left.kind, right.kind)
    one, other = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        first, second = one(properties), other(properties)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return order(first, second) == 0

    return Node(Kind.TRUTH, evaluate, f"({left.text} == {right.text})")


ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def ordered(sign: str, left: Node, right: Node) -> Node:
    """`>`, `>=`, `<`, `<=`: unknown when either is; two texts are compared as doubles."""
    texts = left.kind in TEXTS and right.kind in TEXTS
    order = order_texts if texts else order_for(left.kind, right.kind)
    one, other, holds = left.evaluate, right.evaluate, ORDERS[sign]

    def evaluate(properties: Properties) -> bool | None:
        first = one(properties)
        if first is None:  # the other is not looked at then: it may hold what cannot be compared
            return None
        second = other(properties)
        return None if second is None else holds(order(first, second))

    return Node(Kind.TRUTH, evaluate, f"({left.text} {sign} {right.text})")


def inverted(operand: Node) -> Node:
    """`NOT`: unknown stays unknown."""
    truth = truth_of(operand)

    def evaluate(properties: Properties) -> bool | None:
        value = truth(properties)
        return None if value is None else not value

    return Node(Kind.TRUTH, evaluate, f"(NOT {operand.text})")


def is_null(operand: Node) -> Node:
    """`IS NULL`: never unknown."""
    evaluate_operand = operand.evaluate

    def evaluate(properties: Properties) -> bool:
        return evaluate_operand(properties) is None

    return Node(Kind.TRUTH, evaluate, f"({operand.text} == NULL)")


def all_of(operands: Sequence[Node]) -> Node:
    """`AND`: False if any is, from left to right; otherwise unknown if any is."""
    return _joined(operands, "&&", decisive=False)


def any_of(operands: Sequence[Node]) -> Node:
    """`OR`: True if any is, from left to right; otherwise unknown if any is."""
    return _joined(operands, "||", decisive=True)


def _joined(operands: Sequence[Node], sign: str, *, decisive: bool) -> Node:
    truths = [truth_of(operand) for operand in operands]

    def evaluate(properties: Properties) -> bool | None:
        known = True
        for truth in truths:
            value = truth(properties)
            if value is decisive:
                return decisive
            known = known and value is not None
        return not decisive if known else None

    # (((a OR b) OR c) OR d), in one go: there may be thousands.
    others = "".join([f" {sign} {operand.text})" for operand in operands[1:]])
    text = "(" * (len(operands) - 1) + operands[0].text + others
    return Node(Kind.TRUTH, evaluate, text)


def among(operand: Node, words: Collection[str], *, wanted: bool) -> Node:
    """`IN` and `NOT IN`: unknown when the property is not there."""
    evaluate_operand, held = operand.evaluate, frozenset(words)

    def evaluate(properties: Properties) -> bool | None:
        value = evaluate_operand(properties)
        return None if value is None else (value in held) is wanted

    sign = "IN" if wanted else "NOT IN"
    return Node(Kind.TRUTH, evaluate, f"{operand.text} {sign} ( {', '.join(words)} )")
