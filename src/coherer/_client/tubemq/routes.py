"""From a topic to the partition that takes its next message.

A route knows all writable partitions of a topic and works out which of them are usable at the
moment: on a broker that there is nothing against, and with an open connection. Where no partition
is, it makes do with less: an open connection, then anything. (Java fails the send when every
broker is suspect; a cluster of one broker that once was busy would be shut out for 50 s.)

The list is worked out anew only when something changed, not for each message.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from coherer._client.tubemq.partitions import RoundRobin
from coherer._client.tubemq.quality import Quality
from coherer._client.tubemq.sender import Place


class Route:
    """The partitions of one topic.

    Attributes:
        topic: the topic.
        max_bytes: how long a message of this topic may be.
        stale: set it when something changed that `next` should know.
        complete: whether all partitions were usable when that was worked out last.
    """

    def __init__(self, topic: str, max_bytes: int, places: Iterable[Place]) -> None:
        self.topic = topic
        self.max_bytes = max_bytes
        self.stale = True
        self.complete = False
        self.places = list(places)
        self._usable = self.places
        self._robin = RoundRobin(secrets.randbits(32))

    def __repr__(self) -> str:
        return f"<Route to {self.topic}: {len(self._usable)} of {len(self.places)} partitions>"

    @property
    def open(self) -> bool:
        """Whether a connection to one of the brokers is there."""
        return any(place.lane.open for place in self.places)

    def renew(self, max_bytes: int, places: Iterable[Place]) -> None:
        """Take over what the master tells now."""
        self.max_bytes = max_bytes
        self.places = list(places)
        self.stale = True

    def next(self, quality: Quality, now: float) -> Place:
        """The partition for the next message.

        Args:
            quality: knows which brokers to leave out.
            now: the loop's clock in seconds.
        """
        now_ms = int(now * 1000)
        if self.stale:
            self.stale = False
            self._usable = self._choose(quality, now_ms)
            self.complete = len(self._usable) == len(self.places)
        return self._robin.choose(self._usable, now_ms)

    def _choose(self, quality: Quality, now_ms: int) -> list[Place]:
        brokers = dict.fromkeys(place.partition.broker.id for place in self.places)
        good = set(quality.usable(brokers, now_ms))
        fit = [place for place in self.places if place.partition.broker.id in good]
        ready = [place for place in fit if place.lane.open]
        if len(ready) < len(fit):
            for place in fit:
                place.lane.connect()  # one whose connection was idle is only there when asked for
        return ready or [place for place in self.places if place.lane.open] or fit or self.places
