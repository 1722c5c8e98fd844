"""What `coherer consume` takes from TubeMQ without a group: every partition, by a reader each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

if TYPE_CHECKING:
    from coherer._wire.tubemq.delivery import MessageBatch
    from coherer.blocking.tubemq import Client, Reader
    from coherer.message import ReceivedMessage

_REST_S: Final = 0.1
"""Pause after a round in which no partition had a message."""

_NO_END: Final = 1 << 62


class Tagged:
    """The messages of a batch that have one of some tags."""

    def __init__(self, batch: MessageBatch, tags: Sequence[str]) -> None:
        wanted = frozenset(tags)
        self._messages = [message for message in batch if message.tag in wanted]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._messages)

    def bodies(self) -> list[bytes]:
        """Only the bodies."""
        return [message.body for message in self._messages]


class Readers:
    """Reads all partitions of some topics, as they are when it begins; see `consume.Receiver`.

    Args:
        client: the way to the cluster; it stays open.
        topics: topics, and the tags that are wanted of each; all messages when there are none.
        start: where to begin.
    """

    def __init__(
        self,
        client: Client,
        topics: Mapping[str, Sequence[str]],
        start: Literal["earliest", "latest"],
    ) -> None:
        self._client = client
        self._topics = topics
        self._end = int(start == "latest")
        self._stack = ExitStack()
        self._readers: deque[tuple[Reader, Sequence[str]]] = deque()

    def __enter__(self) -> Self:
        with self._stack:
            for topic, tags in self._topics.items():
                offsets = self._client.offsets(topic)
                for partition in self._client.partitions(topic):
                    begin = offsets[str(partition.broker.id), partition.id][self._end]
                    reader = self._client.reader(partition, begin, end=_NO_END)
                    self._readers.append((self._stack.enter_context(reader), tags))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def receive(self, *, timeout_ms: int) -> MessageBatch | Tagged | None:
        """The next messages of a partition, all partitions in turn; None when time is up."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            for _ in range(len(self._readers)):
                self._readers.rotate(-1)
                reader, tags = self._readers[-1]
                batch = reader.read()
                if batch is None:
                    continue
                chosen = Tagged(batch, tags) if tags else batch
                if len(chosen):
                    return chosen
            rest = min(_REST_S, deadline - time.monotonic())
            if rest <= 0:
                return None
            time.sleep(rest)

    def confirm(self, batch: MessageBatch | Tagged) -> None:
        """Nothing to do: no group reads."""

    def leave(self, batch: MessageBatch | Tagged, printed: int) -> None:
        """Nothing to do: no group reads."""
