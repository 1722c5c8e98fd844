"""kombu's transport and channel over RocketMQ; `link` does the work.

What kombu's virtual transport emulates is used as it is: the declarations of exchanges, prefetch
counts, `Message`. Everything that other processes need to know is in RocketMQ, nothing in this
process: an exchange is a topic that its bound queues read, so no publisher has to know them.
"""

# The classes of kombu have no types, see `untyped`:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from coherer import rocketmq
from coherer._common.version import __version__
from coherer.errors import ClosedError, CohererError, RefusedError, UnavailableError, UsageError
from coherer.integrations._names import topic_name
from coherer.integrations.kombu import names, payload
from coherer.integrations.kombu.inbox import Delivery
from coherer.integrations.kombu.link import Link
from coherer.integrations.kombu.options import TransportOptions
from coherer.integrations.kombu.queues import Binding, QueueSpec
from coherer.integrations.kombu.untyped import (
    ChannelError,
    DeclareOk,
    VirtualChannel,
    VirtualQoS,
    VirtualTransport,
    queue_arguments,
)
from coherer.rocketmq import Message, TlsOptions

PORT_DEFAULT: Final = 9876

AT_ONCE: Final = 64
"""How many messages are handed out before other events of the program get their turn."""

STEPS_DEFAULT: Final = (0, 3, 6, 9)
"""The priorities that have topics of their own, for queues with `x-max-priority`."""


class QoS(VirtualQoS):  # type: ignore[misc]
    """The messages that kombu has and has not settled, and how many it may have."""

    channel: Channel
    restore_at_shutdown = False

    def ack(self, delivery_tag: Any) -> None:
        """Acknowledge a message."""
        self.channel.settle(delivery_tag, Link.ack)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Put a message back at the end of its queue, or make it a dead letter."""
        self.channel.settle(delivery_tag, Link.requeue if requeue else Link.reject)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Deliver the messages again that are not settled."""
        self._flush()
        self._delivered.clear()
        self.channel.give_back()
        return []


