"""The compiler of selectors: text to tree to nodes, with Java's checks.

See docs/protocol/rocketmq.md, sections 7.2 and 7.3. Java's grammar does not require the end of the
text. Its parser looks one token ahead: if that token cannot continue a complete expression, the
rest is ignored. So tokens are fed one by one, up to the first that does not fit.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from coherer._common.logs import Log
from coherer._wire.rocketmq.selector import evaluation
from coherer._wire.rocketmq.selector.evaluation import (
    INT_MAX,
    LONG_MAX,
    NUMBERS,
    Kind,
    Node,
    SelectorError,
    UnmatchableError,
    Value,
    order_for,
)
from coherer.limits import SELECTOR_CHARS_MAX, SELECTOR_DEPTH_MAX, SELECTOR_TOKENS_MAX

# lark, and its grammar, load with the first expression.
if TYPE_CHECKING:
    from lark import Lark, Token, Tree

PARSE_EXCEPTION: Final = "org.apache.rocketmq.filter.parser.ParseException"
LEXER_ERROR: Final = "org.apache.rocketmq.filter.parser.TokenMgrError"

_NAMED: Final = {
    "ID": "<ID>",
    "STRING": "<STRING_LITERAL>",
    "DECIMAL": "<DECIMAL_LITERAL>",
    "FLOAT": "<FLOATING_POINT_LITERAL>",
}

_COMMENTED: Final = re.compile(
    r"'[^']*+(?:''[^']*+)*+(?:'|\Z)|/\*.*?(?:\*/|\Z)|--[^\n\r]*", re.DOTALL
)
"""A string, a block comment, or a line comment."""


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    return Lark.open("grammar.lark", rel_to=__file__, parser="lalr", lexer="basic")


def parse(text: str) -> Tree[Token]:
    """Parse a selector.

    Raises:
        SelectorError: the text is not valid.

    >>> parse("a = 1 then more").children[0].data
    'equal'
    """
    return _read(text)[0]


def _read(text: str) -> tuple[Tree[Token], Token | None]:
    """Parse a selector; returns the tree, and the first token that is ignored.

    Raises:
        SelectorError: the text is not valid.
    """
    from lark import Token, UnexpectedCharacters, UnexpectedToken

    parser = _parser()
    text = _without_line_comments(text)
    reading = parser.parse_interactive("")
    unfit: Token | None = None
    try:
        for count, token in enumerate(parser.lex(text)):
            if count >= SELECTOR_TOKENS_MAX:
                reason = f"It has more than {SELECTOR_TOKENS_MAX} tokens."
                raise SelectorError(reason)
            try:
                reading.feed_token(token)
            except UnexpectedToken:
                unfit = token
                break
        tree: Tree[Token] = reading.feed_token(Token("$END", ""))
    except UnexpectedCharacters as error:
        raise SelectorError(_lexical(text, error.pos_in_stream), LEXER_ERROR) from None
    except UnexpectedToken:
        raise SelectorError(_encountered(unfit, text), PARSE_EXCEPTION) from None
    return tree, unfit


def ignored_rest(text: str) -> str:
    """The text after a complete expression, which Java ignores; usually empty.

    Raises:
        SelectorError: the selector is not valid.

    >>> ignored_rest("a = 1 then more"), ignored_rest("a = 1")
    ('then more', '')
    """
    unfit = _read(text)[1]
    return "" if unfit is None else text[unfit.start_pos or 0 :]


def _without_line_comments(text: str) -> str:
    """Replace comments from `--` to the end of a line by blanks; positions do not change.

    Such a comment requires a line end: in the last line, `--` is two minus signs. A lexer that
    searches the line end from each `--` would take quadratic time.
    """
    if "--" not in text:
        return text
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    return _COMMENTED.sub(_blank, text[:end]) + text[end:]


def _blank(found: re.Match[str]) -> str:
    part = found.group()
    return " " * len(part) if part.startswith("--") else part


def _encountered(token: Token | None, text: str) -> str:
    if token is None:
        line, column = _line_and_column(text, len(text))
        return f'Encountered "<EOF>" at line {line}, column {column - 1}.'
    word = _escaped(token.value)
    shown = f'{_NAMED[token.type]} "{word} "' if token.type in _NAMED else f'"{word}" "{word} "'
    line, column = _line_and_column(text, token.start_pos or 0)
    return f'Encountered " {shown}" at line {line}, column {column}.'


def _lexical(text: str, position: int) -> str:
    line, column = _line_and_column(text, position)
    sign = text[position]
    return (
        f"Lexical error at line {line}, column {column}.  "
        f'Encountered: "{_escaped(sign)}" ({ord(sign)}), after : ""'
    )


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a position, from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _escaped(word: str) -> str:
    """Return text as Java's parsers show it: quotes, control and non-ASCII characters escaped."""
    return "".join(
        f"\\{sign}" if sign in "'\"\\" else sign if " " <= sign < "\x7f" else f"\\u{ord(sign):04x}"
        for sign in word
    )


