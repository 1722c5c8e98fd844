"""A RocketMQ cluster as Spark needs it.

Offsets count the messages of a queue, on our broker and on Java's, so a range is exact by itself.
Reading belongs to no group and nobody notices it; `commit` sets the offsets of one, for people and
tools that look at its lag.

A Java broker refuses messages that waited in its queue for more than 200 ms ("broker busy"),
without having looked at them. A task that sends thousands at a time meets that, so they are sent
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from coherer._net import TlsOptions
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import DLQ_PREFIX, RETRY_PREFIX, Queue
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.rocketmq import Producer as RocketProducer
from coherer.blocking.rocketmq import Reader as RocketReader
from coherer.blocking.rocketmq import connect as connect_rocketmq
from coherer.message import Message
from coherer.spark.offsets import Offsets, split_key, walk
from coherer.spark.options import Access
from coherer.spark.planning import Range

BUSY_PAUSES_S: Final = (0.1, 0.2, 0.5, 1, 2, 5)
"""Before messages that a busy broker refused are sent again; then the task fails."""


class RocketMQQueue:
    """Answers Spark's questions with a blocking client.

    Args:
        access: how to reach the cluster.
    """

    def __init__(self, access: Access) -> None:
        self._client = _connected(access)
        self._producer: RocketProducer | None = None

    def topics(self) -> Sequence[str]:
        """All topics that users made, from the name servers; not where retries wait."""
        found = [topic.name for topic in self._client.admin().topics()]
        return [name for name in found if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    def bounds(self, topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """(broker, queue) to (first offset held, offset behind the last)."""
        return self._client.offsets(topic)

    def since(self, topic: str, time: datetime) -> Mapping[tuple[str, int], int]:
        """(broker, queue) to the offset of the first message stored at a time or later."""
        return self._client.offsets_since(topic, time)

    def away(self, topic: str) -> Sequence[str]:
        """None: a name server forgets a broker that is down, and a route is all that it knows."""
        del topic
        return ()

    def reader(self, one: Range) -> RocketReader:
        """A reader for a range."""
        queue = Queue(one.topic, one.broker, one.partition)
        return self._client.reader(queue, one.start, end=one.end)

    def send(self, messages: Iterable[Message], window: int) -> int:
        """Sends messages and waits for all receipts; returns how many they were."""
        if self._producer is None or self._producer.window != window:
            # The sink is at least once: a duplicate, which consumers can tell, beats a failed task.
            producer = self._client.producer(window=window, retry_lost=True)
            producer.start()
            self._producer = producer
        report = self._producer.send_many(messages)
        sent = report.sent
        for pause_s in BUSY_PAUSES_S:
            busy = [
                message
                for message, error in report.failed
                if error.code == ResponseCode.SYSTEM_BUSY
            ]
            if not busy or len(busy) < len(report.failed):
                break
            time.sleep(pause_s)
            report = self._producer.send_many(busy)
            sent += report.sent
        report.check()
        return sent

    def commit(self, group: str, offsets: Offsets) -> None:
        """Sets the offsets of a group."""
        places = {Queue(topic, *split_key(key)): offset for topic, key, offset in walk(offsets)}
        self._client.admin().set_offsets(group, places)

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()


def _connected(access: Access) -> RocketClient:
    secure = access.tls or access.url.startswith("rocketmqs:")
    tls = TlsOptions(
        trust=_path(access.tls_trust),
        certificate=_path(access.tls_certificate),
        key=_path(access.tls_key),
    )
    return connect_rocketmq(
        access.url,
        user=access.user,
        password=access.secret(),
        tls=tls if secure else None,
        timeout_ms=access.timeout_ms,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
