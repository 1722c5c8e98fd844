"""What `coherer consume` takes from RocketMQ: as a member of a group, or as nobody."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

Start: TypeAlias = Literal["earliest", "latest"]

if TYPE_CHECKING:
    from coherer._client.rocketmq.options import Selection
    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.rocketmq import Consumer as RocketConsumer
    from coherer.blocking.rocketmq import PullConsumer as RocketPullConsumer
    from coherer.blocking.rocketmq import ReceivedBatch as RocketBatch


@contextmanager
def member(
    client: RocketClient, group: str, wanted: Mapping[str, Selection], start: Start
) -> Generator[Member]:
    """A consumer of a group."""
    with client.consumer(group, wanted, start=start) as consumer:
        yield Member(consumer)


@contextmanager
def passer_by(
    client: RocketClient, wanted: Mapping[str, Selection], start: Start
) -> Generator[PasserBy]:
    """Somebody of no group, who leaves nothing behind.

    It reads the queues that are there when it begins.
    """
    from coherer._client.rocketmq.start_position import Edge
    from coherer._wire.rocketmq.names import TOOLS_GROUP

    with client.pull_consumer(TOOLS_GROUP, auto_commit=False) as consumer:
        for topic in wanted:
            client.offsets(topic)  # what is refused is said once, and not for every queue
        queues = [queue for topic in wanted for queue in client.partitions(topic)]
        consumer.assign(queues, next(iter(wanted.values())))
        for queue in queues:
            consumer.seek(queue, Edge.OLDEST if start == "earliest" else Edge.END)
        yield PasserBy(consumer)


class Member:
    """Confirms what was printed; see `consume.Receiver`."""

    def __init__(self, consumer: RocketConsumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> RocketBatch | None:
        """The next messages."""
        return self._consumer.receive(timeout_ms)

    def confirm(self, batch: RocketBatch) -> None:
        """The group goes on behind them."""
        self._consumer.commit(batch)

    def leave(self, batch: RocketBatch, printed: int) -> None:
        """The group goes on behind those that were printed."""
        for message in islice(batch, printed):
            message.ack()


class PasserBy:
    """Confirms nothing."""

    def __init__(self, consumer: RocketPullConsumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> RocketBatch | None:
        """The next messages."""
        return self._consumer.poll(timeout_ms)

    def confirm(self, batch: RocketBatch) -> None:
        """Nobody needs to know."""

    def leave(self, batch: RocketBatch, printed: int) -> None:
        """Nobody needs to know."""