if TYPE_CHECKING:
    from lark import Token, Tree

    Part: TypeAlias = "Tree[Token] | Token"

_NUMBER_FORMAT: Final = "java.lang.NumberFormatException"
_STACK: Final = "java.lang.StackOverflowError"
_SMALLEST: Final = 5e-324
_PLAIN: Final = (1e-3, 1e7)
"""Java prints doubles between these without an exponent."""


def build(tree: Tree[Token]) -> Node:
    """Build the node of a parsed selector.

    Raises:
        SelectorError: a check fails.
    """
    return _boolean(_build(tree.children[0], 0))


def _build(part: Part, depth: int) -> Node:
    if depth > SELECTOR_DEPTH_MAX:
        raise SelectorError(f"It is nested more than {SELECTOR_DEPTH_MAX} levels deep.", _STACK)
    tree = cast("Tree[Token]", part)
    name = str(tree.data)
    if name in _LEAVES:
        return _LEAVES[name](str(tree.children[0]))
    words = [str(child) for child in tree.children if _is_token(child, "STRING")]
    operands = [_build(child, depth + 1) for child in tree.children if not _is_token(child)]
    if words:
        return _in_set(name, operands[0], words)
    return _RULES[name](operands)


def _is_token(part: Part, kind: str | None = None) -> bool:
    found = getattr(part, "type", None)
    return found is not None and kind in (None, found)


def _word(quoted: str) -> str:
    return quoted[1:-1].replace("''", "'")


def _decimal(text: str) -> Node:
    digits = text.rstrip("lL")
    # Python would refuse to parse more than 4300 digits.
    number = int(digits) if len(digits) < 20 else LONG_MAX + 1
    if number > LONG_MAX:
        raise SelectorError(f'For input string: "{digits}"', _NUMBER_FORMAT)
    return evaluation.literal(Kind.INT if number <= INT_MAX else Kind.LONG, number, str(number))


def _float(text: str) -> Node:
    number = float(text)
    if math.isinf(number):
        raise SelectorError(f"{text} is greater than 1.7976931348623157E308")
    if number < _SMALLEST:
        raise SelectorError(f"{text} is less than 4.9E-324")
    return evaluation.literal(Kind.DOUBLE, number, double_text(number))


def double_text(number: float) -> str:
    """Return a positive double as Java prints it.

    >>> double_text(1e10), double_text(0.5), double_text(123456789.125), double_text(0.0001)
    ('1.0E10', '0.5', '1.23456789125E8', '1.0E-4')
    """
    if _PLAIN[0] <= number < _PLAIN[1]:
        return repr(number)
    digits = repr(number).partition("e")[0].replace(".", "").strip("0")
    exponent = int(f"{number:.17e}".partition("e")[2])
    return f"{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _boolean(node: Node) -> Node:
    if node.kind in (Kind.PROPERTY, Kind.BOOLEAN) or (node.kind is Kind.NULL and node.literal):
        evaluate = evaluation.boolean_of(node)
        return node._replace(evaluate=evaluate)
    raise SelectorError(
        f"Expression will not result in a boolean value: {node.text}", PARSE_EXCEPTION
    )


def _in_set(name: str, operand: Node, words: Sequence[str]) -> Node:
    if operand.kind is not Kind.PROPERTY:
        raise SelectorError(f"Expected a property for In expression, got: {operand.text}")
    return evaluation.in_set(operand, [_word(word) for word in words], wanted=name == "among")


def _ordered(sign: str) -> Callable[[Sequence[Node]], Node]:
    def build_ordered(operands: Sequence[Node]) -> Node:
        for operand in operands:
            if operand.kind is Kind.BOOLEAN or (operand.literal and operand.kind not in NUMBERS):
                raise SelectorError(f"Value '{operand.text}' cannot be compared.")
        return evaluation.ordered(sign, *operands)

    return build_ordered


def _equal(operands: Sequence[Node]) -> Node:
    left, right = operands
    for operand in operands:
        if operand.literal and operand.kind is Kind.NULL:
            raise SelectorError("'NULL' cannot be compared.")
    if (
        left.literal
        and left.kind is Kind.BOOLEAN
        and right.literal
        and right.kind is not Kind.BOOLEAN
    ):
        raise SelectorError(f"'{left.text}' cannot be compared with '{right.text}'")
    return evaluation.equal(left, right)


def _between(operands: Sequence[Node]) -> Node:
    value, low, high = operands
    if low.literal and high.literal:
        _check_range(low, high)
    return evaluation.all_of([_ordered(">=")([value, low]), _ordered("<=")([value, high])])


