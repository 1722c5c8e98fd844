"""What Coherer uses of lark: its own annotations leave options and texts unknown."""

from collections.abc import Iterator
from typing import Generic, Literal, Self, TypeVar

_T = TypeVar("_T")

class Token(str):
    type: str
    value: str
    start_pos: int | None
    def __new__(cls, type: str, value: str) -> Self: ...

class Tree(Generic[_T]):
    data: str
    children: list[_T | Tree[_T]]

class UnexpectedCharacters(Exception):  # noqa: N818 - lark's name
    pos_in_stream: int

class UnexpectedToken(Exception): ...  # noqa: N818 - lark's name

class InteractiveParser:
    def feed_token(self, token: Token) -> Tree[Token]: ...

class Lark:
    @classmethod
    def open(
        cls,
        grammar_filename: str,
        rel_to: str | None = None,
        *,
        parser: Literal["lalr"],
        lexer: Literal["basic"],
    ) -> Lark: ...
    def lex(self, text: str) -> Iterator[Token]: ...
    def parse_interactive(self, text: str) -> InteractiveParser: ...
