"""What the clients of both protocols have in common, as types, and `connect`.

The classes are protocols (PEP 544): the clients of `coherer.tubemq` and `coherer.rocketmq` match
them without inheriting from them. Each of those has more: ordering keys, transactions and pull
consumers with RocketMQ, bound consumption with TubeMQ, and with both the reader of a range.
`coherer.blocking` has the same types without asyncio, generated from these.

These are not unions of both protocols' classes, although a union would say nothing twice: programs
test with fakes that match a protocol by structure, a program would load both clients to check
`isinstance(client, coherer.Client)`, and editors show the texts of these members to everybody who
uses `connect`. They promise less than the classes do, so most texts differ.
"""

from __future__ import annotations

import builtins
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    Unpack,
    cast,
    overload,
    runtime_checkable,
)

from coherer import limits
from coherer._client.connecting import CommonKeywords
from coherer._client.engine.options import parse_url, url_of
from coherer._client.engine.sender import Outcome, SendReport
from coherer._views import AnyMessage
from coherer.admin import Broker, Group, Partition, Topic, TopicSettings
from coherer.message import Message, Receipt

# pyarrow is an extra, and a program loads the clients that it uses: one protocol, 0.1 s less.
if TYPE_CHECKING:
    import pyarrow as pa

    from coherer import rocketmq, tubemq

Topics: TypeAlias = str | Iterable[str] | Mapping[str, Iterable[str]]
"""One topic, several topics, or topics with the tags to receive of each."""

Start: TypeAlias = Literal["latest", "earliest", "always-latest"]
"""Where a group begins that has no offset yet; with `"always-latest"`, every group."""


class ConnectKeywords(CommonKeywords, total=False):
    """The keywords of `connect`: those of both protocols, then TubeMQ's, then RocketMQ's."""

    admin: str | None
    idle_ms: int
    on_disk: bool
    token: str | None
    route_ms: int
    namespace: str
    instance: str | None
    unit: str
    vip: bool


class TopicAdmin(Protocol):
    """The topics of a cluster: `Admin.topics`."""

    async def list(self, *names: str, system: bool = False) -> builtins.list[Topic]:
        """List topics in order of their names; with names, only those.

        Args:
            names: names of topics; without names, all topics.
            system: include topics that are not the users' own, such as dead letters.
        """
        ...

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the topics, sorted: one request, however many there are."""
        ...

    async def create(
        self, name: str, partitions: int, *, exist_ok: bool = False, wait_ms: int = 0
    ) -> None:
        """Create a topic.

        Args:
            name: the name of the topic.
            partitions: the number of partitions or queues on each broker.
            exist_ok: do not raise if the topic exists.
            wait_ms: how long to wait until the topic is usable.

        Raises:
            UsageError: an argument is invalid.
            RefusedError: the topic exists, or its name is refused.
            RequestTimeoutError: the topic was created, but is not usable yet.
        """
        ...

    async def wait_usable(self, name: str, *, timeout_ms: int) -> Topic:
        """Wait until a topic can be written and read.

        Raises:
            RequestTimeoutError: it is not usable within `timeout_ms`.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a topic and its messages.

        Raises:
            RefusedError: the topic does not exist.
        """
        ...

    async def partitions(self, topic: str) -> builtins.list[Partition]:
        """List the partitions or queues of a topic.

        Raises:
            RefusedError: the topic does not exist.
        """
        ...

    async def settings(self, topic: str) -> dict[str, TopicSettings]:
        """The settings of a topic, by broker.

        Raises:
            RefusedError: the topic does not exist.
        """
        ...

    async def groups(self, topic: str) -> builtins.list[str]:
        """The groups that consume a topic, or have offsets in it."""
        ...


class GroupAdmin(Protocol):
    """The consumer groups of a cluster: `Admin.groups`."""

    async def list(self, *names: str, system: bool = False) -> builtins.list[Group]:
        """List consumer groups in order of their names; with names, only those.

        Args:
            names: names of groups; without names, all groups.
            system: include RocketMQ's own groups.
        """
        ...

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the consumer groups, sorted."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a group's offsets in all topics.

        Raises:
            RefusedError: the group does not exist.
        """
        ...

    async def unread_ages(self, group: str, *topics: str) -> dict[str, int]:
        """The ages of the oldest messages that a group has not acknowledged, in ms.

        Returns:
            By the key of the partition, `broker:topic:partition`.
        """
        ...


