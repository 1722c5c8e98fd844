"""Where the user's own code is: the lines that opened something, and those that tasks wait at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

_OURS: Final = str(Path(__file__).parents[1])
_PYTHONS: Final = str(Path(asyncio.__file__).parents[1])

PLACES_MAX: Final = 10

_PARTS: Final = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""The frames of coroutines and generators, and what they wait for."""


def is_ours(file: str) -> bool:
    """Whether a file is Coherer's."""
    return file.startswith(_OURS)


def is_users(file: str) -> bool:
    """Whether a file is neither Coherer's nor Python's."""
    return not (is_ours(file) or (file.startswith(_PYTHONS) and "site-packages" not in file))


def waiting_at(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    """Where the tasks of a loop wait in the user's own code, the innermost line of each."""
    found: dict[str, None] = {}
    for task in tasks:
        own = [frame for frame in _frames(task.get_coro()) if is_users(frame.f_code.co_filename)]
        if own:
            code = own[-1].f_code
            found[f"{code.co_qualname} waits at {code.co_filename}:{own[-1].f_lineno}"] = None
    return sorted(found)


def with_places(text: str, places: list[str]) -> str:
    """A text with a line for each place, the first ones if there are many."""
    more = [f"... and {len(places) - PLACES_MAX} more"] if len(places) > PLACES_MAX else []
    return "\n  ".join((text, *places[:PLACES_MAX], *more))


def _frames(waiter: Any) -> Iterator[FrameType]:
    """The frames of a coroutine that waits, from the outside in."""
    while waiter is not None:
        names = next((names for names in _PARTS if hasattr(waiter, names[0])), None)
        if names is None:
            return
        frame, waiter = (getattr(waiter, name) for name in names)
        if frame is not None:
            yield frame
