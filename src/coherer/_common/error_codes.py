"""Maps the error codes in a server's answers to exception classes, for both protocols."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final, TypeVar

from coherer.errors import RefusedError

_ADVICE_BY_TEXT: Final = {
    "disk is full": "Free disk space on that server or lower its retention; it resumes "
    "automatically. Sending more slowly does not help.",
    "disk has failed": "See the server's log, check its disk, and restart it.",
}
"""By a part of the answer of a Coherer broker. Java's RocketMQ broker uses the same code with the
text "maybe disk full", because it cannot be sure."""


class CodedError(RefusedError):
    """An error answer with a known code.

    Each protocol has one subclass; the classes of its codes derive from that.
    """

    result: ClassVar[IntEnum]
    meaning: ClassVar[str]
    advice: ClassVar[str] = ""


E = TypeVar("E", bound=CodedError)


def error_classes(root: type[E]) -> dict[int, type[E]]:
    """Return the direct subclasses of a protocol's class by their codes."""
    return {int(kind.result): kind for kind in root.__subclasses__()}


def refused_error(
    kinds: Mapping[int, type[CodedError]],
    code: int,
    text: str | None,
    *,
    server: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> RefusedError:
    """Return the exception for an answer with an error code.

    Args:
        kinds: the classes of the protocol by code.
        text: the text of the answer; if it is empty, the meaning of the code is used.
        server: the server that answered, `host:port`.
        partition: the partition or queue of the request.
    """
    kind = kinds.get(code)
    advice = kind.advice if kind else ""
    advice = next((one for part, one in _ADVICE_BY_TEXT.items() if part in (text or "")), advice)
    return (kind or RefusedError)(
        text or (kind.meaning if kind else "The server refused the request."),
        code=code,
        server=server,
        topic=topic,
        partition=partition,
        hint=advice,
    )
