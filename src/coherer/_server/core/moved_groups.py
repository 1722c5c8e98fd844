"""Logs that an operator has moved a group to other offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from coherer._common.logs import Log

_log = Log(logging.getLogger(__name__))

_SHOWN_MAX: Final = 16
"""The most partitions that a line names."""


def log_moved(
    group: str, topic: str, before: Mapping[int, int | None], after: Mapping[int, int]
) -> None:
    """Log that a group was moved in a topic, once for all its partitions.

    Args:
        before: its offset by partition; None or -1 if it had none.
        after: the new offset by partition.
    """
    moved = [number for number in sorted(after) if before.get(number) != after[number]]
    if moved:
        _log.plain.info(
            "Group %s was moved in topic %s: %s",
            group,
            topic,
            _listed(f"{n} from {_text(before.get(n))} to {after[n]}" for n in moved),
            extra={"group": group, "topic": topic},
        )


def _text(offset: int | None) -> str:
    return "no offset" if offset is None or offset < 0 else str(offset)


def _listed(moves: Iterable[str]) -> str:
    """The moves of the first partitions, and how many others there are.

    >>> _listed(["0 from 5 to 2", "1 from no offset to 0"])
    'partition 0 from 5 to 2, 1 from no offset to 0'
    """
    moves = list(moves)
    more = f", and {len(moves) - _SHOWN_MAX} more" if len(moves) > _SHOWN_MAX else ""
    return f"partition {', '.join(moves[:_SHOWN_MAX])}{more}"
