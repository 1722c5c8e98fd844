"""Whether a checkpoint belongs to what a stream reads.

Partitions that a start does not name are new, and are read from their beginning. So a checkpoint
that was made for another topic, or for another cluster, would have everything read without a word.
"""

from __future__ import annotations

import re

from coherer.errors import UsageError
from coherer.spark.offsets import Bounds, Offsets
from coherer.spark.options import ReadOptions

_HINT = "A query that reads something else needs a checkpointLocation of its own."


def check_topics(start: Offsets, options: ReadOptions) -> None:
    """See that the stream reads a topic of the checkpoint.

    Args:
        start: what the checkpoint says.
        options: what the stream reads.

    Raises:
        UsageError: it reads none of them.

    >>> from coherer.spark.options import read_options
    >>> options = read_options({"url": "tubemq://h:1", "topic": "ships"})
    >>> check_topics({"flights": {"1:0": 7}}, options)
    Traceback (most recent call last):
    coherer.errors.UsageError: The checkpoint is of flights, and the stream reads ships. A query \
that reads something else needs a checkpointLocation of its own.
    """
    pattern = options.topics_pattern
    taken = options.topics if pattern is None else [t for t in start if re.fullmatch(pattern, t)]
    if start and not start.keys() & set(taken):
        wanted = ", ".join(options.topics) if pattern is None else f"what matches {pattern}"
        raise UsageError(
            f"The checkpoint is of {', '.join(start)}, and the stream reads {wanted}.", hint=_HINT
        )


def check_brokers(start: Offsets, bounds: Bounds, url: str) -> None:
    """See that the brokers have a partition of the checkpoint.

    Clusters whose brokers are called alike cannot be told apart.

    Args:
        start: what the checkpoint says.
        bounds: what the brokers hold.
        url: where they were found.

    Raises:
        UsageError: they have others of its topics, and none of them.

    >>> check_brokers({"t": {"a:0": 7, "b:0": 3}}, {"t": {"b:0": (0, 5)}}, "")
    >>> check_brokers({"t": {"a:0": 7}}, {"t": {"b:0": (0, 5)}}, "rocketmq://h:1")
    Traceback (most recent call last):
    coherer.errors.UsageError: The checkpoint is of partitions a:0, and rocketmq://h:1 has only \
b:0. [topic t] Is it another cluster? Then the query needs a checkpointLocation of its own. If the \
brokers are away, start them; failOnDataLoss=false reads on without them.
    """
    shared = [topic for topic, places in start.items() if places and bounds.get(topic)]
    if not shared or any(start[topic].keys() & bounds[topic].keys() for topic in shared):
        return
    topic = shared[0]
    raise UsageError(
        f"The checkpoint is of partitions {', '.join(start[topic])}, and {url} has only "
        f"{', '.join(bounds[topic])}.",
        topic=topic,
        hint="Is it another cluster? Then the query needs a checkpointLocation of its own. If the "
        "brokers are away, start them; failOnDataLoss=false reads on without them.",
    )
