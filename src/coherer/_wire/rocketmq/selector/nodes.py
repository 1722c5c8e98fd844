"""A selector that can be evaluated: nodes hold a function from properties to a value.

Truth has three values: True, False, and None for unknown (7.4). `text` is what Java's objects print
of themselves: it stands in error texts that clients show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from coherer._wire.rocketmq.selector.evaluation import (
    NUMBERS,
    TEXTS,
    Kind,
    Value,
    order_for,
    order_texts,
)

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
