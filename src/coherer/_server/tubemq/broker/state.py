"""The state of a broker: options, tables, access control, and its readers.

See docs/protocol/tubemq.md, sections 1.5, 6.3, 6.4 and 8.7.

A reader (`PartitionReader`) is a consumer's lease of one partition. `BrokerState` is shared by the
handlers of sends (`sends`), gets (`gets`) and consumers (`consumers`).
"""

from __future__ import annotations

from collections import deque

from google.protobuf.message import Message

from coherer import limits
from coherer._net import Connection
from coherer._rules.common.offsets import Position
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._rules.tubemq.leases import Lease, LeaseTable
from coherer._server.core.core import Core
from coherer._server.options.tubemq import BrokerOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.session import Request, ServerSession

CLOSED, REMOVING, REMOVED = 1, 2, 3
"""Status of a topic: closed for clients; its files are being removed; they are removed."""

_TOKENS_KEPT = 6
_TOKENS_KEPT_STRICT = 3
"""The tokens of this period and the next one, which the master sends, and that of the last one, for
clients that have not sent a heartbeat to the master since."""
_MINUTE_MS = 60_000
_SLICE_MS = 5_000
_SLICES = _MINUTE_MS // _SLICE_MS


class AccessControl:
    """The checks of visit tokens and authorizations (sections 6.3 and 6.4).

    A client gets the visit token from the master. A broker learns each token before any client
    does, and keeps the last six. A client without one has not registered at the master. The check
    is suspended while the broker may have missed tokens: without contact to a master, and for a
    while after its registration. It is never suspended in a cluster with accounts, where the token
    is the only proof that a client has authenticated. There the broker keeps three tokens, so that
    it does not serve the clients of a removed account for long. Gets and commits have no field for
    a token: there they must come from the address of the last request with one, soon after it.

    Attributes:
        in_contact: whether the last call to a master succeeded.
        registered_ms: when the broker last registered.
    """

    def __init__(self, grace_ms: int) -> None:
        self.in_contact = False
        self.registered_ms = 0
        self._grace_ms = grace_ms
        self._tokens: deque[int] = deque(maxlen=_TOKENS_KEPT)
        self._check_token = False
        self._check_producers = False
        self._check_consumers = False
        self._strict = False

    @property
    def open(self) -> bool:
        """Whether nothing is checked."""
        return not (self._check_token or self._check_producers or self._check_consumers)

    @property
    def requires_accounts(self) -> bool:
        """Whether the cluster has accounts: a token proves that a client has one."""
        return self._strict

    def switch(self, switches: pb.EnableBrokerFunInfo) -> None:
        """Set the checks from the master's answer to the registration."""
        self._check_token = switches.enableVisitTokenCheck
        self._check_producers = switches.enableProduceAuthenticate
        self._check_consumers = switches.enableConsumeAuthenticate
        self._strict = switches.accountsRequired
        kept = _TOKENS_KEPT_STRICT if self._strict else _TOKENS_KEPT
        self._tokens = deque(self._tokens, maxlen=kept)

    def is_final(self, now_ms: int) -> bool:
        """Whether the result of a check stays the same until the next `switch` or `add_tokens`."""
        return not self._check_token or not self._suspended(now_ms)

    def add_tokens(self, tokens: str) -> bool:
        """Add the master's tokens, numbers separated by commas. Returns whether one is new."""
        new = False
        for word in tokens.split(","):
            if word.strip().lstrip("-").isdecimal() and int(word) not in self._tokens:
                self._tokens.append(int(word))
                new = True
        return new

    def denial(self, given: pb.AuthorizedInfo, *, produce: bool, now_ms: int) -> str:
        """Why a request is refused with 415; "" if it is allowed.

        >>> access = AccessControl(grace_ms=120_000)
        >>> access.switch(pb.EnableBrokerFunInfo(enableProduceAuthenticate=True))
        >>> access.denial(pb.AuthorizedInfo(visitAuthorizedToken=1), produce=True, now_ms=0)
        'authAuthorizedToken is blank; this cluster requires it.'
        """
        token = given.visitAuthorizedToken
        if self._check_token and token not in self._tokens and not self._suspended(now_ms):
            return f"The visit token {token} is not valid."
        checked = self._check_producers if produce else self._check_consumers
        if checked and not given.authAuthorizedToken.strip():
            return "authAuthorizedToken is blank; this cluster requires it."
        return ""

    def _suspended(self, now_ms: int) -> bool:
        if self._strict:
            return False
        return not self.in_contact or now_ms - self.registered_ms < self._grace_ms