class BrokerAdmin(Protocol):
    """The brokers of a cluster: `Admin.brokers`."""

    async def list(self) -> builtins.list[Broker]:
        """List the brokers in order of their names."""
        ...


class Admin(Protocol):
    """Administration of a cluster. Made by `Client.admin`.

    Methods raise `UnavailableError` when no server answers, and `RefusedError` when one refuses.
    """

    @property
    def topics(self) -> TopicAdmin:
        """The topics."""
        ...

    @property
    def groups(self) -> GroupAdmin:
        """The consumer groups, their members and offsets."""
        ...

    @property
    def brokers(self) -> BrokerAdmin:
        """The brokers."""
        ...


class _Block(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Producer(_Block, Protocol):
    """Sends messages. Made by `Client.producer`; use it with `async with`."""

    @property
    def topics(self) -> frozenset[str]:
        """The published topics."""
        ...

    @property
    def in_flight(self) -> int:
        """How many messages have no receipt yet."""
        ...

    @property
    def window(self) -> int:
        """How many messages may be in flight."""
        ...

    async def start(self) -> None:
        """Connect and publish the first topics.

        Raises:
            UnavailableError: no server could be reached in time.
            RefusedError: a server refused the producer or a topic.
        """
        ...

    async def publish(self, *topics: str) -> None:
        """Publish topics; returns when messages can be sent to them.

        Raises:
            RefusedError: a topic has no writable partition, or does not exist.
            UnavailableError: no server could be reached in time.
        """
        ...

    async def send(self, message: Message) -> Receipt:
        """Send one message and wait for its receipt.

        Raises:
            UsageError: the message is invalid.
            RefusedError: the broker refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        ...

    @overload
    def submit(self, message: Message) -> Awaitable[Receipt]: ...

    @overload
    def submit(self, message: Message, *, callback: Callable[[Outcome], object]) -> None: ...

    def submit(
        self, message: Message, *, callback: Callable[[Outcome], object] | None = None
    ) -> Awaitable[Receipt] | None:
        """Send one message without waiting for its receipt.

        Args:
            message: the message; its topic must be published.
            callback: called with the receipt or the error, instead of the future.

        Returns:
            A future of the receipt; None with a callback.

        Raises:
            WindowFullError: the window is full; call `await producer.ready()` first.
            UsageError: the message is invalid.
        """
        ...

    async def send_many(self, messages: Iterable[Message], *, receipts: bool = False) -> SendReport:
        """Send many messages, the fastest way.

        Args:
            messages: taken one by one while the window has room.
            receipts: keep the receipts in the report.

        Returns:
            The report, when every message has been stored or has failed. Failures that the program
            does not look at are raised as `SendManyError` at the end of the `async with` block.
        """
        ...

    async def ready(self) -> None:
        """Wait until the window has room."""
        ...

    async def flush(self) -> None:
        """Wait until every message in flight has its receipt or its error."""
        ...

    async def close(self) -> None:
        """Wait for messages in flight, then close. Further calls do nothing."""
        ...


class Batch(Protocol):
    """Messages of one partition or queue, in order."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def broker(self) -> str:
        """The broker's id (TubeMQ) or name (RocketMQ)."""
        ...

    @property
    def partition(self) -> int:
        """The number of the partition or queue."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[AnyMessage]: ...

    def bodies(self) -> list[bytes]:
        """The body of each message."""
        ...

    def offsets(self) -> Sequence[int]:
        """The offset of each message; empty where offsets do not count messages."""
        ...

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as Arrow columns, without a Python object for each message."""
        ...

    def ack(self) -> Awaitable[None]:
        """Acknowledge the batch: its messages are not delivered again.

        It only makes a mark: `await` is optional.
        """
        ...

    async def retry(self, *, later: timedelta | None = None) -> None:
        """Have the messages that are not acknowledged delivered again.

        It asks a server: `await` it.

        Args:
            later: after how much time; None as soon as the protocol can.
        """
        ...


class Consumer(_Block, Protocol):
    """Receives messages as a member of a group. Made by `Client.consumer`; use `async with`."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def assignment(self) -> Collection[object]:
        """The assigned partitions (TubeMQ) or queues (RocketMQ)."""
        ...

    async def start(self) -> None:
        """Join the group.

        Raises:
            UnavailableError: no server could be reached in time.
            RefusedError: a server refused the consumer.
        """
        ...

    async def wait_assigned(self, timeout_ms: int | None = None) -> Collection[object]:
        """Wait until at least one partition or queue is assigned; returns the assignment.

        Raises:
            RequestTimeoutError: none was assigned within `timeout_ms`.
        """
        ...

    async def receive(self, timeout_ms: int | None = None) -> Batch | None:
        """Receive the next batch.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Returns:
            A batch; None when the time is up.

        Raises:
            ClosedError: the consumer was closed.
        """
        ...

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches; each is acknowledged when the loop asks for the next.

        A batch that a loop leaves early, by `break` or an exception, is received again by the next
        loop.
        """
        ...

    def __aiter__(self) -> AsyncIterator[AnyMessage]: ...

    async def run(
        self, handler: Callable[[Batch], Awaitable[None] | None], *, workers: int = 1
    ) -> None:
        """Pass every batch to `handler`, until the consumer is closed or SIGTERM arrives.

        Args:
            handler: called with a batch; a plain function runs in a thread. The batch is
                acknowledged when it returns, and delivered again when it raises.
            workers: how many batches are handled at a time.
        """
        ...

    async def commit(self) -> Collection[object]:
        """Wait until the servers know all acknowledgements; returns the committed partitions."""
        ...

    def pause(self) -> None:
        """Fetch and deliver nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Undo `pause`."""
        ...

    async def close(self) -> None:
        """Leave the group. Messages that are not acknowledged are delivered again."""
        ...


@runtime_checkable
class Client(_Block, Protocol):
    """A client of a cluster. Made by `connect`; use it with `async with`.

    The clients of `coherer.tubemq` and `coherer.rocketmq` have everything that the protocol offers,
    typed exactly.
    """

    def producer(
        self,
        *topics: str,
        window: int = 5_000,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        timeout_ms: int | None = None,
    ) -> Producer:
        """Make a producer.

        Args:
            topics: published at the start; others are published by their first message.
            window: how many messages may be in flight.
            window_bytes: how many bytes may be in flight.
            timeout_ms: how long a message waits for its receipt; the client's timeout when None.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        ...

    def consumer(
        self,
        group: str,
        topics: Topics,
        *,
        start: Start = "latest",
        prefetch_bytes: int = 64 * 1024 * 1024,
    ) -> Consumer:
        """Make a consumer.

        Args:
            group: the consumer group; its members share the partitions of its topics.
            topics: a topic, several, or a mapping of topics to tags.
            start: where a group begins that has no offset yet: at the end, or at the oldest
                message. `"always-latest"` begins at the end even if the group has an offset.
            prefetch_bytes: how much may be fetched ahead of the application.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        ...

    async def offsets(
        self, topic: str
    ) -> Mapping[rocketmq.Queue, tuple[int, int]] | Mapping[tubemq.Partition, tuple[int, int]]:
        """The offsets that the brokers hold of a topic.

        Returns:
            By partition, the oldest offset and the next one to be written.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        ...

    def admin(self) -> Admin:
        """The administration of the cluster."""
        ...

    async def close(self) -> None:
        """Close everything that the client made, and its connections."""
        ...


def connect(url: str | None = None, **options: Unpack[ConnectKeywords]) -> Client:
    """Make a client of a cluster. It connects when it is first used.

    Args:
        url: `tubemq://host:port,host:port`, the masters, or `rocketmq://host:port;host:port`, the
            name servers; `tubemqs://` and `rocketmqs://` for TLS. None takes `COHERER_URL` from the
            environment, or else the name servers in `NAMESRV_ADDR`.
        options: see `coherer.tubemq.ClientOptions` and `coherer.rocketmq.ClientOptions`.

    Raises:
        UsageError: the URL is invalid, or an option is unknown to the protocol or out of range.

    >>> connect("tubemq://127.0.0.1:8715", timeout_ms=5_000)
    <Client of tubemq://127.0.0.1:8715>
    >>> connect("rocketmq://127.0.0.1:9876", namespace="team")
    <Client of rocketmq://127.0.0.1:9876>
    """
    url = url_of(url)
    if parse_url(url).scheme.startswith("rocketmq"):
        from coherer import rocketmq

        return rocketmq.connect(url, **cast("rocketmq.ConnectKeywords", options))
    from coherer import tubemq

    return tubemq.connect(url, **cast("tubemq.ConnectKeywords", options))
