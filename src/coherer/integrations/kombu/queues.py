"""What a queue of kombu is in RocketMQ: its topics, its bindings, and which messages belong to it.

* A queue reads its own topics (one for each priority step) and the topics of the exchanges that it
  is bound to. A topic may hold messages of other queues: `accepts` tells them apart.
* A specification does not change: whoever binds or unbinds a queue replaces it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from coherer.integrations.kombu import names
from coherer.rocketmq import StoredMessage


class Binding(msgspec.Struct, frozen=True):
    """A queue's binding to an exchange.

    Args:
        topic: the exchange's topic.
        kind: the exchange's type, `direct`, `topic` or `fanout`.
        routing_key: the binding's routing key.
        pattern: the regular expression for routing keys, with a topic exchange.
    """

    topic: str
    kind: str
    routing_key: str = ""
    pattern: str | None = None

    def accepts(self, routing_key: str) -> bool:
        """Whether a message with this routing key belongs into the queue."""
        if self.kind == "fanout":
            return True
        if self.pattern is not None:
            return re.match(self.pattern, routing_key) is not None
        return routing_key == self.routing_key


class QueueSpec(msgspec.Struct, frozen=True):
    """A queue of kombu, as this process has declared it.

    Args:
        name: kombu's name.
        topic: its topic, and its group.
        steps: the priorities that have topics of their own; empty for none.
        ttl_ms: how long its messages may wait; None for no limit.
        bindings: the exchanges that it receives messages from.
    """

    name: str
    topic: str
    steps: tuple[int, ...] = ()
    ttl_ms: int | None = None
    bindings: frozenset[Binding] = frozenset()

    @property
    def own_topics(self) -> list[str]:
        """The topics of the queue itself."""
        higher = (names.priority_topic(self.topic, step) for step in self.steps if step)
        return [self.topic, *higher]

    def subscription(self) -> dict[str, str | None]:
        """The topics of its group, with the tags to read; None for all."""
        tags: dict[str, list[str] | None] = {one: [names.QUEUE_TAG] for one in self.own_topics}
        for binding in sorted(self.bindings, key=lambda one: (one.topic, one.routing_key)):
            known = tags.setdefault(binding.topic, [])
            if binding.kind != "direct":
                tags[binding.topic] = None
            elif known is not None:
                known.append(names.routing_tag(binding.routing_key))
        return {topic: None if some is None else " || ".join(some) for topic, some in tags.items()}

    def accepts(self, message: StoredMessage, info: dict[str, Any]) -> bool:
        """Whether a message of one of its topics belongs into the queue."""
        if message.tag == names.QUEUE_TAG:
            return message.topic in self.own_topics
        key = str(info.get("routing_key") or "")
        return any(one.topic == message.topic and one.accepts(key) for one in self.bindings)
