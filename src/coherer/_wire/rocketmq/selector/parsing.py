"""Text to tree, as Java's parser reads it (7.2).

Java's grammar does not ask for the end of the text. Its parser looks one token ahead: when that
token cannot go on with the expression and the expression is complete, the rest is ignored. So we
feed tokens one by one, and stop at the first that does not fit.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from coherer._wire.rocketmq.selector.evaluation import SelectorError
from coherer.limits import SELECTOR_TOKENS_MAX

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

_COMMENTED: Final = re.compile(r"'[^']*(?:''[^']*)*(?:'|\Z)|/\*.*?(?:\*/|\Z)|--[^\n\r]*", re.DOTALL)
"""A string, a comment, or a comment that ends with its line."""


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    return Lark.open("grammar.lark", rel_to=__file__, parser="lalr", lexer="basic")


def parse(text: str) -> Tree[Token]:
    """Give the tree of a selector.

    Raises:
        SelectorError: it is none.

    >>> parse("a = 1 then more").children[0].data
    'equal'
    """
    from lark import Token, UnexpectedCharacters, UnexpectedToken

    parser = _parser()
    text = _without_line_comments(text)
    reading = parser.parse_interactive("")
    unfit: Token | None = None
    try:
        for count, token in enumerate(parser.lex(text)):
            if count >= SELECTOR_TOKENS_MAX:
                reason = f"It has more than {SELECTOR_TOKENS_MAX} words and signs."
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
    return tree


def _without_line_comments(text: str) -> str:
    """The text with blanks for comments from `--` to the end of a line; all else stays in place.

    Such a comment needs the end of its line: behind the last one, `--` is two signs. A lexer that
    looks for that end from each `--` takes a time that grows with the square of the text.
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
        line, column = _place(text, len(text))
        return f'Encountered "<EOF>" at line {line}, column {column - 1}.'
    word = _escaped(token.value)
    shown = f'{_NAMED[token.type]} "{word} "' if token.type in _NAMED else f'"{word}" "{word} "'
    line, column = _place(text, token.start_pos or 0)
    return f'Encountered " {shown}" at line {line}, column {column}.'


def _lexical(text: str, position: int) -> str:
    line, column = _place(text, position)
    sign = text[position]
    return (
        f"Lexical error at line {line}, column {column}.  "
        f'Encountered: "{_escaped(sign)}" ({ord(sign)}), after : ""'
    )


def _place(text: str, position: int) -> tuple[int, int]:
    """Line and column of a position, from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


def _escaped(word: str) -> str:
    """Text as Java's parsers show it: ASCII, with quotes and control characters escaped."""
    return "".join(
        f"\\{sign}" if sign in "'\"\\" else sign if " " <= sign < "\x7f" else f"\\u{ord(sign):04x}"
        for sign in word
    )
