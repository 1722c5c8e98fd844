"""Faults on demand, and records of requests, of a node in a test.

A `Tap` stands between a connection of the node and the receiver of its bytes. It splits both
directions into frames, so it can record each request, refuse or delay it, or lose its answer. The
node knows nothing of this: it passes each maker of receivers to `Node(tap=...)`.

What is not a frame of the protocol, such as the replication of a slave, passes unchanged.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as PbMessage

from coherer._net import Connection, Receiver
from coherer._rules.rocketmq import clients as rocketmq_clients
from coherer._rules.tubemq.groups import ConsumerGroup
from coherer._server.node.node import Node
from coherer._server.rocketmq.remoting import Channel
from coherer._wire.rocketmq.bodies import ConsumerIds
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.session import Session
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Request as TubeRequest
from coherer._wire.tubemq.session import ServerSession
from coherer.errors import CohererError, ProtocolError, StoreError, UsageError
from coherer.testing.disk import FaultyFiles

KINDS: Final = {
    "send": (
        "SEND_MESSAGE",
        "SEND_MESSAGE_V2",
        "SEND_BATCH_MESSAGE",
        "SEND_HALF_BATCH",
        "sendMessageP2B",
    ),
    "receive": ("PULL_MESSAGE", "getMessagesC2B"),
    "commit": ("UPDATE_CONSUMER_OFFSET", "consumerCommitC2B"),
    "retry": ("CONSUMER_SEND_MSG_BACK",),
    "end_transaction": ("END_TRANSACTION", "END_HALF_BATCH"),
    "heartbeat": (
        "HEART_BEAT",
        "producerHeartbeatP2M",
        "consumerHeartbeatC2M",
        "consumerHeartbeatC2MV2",
        "consumerHeartbeatC2B",
    ),
    "register": (
        "producerRegisterP2M",
        "consumerRegisterC2M",
        "consumerRegisterC2MV2",
        "consumerRegisterC2B",
    ),
    "route": ("GET_ROUTEINFO_BY_TOPIC",),
}
"""Requests that mean the same in both protocols; others are selected by the protocol's names."""

_KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}
RECORDS_MAX: Final = 100_000
HELD_BYTES_MAX: Final = 16 << 20
"""What nobody has asked for yet is read once it is more than this."""

NEVER_MS: Final = 1 << 62
NOBODY: Final = "nobody"
"""The one member of a group whose members have lost their partitions: consumers ignore an empty
list."""

_NAMES: Final = {code.value: code.name for code in RequestCode}
_TUBE_HEAD: Final = struct.Struct(">Iii")
_LENGTH: Final = struct.Struct(">i")
_SEND_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_HALF_BATCH,
    }
)
_ABSENT: Final = {
    FieldDescriptor.CPPTYPE_STRING: "",
    FieldDescriptor.CPPTYPE_BOOL: False,
}

