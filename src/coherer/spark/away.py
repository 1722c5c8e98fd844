"""Brokers that are away while others of their topic are read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from coherer._client.engine.present import PresentOffsets
from coherer._common.logs import Log
from coherer._common.places import AnyPartition, place_of
from coherer.blocking._present import present_offsets

if TYPE_CHECKING:  # a worker reads over one protocol, and loads its client only
    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.tubemq import Client as TubeClient

log: Final = Log(logging.getLogger(__name__))


class Away:
    """The brokers that did not answer the last question, each of which is logged once."""

    def __init__(self) -> None:
        self._brokers: dict[str, frozenset[str]] = {}

    def bounds(
        self, client: RocketClient | TubeClient, topic: str, *, partial: bool
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """The first offset and the end of a topic's partitions; see `Queue.bounds`.

        Raises:
            UnavailableError: no broker answers, or one does not and `partial` is false.
        """
        present = present_offsets(client, topic)
        found = self._logged(topic, present) if partial else present.whole()
        return {place_of(one): ends for one, ends in found.items()}

    def _logged(
        self, topic: str, present: PresentOffsets[AnyPartition]
    ) -> dict[AnyPartition, tuple[int, int]]:
        """The offsets at the brokers that answer; the others are logged."""
        known = self._brokers.get(topic, frozenset())
        for broker, error in present.away.items():
            if broker not in known:
                log.warning("Topic %s is read without broker %s: %s", topic, broker, error)
        self._brokers[topic] = frozenset(present.away)
        return present.found or present.whole()
