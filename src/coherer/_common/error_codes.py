"""From the code of an answer that means no to an exception class of its own, for both protocols."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final, TypeVar

from coherer.errors import RefusedError

_DISK_FULL: Final = "disk is full"
"""What a broker of ours says when its disk is full. RocketMQ's text in Java, for the same code, is
"maybe disk full": it does not know."""
_DISK_FULL_ADVICE: Final = (
    "Free room on that server's disk, or lower its retention; it goes on by itself. Sending more "
    "slowly does not help."
)


class CodedError(RefusedError):
    """An error answer with one code.

    Each protocol has one subclass; the classes of its codes derive from that.
    """

    result: ClassVar[IntEnum]
    meaning: ClassVar[str]
    advice: ClassVar[str] = ""


E = TypeVar("E", bound=CodedError)


def error_classes(root: type[E]) -> dict[int, type[E]]:
    """Returns the classes right below a protocol's, by their codes."""
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
    """Returns the exception for an answer that is not a success.

    Args:
        kinds: the classes of the protocol.
        code: the answer's code.
        text: what the server said; the meaning of the code stands in for nothing.
        server: who answered, `host:port`.
        topic: the topic that it was about.
        partition: the partition or queue that it was about.
    """
    kind = kinds.get(code)
    advice = kind.advice if kind else ""
    if text and _DISK_FULL in text:
        advice = _DISK_FULL_ADVICE
    return (kind or RefusedError)(
        text or (kind.meaning if kind else "Refused."),
        code=code,
        server=server,
        topic=topic,
        partition=partition,
        hint=advice,
    )
