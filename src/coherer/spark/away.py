"""Brokers that are away while others of their topic are read."""

from __future__ import annotations

import logging
from typing import Final, TypeVar

from coherer._client.engine.present import PresentOffsets
from coherer._common.logs import Log
from coherer._common.places import AnyPartition

P = TypeVar("P", bound=AnyPartition)

log: Final = Log(logging.getLogger(__name__))


class Away:
    """The brokers that did not answer the last question, each of which is logged once."""

    def __init__(self) -> None:
        self._brokers: dict[str, frozenset[str]] = {}

    def logged(self, topic: str, present: PresentOffsets[P]) -> dict[P, tuple[int, int]]:
        """The offsets of a topic at the other brokers.

        Raises:
            UnavailableError: there are none.
        """
        known = self._brokers.get(topic, frozenset())
        for broker, error in present.away.items():
            if broker not in known:
                log.warning("Topic %s is read without broker %s: %s", topic, broker, error)
        self._brokers[topic] = frozenset(present.away)
        return present.found or present.whole()
