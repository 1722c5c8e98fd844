"""The offsets of a topic while some of its brokers are away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from coherer._common.places import AnyPartition, place_of
from coherer._common.renamed import ByPartition
from coherer.errors import UnavailableError

P = TypeVar("P", bound=AnyPartition)


class PresentOffsets(NamedTuple, Generic[P]):
    """The offsets of partitions.

    Args:
        found: by partition, the oldest offset and one after the newest.
        away: by broker, the error of those that did not answer.
    """

    found: dict[P, tuple[int, int]]
    away: dict[str, UnavailableError]

    def whole(self) -> dict[P, tuple[int, int]]:
        """The offsets of all partitions.

        Raises:
            UnavailableError: a broker did not answer.
        """
        for error in self.away.values():
            raise error
        return self.found


def present_offsets(
    partitions: Sequence[P], outcomes: Sequence[tuple[int, int] | BaseException]
) -> PresentOffsets[P]:
    """Divide the outcomes of questions for the offsets of partitions.

    Raises:
        BaseException: an outcome is another error than that a broker is away.
    """
    found: dict[P, tuple[int, int]] = ByPartition()
    away: dict[str, UnavailableError] = {}
    for partition, outcome in zip(partitions, outcomes, strict=True):
        if isinstance(outcome, UnavailableError):
            away.setdefault(place_of(partition)[0], outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            found[partition] = outcome
    return PresentOffsets(found, away)