def _check_range(low: Node, high: Node) -> None:
    if low.value is None or high.value is None:
        raise SelectorError("Illegal values of between, values can not be null!")
    try:
        order = _literal_order(low.value, low.kind, high.value, high.kind)
    except UnmatchableError as error:
        raise SelectorError(error.text, _NUMBER_FORMAT) from None
    if order > 0:
        raise SelectorError(
            f"Illegal values of between, left value({_java_text(low)}) "
            f"must less than or equal to right value({_java_text(high)})"
        )


def _literal_order(low: Value, low_kind: Kind, high: Value, high_kind: Kind) -> int:
    if low_kind is high_kind is Kind.STRING:
        return 1 if str(low) > str(high) else 0
    if (low_kind is Kind.BOOLEAN) is not (high_kind is Kind.BOOLEAN):
        return 1
    return order_for(low_kind, high_kind)(low, high)


def _java_text(node: Node) -> str:
    if node.kind is Kind.BOOLEAN:
        return node.text.lower()
    return str(node.value) if node.kind is Kind.STRING else node.text


def _not_between(operands: Sequence[Node]) -> Node:
    value, low, high = operands
    return evaluation.any_of([_ordered("<")([value, low]), _ordered(">")([value, high])])


_LEAVES: Final[dict[str, Callable[[str], Node]]] = {
    "string": lambda text: evaluation.literal(Kind.STRING, _word(text), text),
    "decimal": _decimal,
    "float": _float,
    "true": lambda _: evaluation.literal(Kind.BOOLEAN, value=True, text="TRUE"),
    "false": lambda _: evaluation.literal(Kind.BOOLEAN, value=False, text="FALSE"),
    "null": lambda _: evaluation.literal(Kind.NULL, None, "NULL"),
    "property": evaluation.property_of,
}

_RULES: Final[dict[str, Callable[[Sequence[Node]], Node]]] = {
    "any_of": lambda operands: evaluation.any_of([_boolean(operand) for operand in operands]),
    "all_of": lambda operands: evaluation.all_of([_boolean(operand) for operand in operands]),
    "equal": _equal,
    "unequal": lambda operands: evaluation.inverted(_equal(operands)),
    "is_null": lambda operands: evaluation.is_null(operands[0]),
    "is_not_null": lambda operands: evaluation.inverted(evaluation.is_null(operands[0])),
    "greater": _ordered(">"),
    "greater_equal": _ordered(">="),
    "less": _ordered("<"),
    "less_equal": _ordered("<="),
    "between": _between,
    "not_between": _not_between,
    "plus": lambda operands: operands[0],
    "inner": lambda operands: operands[0],
    "negated": lambda operands: evaluation.negated(operands[0]),
    "inverted": lambda operands: evaluation.inverted(_boolean(operands[0])),
}
"""The functions that build the nodes of the grammar's rules."""


_log = Log(logging.getLogger(__name__))

CACHED: Final = 100
"""Number of texts whose compiled selector or error is cached, as in Java."""
CACHED_CHARS: Final = 4096
"""Longer texts are not cached: compiled, they take up to 200 bytes for each character."""


class CompiledSelector:
    """A compiled selector. Made by `compile_selector`."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._evaluate = build(parse(text)).evaluate

    def __repr__(self) -> str:
        return f"CompiledSelector({self.text!r})"

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches.

        A message with values that cannot be compared does not match.
        """
        try:
            return self._evaluate(properties) is True
        except UnmatchableError as error:
            _log.debug("%r does not match: %s", self, error)
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Evaluate the selector; None means unknown.

        Raises:
            UnmatchableError: this message has a value that cannot be compared.
        """
        value = self._evaluate(properties)
        return value if isinstance(value, bool) else None


def compile_selector(text: str) -> CompiledSelector:
    """Compile a selector, or return it from the cache.

    Raises:
        SelectorError: the text is not valid.

    >>> compile_selector("a BETWEEN 5 AND 1")
    Traceback (most recent call last):
    coherer._wire.rocketmq.selector.evaluation.SelectorError: Invalid selector: Illegal values ...
    """
    if len(text) > SELECTOR_CHARS_MAX:
        raise SelectorError(f"It has {len(text)} characters; {SELECTOR_CHARS_MAX} are allowed.")
    found = _compiled(text) if len(text) <= CACHED_CHARS else _compile(text)
    if isinstance(found, CompiledSelector):
        return found
    raise SelectorError(*found)


def _compile(text: str) -> CompiledSelector | tuple[str, str]:
    try:
        return CompiledSelector(text)
    except SelectorError as error:
        return error.reason, error.java_class


_compiled: Final = lru_cache(maxsize=CACHED)(_compile)