class ReplyChannel:
    """A client's connection, and the session that encodes answers for it."""

    __slots__ = ("connection", "session")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session = ServerSession()

    def reply(self, request: Request, message: Message) -> None:
        """Send an answer, unless the client does not wait for one (section 1.5)."""
        if request.timeout_ms > 0:
            self.connection.write(self.session.reply(request, message))


class ReadThrottle:
    """Limits how fast one reader may read, by the flow rules of the cluster (section 8.7).

    It counts the bytes read in the current minute and in the current slice of five seconds.

    Attributes:
        read_to: the offset in the commit log up to which it has read.

    >>> rules = FlowRules.parse(
    ...     '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":12,'
    ...     '"freqInMs":500}]}]'
    ... )
    >>> throttle = ReadThrottle()
    >>> throttle.pause_ms(rules, backlog_bytes=1 << 30, now_ms=0)
    0
    >>> throttle.count(1 << 20)
    >>> [throttle.pause_ms(rules, 1 << 30, now_ms) for now_ms in (4_999, 5_000)]
    [500, 0]
    """

    __slots__ = (
        "_limit_bytes",
        "_minute_bytes",
        "_minute_ms",
        "_pause_ms",
        "_rules",
        "_slice_bytes",
        "_slice_ms",
        "read_to",
    )

    def __init__(self) -> None:
        self.read_to = 0
        self._rules: FlowRules | None = None
        self._limit_bytes: int | None = None
        self._pause_ms = 0
        self._minute_ms = self._slice_ms = 0
        self._minute_bytes = self._slice_bytes = 0

    def pause_ms(
        self, rules: FlowRules, backlog_bytes: int, now_ms: int, wall_ms: int | None = None
    ) -> int:
        """How long to wait before the next read; 0 if it is permitted now.

        Args:
            backlog_bytes: the bytes that are left to read.
            now_ms: the time by a monotonic clock.
            wall_ms: the time of day, which selects the rule; defaults to `now_ms`.
        """
        if rules is not self._rules or now_ms - self._minute_ms >= _MINUTE_MS:
            limit = rules.data_limit(backlog_bytes, now_ms if wall_ms is None else wall_ms)
            self._rules = rules
            self._limit_bytes = None if limit is None else limit.limit_bytes
            self._pause_ms = 0 if limit is None else limit.pause_ms
            self._minute_ms, self._minute_bytes = now_ms, 0
            self._slice_ms, self._slice_bytes = now_ms, 0
        elif now_ms - self._slice_ms >= _SLICE_MS:
            self._slice_ms, self._slice_bytes = now_ms, 0
        limit_bytes = self._limit_bytes
        if limit_bytes is None or (
            self._minute_bytes < limit_bytes and self._slice_bytes < limit_bytes // _SLICES
        ):
            return 0
        return self._pause_ms

    @property
    def limit_bytes(self) -> int | None:
        """The limit of bytes per minute; None without a limit."""
        return self._limit_bytes

    @property
    def penalty_ms(self) -> int:
        """How long a reader waits after it has reached the limit."""
        return self._pause_ms

    @property
    def counted_bytes(self) -> tuple[int, int]:
        """The bytes read in the current slice and minute; counted only while there are rules."""
        return self._slice_bytes, self._minute_bytes

    def unit_bytes(self, transfer_bytes: int) -> int:
        """The maximum bytes of one read."""
        if self._limit_bytes is None:
            return transfer_bytes
        return min(transfer_bytes, self._limit_bytes // _SLICES)

    def count(self, read_bytes: int) -> None:
        """Count bytes that were read."""
        self._minute_bytes += read_bytes
        self._slice_bytes += read_bytes


class Consumer:
    """A connected consumer, to notify it of partitions with messages (see `gets`).

    Attributes:
        ready: the number of its partitions with messages that it has not asked for.
        notification: the number of the latest notification.
        leases: the number of its leases.
    """

    __slots__ = ("leases", "notification", "ready")

    def __init__(self) -> None:
        self.ready = 0
        self.notification = 0
        self.leases = 0


class PartitionReader(Lease):
    """A consumer's lease of a partition, with the state of its reads.

    Attributes:
        position: the offset of the group.
        tags: the hash codes of its filters; None without filters.
        filters: the words of its filters.
        priority: the read priority of the consumer, -2 if it has none; shown, but not used.
        fresh: nothing has been read under this lease yet.
        consumer: the consumer that holds it.
        since_ms: when it took the partition, by the time of day.
        peer: the address that it came from.
        proven_ms: when it has shown its token last, by the monotonic clock.
        ready: messages have arrived that it has not asked for.
        notified: the notification that a get of this reader has answered last.
        throttle: its read limits; used only while there are flow rules.
    """

    __slots__ = (
        "consumer",
        "filters",
        "fresh",
        "notified",
        "peer",
        "position",
        "priority",
        "proven_ms",
        "ready",
        "since_ms",
        "tags",
        "throttle",
    )

    def __init__(
        self,
        holder: str,
        group: str,
        topic: str,
        partition: int,
        position: Position,
        tags: frozenset[int] | None,
        filters: tuple[str, ...],
        priority: int,
        consumer: Consumer,
        *,
        since_ms: int = 0,
        peer: str = "",
        proven_ms: int = 0,
    ) -> None:
        super().__init__(holder, group, topic, partition)
        self.position = position
        self.tags = tags
        self.filters = filters
        self.priority = priority
        self.fresh = True
        self.consumer = consumer
        self.ready = False
        self.notified = 0
        self.throttle = ReadThrottle()
        self.since_ms = since_ms
        self.peer = peer
        self.proven_ms = proven_ms


class BrokerState:
    """The state that the handlers of a broker share.

    Attributes:
        core: the state that both protocols share.
        version: grows with every change of topics or rights, and invalidates caches of them.
        serving: requests are served.
        stop_read: the master has stopped reads.
        stop_write: the master has stopped sends.
        message_bytes_max: the cluster's limit for a message.
        flow: the flow rules of the cluster.
        readers_timed_out: the leases that have expired since `counts_since_ms`, a time of day.
    """

    def __init__(self, options: BrokerOptions, core: Core) -> None:
        self.options = options
        self.core = core
        self.store = core.store
        self.now_ms = core.lease_ms
        self.wall_ms = core.wall_ms
        self.topics = TubeMqTopics(core.topics)
        self.offsets = core.offsets
        self.version = 0
        self.serving = False
        self.stop_read = False
        self.stop_write = False
        self.message_bytes_max = limits.MESSAGE_BYTES_DEFAULT
        self.flow = FlowRules()
        self.access = AccessControl(options.token_grace_ms)
        self.leases = LeaseTable[PartitionReader](options.lease_timeout_ms)
        self.first_id = (options.broker_id & 0x7FFF) << 48
        self.readers_timed_out, self.counts_since_ms = 0, core.wall_ms()
        core.on_change(self._next_version)

    @property
    def address(self) -> str:
        """Id and address of the broker, in the master's form."""
        options = self.options
        return f"{options.broker_id}:{options.host}:{options.port}"

    def changed(self) -> None:
        """Invalidate caches after a change of topics or rights."""
        self.core.changed()

    def payload_bytes_max(self, topic: Topic) -> int:
        """The maximum payload of a send to this topic."""
        return (topic.message_bytes_max or self.message_bytes_max) + limits.MESSAGE_SLACK_BYTES

    def _next_version(self) -> None:
        self.version += 1