class Channel(VirtualChannel):  # type: ignore[misc]
    """A channel of kombu over RocketMQ."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    body_encoding = None
    connection: RocketMQ

    def __init__(self, connection: RocketMQ, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._unsettled: dict[int, Delivery] = {}
        self._no_ack: set[str] = set()

    @property
    def link(self) -> Link:
        """The connection to the cluster."""
        return self.connection.link

    # -- declaring

    def prepare_queue_arguments(
        self, arguments: Mapping[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Express kombu's options of a queue as RabbitMQ's arguments, which its users know."""
        return queue_arguments(dict(arguments or {}), **kwargs)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Declare a queue; with `passive`, only check that it exists.

        Raises:
            ChannelError: `passive`, and it does not exist.
        """
        queue = queue or f"amq.gen-{self._next_delivery_tag()}"
        if passive:
            if not self.connection.exists(queue):
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404"
                )
        elif queue not in self.connection.queues:
            transient = exclusive or auto_delete
            self.connection.declare(
                queue, arguments or {}, transient=transient, exclusive=exclusive
            )
        return DeclareOk(queue, self._size(queue) if passive else 0, 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange: it receives what is published from now on."""
        exchange = exchange or "amq.direct"
        self.state.exchanges.setdefault(
            exchange,
            {"type": "direct", "durable": True, "auto_delete": False, "arguments": {}, "table": []},
        )
        super().queue_bind(queue, exchange, routing_key or "", arguments, **kwargs)
        self.connection.bind(queue, self._binding(exchange, routing_key or "", queue))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Undo `queue_bind`, for this connection."""
        exchange = exchange or "amq.direct"
        super().queue_unbind(queue, exchange, routing_key or "", arguments, **kwargs)
        self.connection.unbind(queue, self._binding(exchange, routing_key or "", queue))

    def queue_delete(self, queue: str, *, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue with its messages, its topics and its group."""
        if not (if_empty and self._size(queue)):
            self.state.queue_bindings_delete(queue)
            self.connection.delete(queue)

    def _binding(self, exchange: str, routing_key: str, queue: str) -> Binding:
        kind = self.typeof(exchange)
        _, pattern, _ = kind.prepare_bind(queue, exchange, routing_key, None)
        return Binding(self.connection.topic(exchange), kind.type, routing_key, pattern)

    def _queue_bind(self, *_: Any) -> None:
        """Nothing: `queue_bind` has told the connection."""

    # -- publishing

    def basic_publish(
        self, message: payload.Payload, exchange: str, routing_key: str, **_: Any
    ) -> None:
        """Publish a message, and wait until it is stored."""
        self._inplace_augment_message(message, exchange, routing_key)
        message["properties"].pop("delivery_tag", None)  # each delivery has one
        connection, properties = self.connection, message["properties"]
        name, tag = exchange, names.routing_tag(routing_key or "")
        steps: Sequence[int] = ()
        if not exchange:
            name, tag = routing_key, names.QUEUE_TAG
            steps = connection.spec(name).steps
        step = names.priority_step(payload.priority_of(message), steps)
        topic = names.priority_topic(connection.topic(name), step)
        known = properties.get("correlation_id")
        keys = (known,) if isinstance(known, str) and known and " " not in known else ()
        self.link.publish(Message(topic, payload.encode(message), tag=tag, keys=keys), message)

    # -- consuming

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Begin to receive a queue's messages."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        self.connection.consumed(queue)
        self.link.consume(self.connection.spec(queue))
        self.link.signal.set()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop receiving."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None:
            self._no_ack.discard(queue)
            self.link.cancel(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message, or None if the queue has no message for this process."""
        delivery = self.link.get(self.connection.spec(queue))
        if delivery is None:
            return None
        message = self.Message(self._handed_out(delivery, no_ack=no_ack), channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many unsettled messages the channel may have; 0 for any number."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.link.signal.set()

    def deliver(self, limit: int, last: Collection[str] = ()) -> int:
        """Pass messages that have arrived to their consumers; returns how many there were.

        Args:
            limit: the maximum number.
            last: after a message of one of these queues, no more follow.
        """
        done = 0
        queues = list(self._active_queues)
        while queues and done < limit:
            for queue in list(queues):
                delivery = self.link.pop(queue) if self.qos.can_consume() else None
                if delivery is None:
                    queues.remove(queue)
                    continue
                raw = self._handed_out(delivery, no_ack=queue in self._no_ack)
                self.connection.hand_over(raw, queue)
                done += 1
                if queue in last:
                    return done
        if done and self._active_queues:  # fair to the queues behind
            self._active_queues.append(self._active_queues.pop(0))
        return done

    def settle(self, delivery_tag: int, how: Callable[[Link, Delivery], None]) -> None:
        """Acknowledge, requeue or reject a message; no effect if that was done before.

        If a server refuses it, or does not answer, the message is still not settled.
        """
        delivery = self._unsettled.pop(delivery_tag, None)
        if delivery is not None:
            link = self.link
            try:
                how(link, delivery)
            except BaseException:
                self._unsettled[delivery_tag] = delivery
                raise
            if link.waiting:
                link.signal.set()

    def give_back(self) -> None:
        """Deliver the messages again that are not settled."""
        unsettled, self._unsettled = self._unsettled, {}
        for delivery in unsettled.values():
            self.link.give_back(delivery)

    def close(self) -> None:
        """Close the channel: what it has not settled is delivered again."""
        if not self.closed and self.connection is not None:
            self.give_back()
        super().close()

    def _handed_out(self, delivery: Delivery, *, no_ack: bool) -> payload.Payload:
        tag = self.connection.next_tag()
        delivery.payload["properties"]["delivery_tag"] = tag
        if no_ack:
            self.link.ack(delivery)
        else:
            self._unsettled[tag] = delivery
        return delivery.payload

    # -- the hooks of virtual channels

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.link.exists(self.connection.topic(queue))

    def _size(self, queue: str) -> int:
        return self.link.size(self.connection.spec(queue))

    def _purge(self, queue: str) -> int:
        return self.link.purge(self.connection.spec(queue))


class RocketMQ(VirtualTransport):  # type: ignore[misc]
    """kombu's transport over RocketMQ 4.9, and over Coherer's nodes.

    The URL is `rocketmq://[user:password@]host[:port][/namespace]`; `rocketmqs://` is TLS. Further
    name servers are further URLs, separated by `;`.

    `transport_options` are `TransportOptions`.
    """

    Channel = Channel
    driver_type = "rocketmq"
    driver_name = "coherer"
    default_port = PORT_DEFAULT
    polling_interval = None
    implements = VirtualTransport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
        heartbeats=False,
    )
    connection_errors = (
        *VirtualTransport.connection_errors,
        UnavailableError,
        ClosedError,
        OSError,
    )
    channel_errors = (*VirtualTransport.channel_errors, RefusedError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = dict(client.transport_options or {})
        own = options.keys() & {*TransportOptions.__struct_fields__}
        try:
            self._options = msgspec.convert({name: options[name] for name in own}, TransportOptions)
        except msgspec.ValidationError as error:
            raise UsageError(f"transport_options: {error}.") from None
        self._steps = tuple(sorted(self._options.priority_steps))
        known = {*rocketmq.ClientOptions.__struct_fields__} - {"addresses"}
        self._keywords = {name: options[name] for name in options.keys() & known}
        self._link: Link | None = None
        self._tags = count(1)
        self.queues: dict[str, QueueSpec] = {}
        self._transient: set[str] = set()
        self._exclusive: set[str] = set()
        self._consumed: set[str] = set()  # transient, and it may have topics

    # -- the connection

    @property
    def link(self) -> Link:
        """The connection to the cluster.

        Raises:
            ClosedError: the connection is closed.
        """
        if self._link is None:
            raise ClosedError("The connection is closed.")
        return self._link

    def establish_connection(self) -> RocketMQ:
        """Connect.

        Raises:
            UnavailableError: the name server does not answer.
        """
        client = self.client
        host, port = client.hostname or "localhost", client.port or PORT_DEFAULT
        secure = client.ssl or (client.transport_cls or "") == "rocketmqs"
        keywords = dict(self._keywords)
        keywords.setdefault("connect_timeout_ms", int((client.connect_timeout or 5) * 1000))
        keywords.setdefault("timeout_ms", 10_000)
        if client.userid:
            keywords |= {"user": client.userid, "password": client.password}
        if client.virtual_host and client.virtual_host != "/":
            keywords.setdefault("namespace", client.virtual_host.strip("/"))
        if secure:
            keywords.setdefault("tls", _tls(client.ssl))
        address = host if ":" in host else f"{host}:{port}"
        link = Link(
            f"rocketmq://{address}", cast("rocketmq.ConnectKeywords", keywords), self._options
        )
        link.open()
        self._link = link
        # kombu's users need not close connections.
        weakref.finalize(self, link.abandon).atexit = False
        self.queues.clear()
        self._transient.clear()
        self._exclusive.clear()
        self._consumed.clear()
        self.state.clear()
        self._avail_channels.append(self.create_channel(self))
        return self

    def close_connection(self, connection: RocketMQ) -> None:
        """Leave all groups and disconnect. In a forked child, only forget the connection."""
        link, self._link = self._link, None
        if link is None:
            return
        self._link = link
        try:
            if link.alive:
                self._delete_transient(link)
            super().close_connection(connection)
        finally:
            self._link = None
            link.close()

    def _delete_transient(self, link: Link) -> None:
        """Delete the queues that end with this connection, or with their last consumer."""
        for queue in sorted(self._exclusive | self._consumed):
            spec = self.spec(queue)
            if spec.bindings and queue not in self._consumed:
                continue  # it has lived in this process only
            with suppress(CohererError):
                link.delete(spec, topics=True, shared=queue not in self._exclusive)

    def _collect(self, connection: RocketMQ) -> None:
        """Forget the connection after a fork; kombu calls this in the child."""
        self.close_connection(connection)

    def verify_connection(self, _: RocketMQ) -> bool:
        """Whether the connection can be used in this process."""
        return self._link is not None and self._link.alive

    def driver_version(self) -> str:
        """Coherer's version."""
        return __version__

    # -- names and declarations

    def topic(self, name: str) -> str:
        """The topic of a queue or exchange."""
        return topic_name(name, self._options.name_prefix)

    def spec(self, queue: str) -> QueueSpec:
        """A queue as it was declared; one that was not is taken to be durable."""
        known = self.queues.get(queue)
        return QueueSpec(queue, self.topic(queue), self._steps) if known is None else known

    def declare(
        self, queue: str, arguments: Mapping[str, Any], *, transient: bool, exclusive: bool
    ) -> None:
        """Record a queue, and create the topics of a durable one."""
        steps = self._steps or (STEPS_DEFAULT if arguments.get("x-max-priority") else ())
        ttl_ms = arguments.get("x-message-ttl")
        spec = QueueSpec(queue, self.topic(queue), steps, None if ttl_ms is None else int(ttl_ms))
        if transient:
            self._transient.add(queue)
            if exclusive:
                self._exclusive.add(queue)
        else:
            self.link.declare(spec.own_topics)
        self.queues[queue] = spec

    def exists(self, queue: str) -> bool:
        """Whether a queue exists; one that another process has deleted can be declared again."""
        if queue in self._transient or self.link.exists(self.topic(queue)):
            return True
        deleted = self.queues.pop(queue, None)
        if deleted is not None:
            self.link.forget(deleted.own_topics)
        return False

    def consumed(self, queue: str) -> None:
        """Remember that a queue has a consumer: an automatic one without bindings gets topics."""
        if queue in self._transient and not self.spec(queue).bindings:
            self._consumed.add(queue)

    def bind(self, queue: str, binding: Binding) -> None:
        """Bind a queue to an exchange."""
        spec = self.spec(queue)
        if binding in spec.bindings:
            return
        if queue in self._transient:
            self.link.listen(spec, binding)
        else:
            self.link.bind(spec, binding)
        self.queues[queue] = msgspec.structs.replace(spec, bindings=spec.bindings | {binding})

    def unbind(self, queue: str, binding: Binding) -> None:
        """Undo `bind`."""
        spec = self.spec(queue)
        self.queues[queue] = msgspec.structs.replace(spec, bindings=spec.bindings - {binding})

    def delete(self, queue: str) -> None:
        """Delete a queue. One that lives in this process only has no topic."""
        spec = self.spec(queue)
        local = queue in self._transient - self._consumed and bool(spec.bindings)
        self.link.delete(spec, topics=not local)
        for some in (self._transient, self._exclusive, self._consumed):
            some.discard(queue)
        self.queues.pop(queue, None)

    # -- events

    def next_tag(self) -> int:
        """A new delivery tag."""
        return next(self._tags)

    def hand_over(self, raw: payload.Payload, queue: str) -> None:
        """Pass a message to the consumer of its queue."""
        self._deliver(raw, queue)

    def drain_events(self, _: RocketMQ, timeout: float | None = None) -> None:
        """Deliver messages; wait for the first.

        Raises:
            TimeoutError: no message arrived in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        signal = self.link.signal
        # Whoever waits for replies to a broadcast counts calls: one for each reply.
        while not self._deliver_some(self._transient):
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not signal.wait(left_s) and left_s is not None and left_s <= 0:
                raise TimeoutError

    def register_with_event_loop(self, _: RocketMQ, loop: Any) -> None:
        """Deliver messages when the event loop sees that some have arrived."""
        signal = self.link.signal
        loop.add_reader(signal.fileno(), self._on_signal)
        signal.set()

    def unregister_from_event_loop(self, _: RocketMQ, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        if self._link is not None:
            loop.remove_reader(self._link.signal.fileno())

    def _on_signal(self) -> None:
        link = self._link
        if link is None:
            return
        link.signal.clear()
        if self._deliver_some() >= AT_ONCE:
            link.signal.set()

    def _deliver_some(self, last: Collection[str] = ()) -> int:
        done = 0
        for channel in list(self.channels):
            done += channel.deliver(AT_ONCE, last)
            if done and last:
                break
        return done


def _tls(given: Any) -> TlsOptions:
    """The TLS settings of kombu's option `ssl`: True, or a mapping under the names of `ssl`."""
    options: Mapping[str, Any] = {}
    if isinstance(given, Mapping):
        options = cast("Mapping[str, Any]", given)
    paths = {"trust": "ca_certs", "certificate": "certfile", "key": "keyfile"}
    files = {ours: options.get(name) or options.get(f"ssl_{name}") for ours, name in paths.items()}
    wanted = options.get("cert_reqs", options.get("ssl_cert_reqs"))
    found = {name: Path(str(value)) for name, value in files.items() if value}
    return msgspec.structs.replace(TlsOptions(verify=wanted != 0), **found)