Protocol = Literal["tubemq", "rocketmq"]


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a node has received.

    Args:
        protocol: `tubemq` or `rocketmq`.
        code: its number in the protocol.
        name: its name in the protocol, such as `PULL_MESSAGE` or `getMessagesC2B`.
        topic: the topic that it names; empty if it names none or several.
        group: the group that it names, or empty.
        peer: the client's address.
    """

    protocol: Protocol
    code: int
    name: str
    topic: str = ""
    group: str = ""
    peer: str = ""

    @property
    def kind(self) -> str:
        """What both protocols call it, such as `send`; empty for other requests."""
        return _KIND_OF.get(self.name, "")


class Requests:
    """The requests that a node has received, the newest 100,000: `node.requests`.

    Records are added by the node's thread, so a test that compares them waits for an answer first.

    >>> requests = Requests()
    >>> requests.add(ReceivedRequest(protocol="rocketmq", code=10, name="SEND_MESSAGE", topic="t"))
    >>> requests.count("send"), requests.count("send", topic="other"), len(requests)
    (1, 0, 1)
    """

    def __init__(self) -> None:
        self._catch_up: Callable[[], object] = lambda: None
        self._all: deque[ReceivedRequest] = deque(maxlen=RECORDS_MAX)
        self._watchers: list[Callable[[ReceivedRequest], object]] = []

    def __len__(self) -> int:
        self._catch_up()
        return len(self._all)

    def __iter__(self) -> Iterator[ReceivedRequest]:
        self._catch_up()
        return iter(tuple(self._all))

    def __repr__(self) -> str:
        counts = Counter(one.name for one in self)
        return f"<Requests {', '.join(f'{name}: {n}' for name, n in counts.most_common())}>"

    def add(self, request: ReceivedRequest) -> None:
        """Add a record."""
        self._all.append(request)
        for arrived in self._watchers:
            arrived(request)

    def watch(self, arrived: Callable[[ReceivedRequest], object]) -> None:
        """Call a function with each request from now on, before it is carried out."""
        self._watchers.append(arrived)

    def clear(self) -> None:
        """Forget all records."""
        self._catch_up()
        self._all.clear()

    def of(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
    ) -> list[ReceivedRequest]:
        """The requests of a kind, selected as by `NodeFaults`."""
        return list(filter(_selector(request, topic, group, protocol), self))

    def count(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
    ) -> int:
        """How many requests of a kind there were."""
        return len(self.of(request, topic=topic, group=group, protocol=protocol))


class _Frame(msgspec.Struct):
    """A request on the wire."""

    data: bytes
    serial: int
    about: ReceivedRequest
    refused: Callable[[int, str], bytes | None]


class Fault:
    """A fault of a node, active inside a `with` block.

    Attributes:
        hits: how often it has struck.
    """

    hits: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the fault."""


class _RequestFault(Fault):
    def __init__(
        self,
        taps: Taps,
        matches: Callable[[ReceivedRequest], bool],
        strike: Callable[[Tap, _Frame], bytes | None],
        times: int | None,
    ) -> None:
        self._matches = matches
        self._taps, self._strike, self._times = taps, strike, times

    def __enter__(self) -> Self:
        self._taps.active = [*self._taps.active, self]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._taps.active = [one for one in self._taps.active if one is not self]

    def applies(self, frame: _Frame) -> bool:
        """Whether it strikes a request."""
        return (self._times is None or self.hits < self._times) and self._matches(frame.about)

    def strike(self, tap: Tap, frame: _Frame) -> bytes | None:
        """Apply it to a request; returns what the node is to receive now, None for nothing."""
        self.hits += 1
        return self._strike(tap, frame)


