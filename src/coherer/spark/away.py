"""Brokers that are away while others of their topic, or other topics, are read.

A TubeMQ master knows the topics of brokers that are away. RocketMQ's name servers forget a broker
together with its topics, and then answer as for topics that were deleted. What they still know is
which brokers are there: if one of those that had the topic is, the topic was deleted. Otherwise it
may return with its brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from coherer._client.engine.present import PresentOffsets
from coherer._common.logs import Log
from coherer._common.places import AnyPartition, place_of
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer.blocking._present import present_offsets
from coherer.errors import CohererError, UnavailableError
from coherer.spark.queue import TopicAwayError

if TYPE_CHECKING:  # a worker reads over one protocol, and loads its client only
    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.tubemq import Client as TubeClient

log: Final = Log(logging.getLogger(__name__))

Found = PresentOffsets[AnyPartition]


def _all_topics_are_known(brokers: Collection[str]) -> bool:  # noqa: ARG001 - of a TubeMQ master
    return True


class Away:
    """Asks brokers of which some may be away. Each that is away is logged once.

    Args:
        client: of the cluster.
        is_there: whether one of some brokers is there now.
    """

    def __init__(
        self,
        client: RocketClient | TubeClient,
        is_there: Callable[[Collection[str]], bool] = _all_topics_are_known,
    ) -> None:
        self._client = client
        self._is_there = is_there
        self._brokers: dict[str, frozenset[str]] = {}

    def bounds(
        self, topic: str, *, partial: bool, known: Collection[str] | None
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """The first offset and the end of a topic's partitions; see `Queue.bounds`.

        Raises:
            TopicAwayError: all brokers are away, and `partial` is set.
            UnavailableError: a broker does not answer, and `partial` is not set.
        """
        if not partial:
            found = present_offsets(self._client, topic).whole()
            return {place_of(one): ends for one, ends in found.items()}
        present = self._present(topic, known)
        if present.away and not present.found:
            raise _away(topic, next(iter(present.away.values())))
        ends = {place_of(one): ends for one, ends in present.found.items()}
        gone = {*(known or ())} - {broker for broker, _ in ends}
        self._log(topic, {broker: present.away.get(broker) for broker in {*gone, *present.away}})
        return ends

    def _present(self, topic: str, known: Collection[str] | None) -> Found:
        try:
            return present_offsets(self._client, topic)
        except TopicNotExistError as error:
            if known is None or (known and not self._is_there(known)):
                raise _away(topic, error) from error
            if not known:
                raise
        return present_offsets(self._client, topic)  # a broker may have come back in between

    def _log(self, topic: str, away: dict[str, UnavailableError | None]) -> None:
        logged = self._brokers.get(topic, frozenset())
        for broker in sorted(away.keys() - logged):
            why = away[broker] or "It is not registered."
            log.warning("Topic %s is read without broker %s: %s", topic, broker, why)
        self._brokers[topic] = frozenset(away)


def _away(topic: str, error: CohererError) -> TopicAwayError:
    return TopicAwayError(f"No broker of the topic is there now: {error}", topic=topic)
