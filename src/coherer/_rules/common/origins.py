"""Who may write into which system topic.

Invariant: a topic in `RESERVED_TOPICS` holds only records that this node itself has written there.
The parts of a node that read such a topic rely on it, and so do the permissions of accounts: a
message that waits there has a destination, which its sender was allowed to write to.

`fault` checks it, for every record that enters the log through `Appender.submit`. A submission has
an `Origin` and two kinds of records. *Messages* come from a client, now or earlier. They are meant
for an ordinary topic; on the way they may wait in a topic of `WAITING_TOPICS`, if the node has put
them there: then `Draft.destination` names the topic they are meant for. *Own* records are marks and
copies that a part of the node writes for itself, into its own topics only.

Slaves and restored backups copy a whole log, which was checked when it was written.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from coherer._record.layout import Record
from coherer._record.properties import REAL_QUEUE, REAL_TOPIC, value_of
from coherer._record.system_topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    HISTORY_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
)
from coherer._store.model import Draft, DraftBatch
from coherer.errors import UsageError


class Origin(enum.Enum):
    """Who submits records; the values complete the sentence of an error."""

    ROCKETMQ_CLIENT = "a RocketMQ client"
    TUBEMQ_CLIENT = "a TubeMQ client"
    DELAYS = "the delivery of delayed messages"
    TIMERS = "the delivery of timed messages"
    TRANSACTIONS = "the service of transactions"
    PULLS = "the service of pulls"
    REPLICATION = "replication"


CLIENTS: Final = frozenset((Origin.ROCKETMQ_CLIENT, Origin.TUBEMQ_CLIENT))
"""The origins that a full disk refuses first; the node goes on with what it has accepted."""

_OWN: Final[Mapping[Origin, frozenset[str]]] = {
    Origin.ROCKETMQ_CLIENT: frozenset(),
    Origin.TUBEMQ_CLIENT: frozenset(),
    Origin.DELAYS: frozenset((TIMER_TOPIC,)),
    Origin.TIMERS: frozenset((TIMER_TOPIC,)),
    Origin.TRANSACTIONS: frozenset((HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)),
    Origin.PULLS: frozenset((OFFSET_MOVED_TOPIC,)),
    Origin.REPLICATION: frozenset((SELF_TEST_TOPIC,)),
}
"""The system topics into which each origin may write records of its own."""

WAITING_TOPICS: Final = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))
"""The topics in which messages wait before they reach their destination."""

RESERVED_TOPICS: Final = WAITING_TOPICS.union(*_OWN.values(), (HISTORY_TOPIC,))
"""Topics to which no client can send. Java's `TopicValidator` has the same, except the topics that
Java does not have: the timer's, and TubeMQ's history of offsets. Its broker of 4.9.3 refuses only
the schedule topic, and later ones all of them.
"""


_topic_of: Final = attrgetter("topic")


class OriginError(UsageError):
    """A record is meant for a system topic that its origin may not write to."""

    def __init__(self, topic: str, origin: Origin) -> None:
        super().__init__(f"{topic} is a system topic: {origin.value} cannot write to it.")
        self.topic = topic


def fault(
    origin: Origin, messages: Sequence[Draft | DraftBatch], own: Sequence[Draft] = ()
) -> OriginError | None:
    """Return why records may not enter the log, or None.

    Args:
        origin: who submits them.
        messages: messages of clients.
        own: records that the origin writes for itself.

    >>> fault(Origin.ROCKETMQ_CLIENT, [Draft("flights", 0, b"", b"")])
    >>> wrong = fault(Origin.ROCKETMQ_CLIENT, [Draft("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"7", b"")])
    >>> print(wrong)
    RMQ_SYS_TRANS_OP_HALF_TOPIC is a system topic: a RocketMQ client cannot write to it. [...]
    """
    # Most submissions name no reserved topic; for them no Python code runs per message.
    if not RESERVED_TOPICS.isdisjoint(map(_topic_of, messages)):
        for message in messages:
            if not _is_allowed(message):
                return OriginError(_destination(message), origin)
    for record in own:
        if record.topic not in _OWN[origin]:
            return OriginError(record.topic, origin)
    return None


def _is_allowed(message: Draft | DraftBatch) -> bool:
    if message.topic not in RESERVED_TOPICS:
        return True
    return message.topic in WAITING_TOPICS and _destination(message) not in RESERVED_TOPICS


def _destination(message: Draft | DraftBatch) -> str:
    return (isinstance(message, Draft) and message.destination) or message.topic


def topic_of(record: Record) -> str:
    """Return the topic that decides who may read a record.

    A message that waits in a system topic belongs to the topic that it is meant for. The same
    property means nothing in any other topic: there a client may have set it.
    """
    if record.topic not in _HOLDING_TOPICS:
        return record.topic
    return value_of(record.properties, REAL_TOPIC) or record.topic


_HOLDING_TOPICS: Final = WAITING_TOPICS | {CHECK_MAX_TIME_TOPIC}
_QUEUE_DIGITS_MAX: Final = 10


def destination(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue to which a waiting message is to be delivered.

    Args:
        properties: the properties of the waiting message. They come from the log, which another
            program may have written.

    Returns:
        None if there is no destination, or messages may not be delivered to it.

    >>> destination({"REAL_TOPIC": "flights", "REAL_QID": "3"})
    ('flights', 3)
    >>> destination({"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "3"})
    """
    topic, queue = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE, "")
    if not topic or topic in RESERVED_TOPICS:
        return None
    if not queue.isascii() or not queue.isdecimal() or len(queue) > _QUEUE_DIGITS_MAX:
        return None
    return topic, int(queue)