class NodeFaults:
    """The faults of an embedded or simulated node: `node.faults`.

    Each fault is active inside a `with` block. Requests are selected by `request`: a kind of both
    protocols (`send`, `receive`, `commit`, `retry`, `end_transaction`, `heartbeat`, `register`,
    `route`), a protocol's own name for them, or its number; by `topic` and `group`, if the
    request names them; and by `protocol`. `times` is how many of them it strikes; None for all.

    ```python
    with node.faults.refuse("send", code=14, topic="orders", times=3) as refused:
        ...
    assert refused.hits == 3
    ```
    """

    def __init__(self) -> None:
        self._taps = Taps()

    def refuse(
        self,
        request: str | int,
        code: int,
        text: str = "Refused by the test.",
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Answer requests with an error code, instead of carrying them out."""

        def strike(tap: Tap, frame: _Frame) -> None:
            answer = frame.refused(code, text)
            if answer is not None:
                tap.answer(answer)

        return _RequestFault(self._taps, _selector(request, topic, group, protocol), strike, times)

    def delay(
        self,
        request: str | int,
        seconds: float,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Let requests arrive later."""

        def strike(tap: Tap, frame: _Frame) -> None:
            asyncio.get_running_loop().call_later(seconds, tap.deliver, frame.data)

        return _RequestFault(self._taps, _selector(request, topic, group, protocol), strike, times)

    def lose(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Lose requests: they are not carried out, and not answered."""
        selector = _selector(request, topic, group, protocol)
        return _RequestFault(self._taps, selector, lambda _, frame: None, times)  # noqa: ARG005

    def lose_answer(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Carry requests out, and lose the answers."""

        def strike(tap: Tap, frame: _Frame) -> bytes:
            tap.fates[frame.serial] = None
            return frame.data

        return _RequestFault(self._taps, _selector(request, topic, group, protocol), strike, times)

    def delay_answer(
        self,
        request: str | int,
        seconds: float,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Carry requests out at once, and send the answers later."""

        def strike(tap: Tap, frame: _Frame) -> bytes:
            tap.fates[frame.serial] = seconds
            return frame.data

        return _RequestFault(self._taps, _selector(request, topic, group, protocol), strike, times)

    @contextmanager
    def black_hole(self) -> Generator[None]:
        """Lose everything in both directions; connections stay open, and new ones are accepted."""
        with self._taps.lasting("black_hole", self._taps.set_silent):
            yield

    @contextmanager
    def disk_full(self) -> Generator[None]:
        """Let every write fail as on a full disk."""
        with self._taps.lasting("disk_full", self._taps.files.set_full):
            yield

    @contextmanager
    def sync_fails(self) -> Generator[None]:
        """Let every sync of the disk fail."""
        with self._taps.lasting("sync_fails", self._taps.files.set_sync_fails):
            yield

    @contextmanager
    def standby(self) -> Generator[None]:
        """Let the TubeMQ master refuse everything, as one that has lost its ZooKeeper session."""
        with self._taps.lasting("standby", self._taps.set_standby):
            yield

    def expire(self, group: str) -> None:
        """Let the node forget the members of a group, as if it had not heard of them for long.

        They lose their partitions, and join again with one of their next heartbeats.
        """
        self._taps.call(partial(self._taps.expire, group))

    @contextmanager
    def revoke(self, group: str, *, members: int | None = None) -> Generator[None]:
        """Let members of a group give up their partitions, which the other members take over.

        They stay members, and get partitions again after the block. Consumers notice both within
        one of their heartbeats. RocketMQ's consumers ask any broker who is a member, so in a
        cluster each broker needs this fault.

        Args:
            group: the group.
            members: how many of them, in the order of their ids; None for all.

        Raises:
            UsageError: the group has no members.
        """
        with _RequestFault(
            self._taps,
            _selector("GET_CONSUMER_LIST_BY_GROUP", None, group, "rocketmq"),
            self._taps.list_members,
            None,
        ):
            chosen: list[str] = []
            self._taps.call(partial(self._taps.revoke, group, members, chosen))
            try:
                yield
            finally:
                self._taps.call_anywhere(partial(self._taps.end_revocation, group, chosen))
        self._taps.call_anywhere(partial(self._taps.members_changed, group))

    def reset(self) -> None:
        """Reset all connections with clients."""
        self._taps.call(self._taps.reset)

    def half_open(self) -> None:
        """Let the connections that are open now transport nothing any more.

        Neither end notices it, as if a firewall had forgotten them. New connections work.
        """
        self._taps.call(self._taps.sever)


def taps_of(faults: NodeFaults) -> Taps:
    """The taps of a node's faults."""
    return faults._taps  # pyright: ignore[reportPrivateUsage] - it shows what users call


class Taps:
    """The taps of a node, and what they are to do; behind `NodeFaults`."""

    def __init__(self) -> None:
        self.requests = Requests()
        # Not public: users see what they can call.
        requests = self.requests
        requests._catch_up = lambda: self.call_anywhere(  # pyright: ignore[reportPrivateUsage]
            self.catch_up
        )
        self.active: Sequence[_RequestFault] = ()
        self.silent = False
        self._blocks: Counter[str] = Counter()
        self.files = FaultyFiles()
        self.call: Callable[[Callable[[], None]], None] = _call
        self.call_anywhere: Callable[[Callable[[], None]], None] = _call
        self._revoked: dict[str, Counter[str]] = {}  # by group and member, in how many blocks
        self._held: deque[tuple[Tap, bytes]] = deque()
        self._held_bytes = 0
        self._open: dict[Tap, None] = {}
        self._node: Node | None = None

    def attach(
        self,
        node: Node,
        call: Callable[[Callable[[], None]], None] | None = None,
        call_anywhere: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Use a node that has started.

        Args:
            node: the node.
            call: calls a function in its thread; None if it is this one.
            call_anywhere: the same, from its own thread, too, and while it is stopped.
        """
        self._node, self.call = node, call or _call
        self.call_anywhere = call_anywhere or _call
        if self._blocks["standby"]:
            self.set_standby(True)

    def hold(self, tap: Tap, data: bytes) -> None:
        """Keep what a connection has received, to be read when somebody asks for it."""
        self._held.append((tap, data))
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self.catch_up()

    def catch_up(self) -> None:
        """Record the requests in what was kept."""
        while self._held:
            tap, data = self._held.popleft()
            tap.note(data)
        self._held_bytes = 0

    @contextmanager
    def own_failures(self) -> Generator[None]:
        """Let the node stop: a failure of the disk that the test has caused is not raised again."""
        try:
            yield
        except StoreError:
            if not self.files.failed:
                raise
        finally:
            self.files.failed = False

    @contextmanager
    def killed(self, call: Callable[[Callable[[], None]], None]) -> Generator[None]:
        """Let nothing leave the node any more, and nothing reach its disk, while it is stopped.

        Args:
            call: calls a function in the node's thread.
        """
        call(self._vanish)
        try:
            with suppress(StoreError):
                yield
        finally:
            self.files.close_all()
            self.files.gone = self.files.failed = False

    def _vanish(self) -> None:
        self.files.gone = True
        self.sever()
        self.reset()

    def reset(self) -> None:
        """Reset all connections."""
        for tap in list(self._open):
            tap.connection.reset()

    def sever(self) -> None:
        """Let the open connections transport nothing any more."""
        for tap in self._open:
            tap.severed = True

    @contextmanager
    def lasting(self, fault: str, switch: Callable[[bool], None]) -> Generator[None]:
        """Switch a fault on while a block runs; blocks of one fault may overlap."""
        switch(True)
        self._blocks[fault] += 1
        try:
            yield
        finally:
            self._blocks[fault] -= 1
            if not self._blocks[fault]:
                switch(False)

    def set_silent(self, on: bool) -> None:
        """Let nothing pass."""
        self.silent = on

    def set_standby(self, on: bool) -> None:
        """Make the master a standby, or the active one."""
        master = None if self._node is None else self._node.master
        if master is None:
            raise UsageError("This node has no TubeMQ master.")

        def change() -> None:
            master.standby = on

        self.call_anywhere(change)

    def expire(self, group: str) -> None:
        """Forget the members of a group."""
        if self._node is None:
            raise UsageError("The node is stopped.")
        master, broker = self._node.master, self._node.rocketmq.broker
        found = None if master is None else master.state.groups.get(group)
        if master is not None and found is not None:
            for member in list(found.members):
                master.state.groups.leave(group, member, master.state.now_ms())
        members = None if broker is None else broker.state.consumers.get(group)
        for channel in () if members is None else members.channels:
            channel.close()  # as for a client whose lease has run out

    def revoke(self, group: str, members: int | None, chosen: list[str]) -> None:
        """Take the partitions of members of a group away; add their ids to `chosen`."""
        tubemq, rocketmq = self._groups(group)
        chosen += sorted([*(tubemq.members if tubemq else ()), *_ids(rocketmq)])[:members]
        if not chosen:
            raise UsageError(f"Group {group} has no members.")
        self._revoked.setdefault(group, Counter()).update(chosen)
        if tubemq is not None and (now_ms := self._master_ms()) is not None:
            tubemq.suspend(chosen, now_ms, NEVER_MS)
        self.members_changed(group)

    def end_revocation(self, group: str, chosen: Sequence[str]) -> None:
        """Let members of a group have partitions again, unless another block has taken them."""
        left = self._revoked.pop(group, Counter()) - Counter(chosen)
        if left:
            self._revoked[group] = left
        tubemq, _ = self._groups(group)
        if tubemq is not None and (now_ms := self._master_ms()) is not None:
            tubemq.suspend([one for one in chosen if one not in left], now_ms, now_ms)

    def members_changed(self, group: str) -> None:
        """Let RocketMQ's consumers of a group share its queues again."""
        _, rocketmq = self._groups(group)
        for channel in () if rocketmq is None else rocketmq.channels:
            channel.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def list_members(self, tap: Tap, frame: _Frame) -> None:
        """Answer GET_CONSUMER_LIST_BY_GROUP without the members whose partitions are revoked."""
        _, rocketmq = self._groups(frame.about.group)
        revoked = self._revoked.get(frame.about.group, ())
        left = [one for one in _ids(rocketmq) if one not in revoked]
        body = ConsumerIds(consumer_id_list=left or [NOBODY]).encode()
        (command,) = Session().receive(frame.data)
        tap.answer(Session().response(command, body=body))

    def _groups(
        self, group: str
    ) -> tuple[ConsumerGroup | None, rocketmq_clients.ConsumerGroup[Channel] | None]:
        if self._node is None:
            raise UsageError("The node is stopped.")
        master, broker = self._node.master, self._node.rocketmq.broker
        return (
            None if master is None else master.state.groups.get(group),
            None if broker is None else broker.state.consumers.get(group),
        )

    def _master_ms(self) -> int | None:
        master = None if self._node is None else self._node.master
        return None if master is None else master.state.now_ms()

    def tap(
        self, protocol: str, make: Callable[[Connection], Receiver]
    ) -> Callable[[Connection], Receiver]:
        """Stand before the receivers of a port; for `Node(tap=...)`."""

        def tapped(connection: Connection) -> Tap:
            one = Tap(self, connection, make, protocol, self._open.pop)
            one.severed = self.files.gone
            self._open[one] = None
            return one

        return tapped


def _ids(group: rocketmq_clients.ConsumerGroup[Channel] | None) -> list[str]:
    return [] if group is None else group.client_ids


def _call(function: Callable[[], None]) -> None:
    function()


def _selector(
    request: str | int, topic: str | None, group: str | None, protocol: Protocol | None
) -> Callable[[ReceivedRequest], bool]:
    if isinstance(request, str):
        check_name(request)
    names = KINDS.get(request, (request,)) if isinstance(request, str) else ()

    def matches(one: ReceivedRequest) -> bool:
        return (
            (one.name in names or one.code == request)
            and topic in (None, one.topic)
            and group in (None, one.group)
            and protocol in (None, one.protocol)
        )

    return matches


def check_name(request: str) -> None:
    """Check a kind or name of requests.

    Raises:
        UsageError: there is no such request.
    """
    known = {*KINDS, *RequestCode.__members__, *(row.name for row in methods.METHODS.values())}
    if request not in known:
        raise UsageError(
            f"There is no request {request!r}.",
            hint=f"Use one of {', '.join(KINDS)}, or a name of the protocol such as PULL_MESSAGE.",
        )


class Tap:
    """Stands between a connection and its receiver.

    Args:
        faults: what to do with requests.
        connection: the connection.
        make: makes the receiver.
        protocol: `tubemq` or `rocketmq`.
        ended: called when the connection has ended.

    Attributes:
        fates: by the serial number of a request: the delay of its answer, or None to lose it.
        severed: whether nothing passes any more.
    """

    def __init__(
        self,
        faults: Taps,
        connection: Connection,
        make: Callable[[Connection], Receiver],
        protocol: str,
        ended: Callable[[Tap], object],
    ) -> None:
        self.connection = connection
        self.fates: dict[int, float | None] = {}
        self.severed = False
        self._faults, self._ended = faults, ended
        self._protocol = protocol
        self._read = _read_tubemq if protocol == "tubemq" else _read_rocketmq
        self._end = _tubemq_end if protocol == "tubemq" else _rocketmq_end
        self._requests, self._answers = bytearray(), bytearray()
        self._plain = False
        self._delivered = 0  # how many of the bytes in `_requests` the receiver has already
        self._late: list[bytes] = []  # delayed requests that wait for the end of another one
        self._send = connection.divert(self._written)
        self._inner = make(connection)

    # -- requests

    def received(self, data: bytes) -> None:
        """Take one socket read."""
        if self.severed:
            return
        if self._plain:
            self._inner.received(data)
            return
        taps = self._faults
        if not (
            taps.active
            or taps.silent
            or self._late
            or taps.requests._watchers  # pyright: ignore[reportPrivateUsage]
            or len(self._requests) > self._delivered
        ):
            taps.hold(self, data)
            self._inner.received(data)
            return
        taps.catch_up()
        self._requests += data
        passed: list[bytes] = []
        try:
            for raw, frame in self._frames():
                if self._delivered:  # the beginning is there, so the rest has to follow
                    self._record(frame)
                    passed += [raw[self._delivered :], *self._late]
                    self._delivered = 0
                    self._late.clear()
                else:
                    passed += self._judge(raw, frame)
        except ProtocolError:  # replication, or a client that is wrong: the receiver decides
            self._plain = True
            passed.append(bytes(self._requests[self._delivered :]))
            self._requests.clear()
        if passed:
            self._inner.received(b"".join(passed))

    def note(self, data: bytes) -> None:
        """Record the requests in data that the receiver has already."""
        if self._plain:
            return
        self._requests += data
        try:
            for _, frame in self._frames():
                self._record(frame)
        except ProtocolError:
            self._plain = True
            self._requests.clear()
        self._delivered = len(self._requests)

    def _frames(self) -> Iterator[tuple[bytes, _Frame | None]]:
        """Remove the complete frames from the requests.

        Raises:
            ProtocolError: what remains does not begin with a frame.
        """
        while (end := self._end(self._requests)) is not None:
            raw = bytes(self._requests[:end])
            frame = self._read(raw, self.connection.peer)
            del self._requests[:end]
            yield raw, frame

    def _record(self, frame: _Frame | None) -> None:
        if frame is not None:  # not an answer of the client to a request of the node
            self._faults.requests.add(frame.about)

    def closed(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._ended(self)
        self._inner.closed(error)

    def deliver(self, data: bytes) -> None:
        """Hand a request to the node that was delayed."""
        if self.connection.closed or self.severed or self._faults.silent:
            return
        self._faults.catch_up()
        if self._delivered and not self._plain:  # the receiver has the beginning of another request
            self._late.append(data)
            return
        try:
            self._inner.received(data)
        except CohererError:  # as `Connection` does
            self.connection.close()

    def _judge(self, raw: bytes, frame: _Frame | None) -> list[bytes]:
        if self._faults.silent:
            return []
        self._record(frame)
        for fault in self._faults.active if frame is not None else ():
            if frame is not None and fault.applies(frame) and fault.strike(self, frame) is None:
                return []
        return [raw]

    # -- answers

    def answer(self, data: bytes) -> None:
        """Send an answer that the node has not just written."""
        if not (self.connection.closed or self.severed or self._faults.silent):
            self._send(data)

    def _written(self, data: bytes | memoryview) -> None:
        if self.severed or self._faults.silent:
            return
        if self._plain or not (self.fates or self._answers):
            self._send(data)
            return
        self._answers += data
        for raw in self._cut(self._answers):
            serial = _serial(raw, self._protocol)
            if serial not in self.fates:
                self._send(raw)
            elif (delay_s := self.fates.pop(serial)) is not None:
                asyncio.get_running_loop().call_later(delay_s, self.answer, raw)

    def _cut(self, buffer: bytearray) -> list[bytes]:
        """Remove the complete frames from a buffer."""
        frames: list[bytes] = []
        while (end := self._end(buffer)) is not None:
            frames.append(bytes(buffer[:end]))
            del buffer[:end]
        return frames


def _rocketmq_end(data: bytearray) -> int | None:
    if len(data) < _LENGTH.size:
        return None
    end = _LENGTH.size + int(_LENGTH.unpack_from(data)[0])
    if end <= 2 * _LENGTH.size:
        raise ProtocolError("This is not a frame.")
    return end if end <= len(data) else None


def _tubemq_end(data: bytearray) -> int | None:
    if len(data) < _TUBE_HEAD.size:
        return None
    end = _TUBE_HEAD.size
    for _ in range(_TUBE_HEAD.unpack_from(data)[2]):
        if len(data) < end + _LENGTH.size:
            return None
        end += _LENGTH.size + int(_LENGTH.unpack_from(data, end)[0])
    if end <= _TUBE_HEAD.size:
        raise ProtocolError("This is not a frame.")
    return end if end <= len(data) else None


def _serial(raw: bytes, protocol: str) -> int | None:
    """The number of the request that a frame answers; None if it is a request itself."""
    if protocol == "tubemq":
        return int(_TUBE_HEAD.unpack_from(raw)[1])
    (command,) = Session().receive(raw)
    return command.opaque if command.is_response else None


def _read_rocketmq(raw: bytes, peer: str) -> _Frame | None:
    (command,) = Session().receive(raw)
    if command.is_response:
        return None
    fields = command.fields
    short = command.code in _SEND_CODES
    name = _NAMES.get(command.code, "")
    about = ReceivedRequest(
        protocol="rocketmq",
        code=command.code,
        name=name,
        topic=fields.get("b" if short else "topic") or fields.get("originTopic") or "",
        group=fields.get("a" if short else "consumerGroup")
        or fields.get("producerGroup")
        or fields.get("group")
        or "",
        peer=peer,
    )
    return _Frame(raw, command.opaque, about, lambda code, text: _refused(command, code, text))


def _refused(command: Command, code: int, text: str) -> bytes | None:
    return None if command.is_oneway else Session().response(command, code, text)


def _read_tubemq(raw: bytes, peer: str) -> _Frame | None:
    requests, _ = ServerSession().receive(raw)
    if not requests:
        raise ProtocolError("The node answers this itself.")
    request = requests[0]
    method = methods.METHODS[request.method]
    message = methods.parse(method.request, request.body)
    about = ReceivedRequest(
        protocol="tubemq",
        code=method.id,
        name=method.name,
        topic=_text(message, "topicName"),
        group=_text(message, "groupName"),
        peer=peer,
    )
    return _Frame(raw, request.serial, about, lambda code, text: _error(request, code, text))


def _text(message: PbMessage, field: str) -> str:
    return str(getattr(message, field)) if field in message.DESCRIPTOR.fields_by_name else ""


def _error(request: TubeRequest, code: int, text: str) -> bytes:
    """An answer with an error, and with a value for every field that its class requires."""
    answer = methods.METHODS[request.method].response()
    for name, field in answer.DESCRIPTOR.fields_by_name.items():
        if field.is_required:
            setattr(answer, name, _ABSENT.get(field.cpp_type, -1))
    for name, value in (("errCode", code), ("errMsg", text)):
        setattr(answer, name, value)
    return ServerSession().reply(request, answer)
