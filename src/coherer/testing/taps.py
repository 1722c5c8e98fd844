"""Taps: what carries out the faults of a node in a test, and records its requests.

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
from typing import Final, Protocol

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
from coherer.testing.requests import ReceivedRequest, Requests

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


class Frame(msgspec.Struct):
    """A request on the wire."""

    data: bytes
    serial: int
    about: ReceivedRequest
    refused: Callable[[int, str], bytes | None]


class Active(Protocol):
    """A fault that strikes at requests, while it is active."""

    def applies(self, frame: Frame) -> bool:
        """Whether it strikes a request."""
        ...

    def strike(self, tap: Tap, frame: Frame) -> bytes | None:
        """Apply it to a request; returns what the node is to receive now, None for nothing."""
        ...


class Taps:
    """The taps of a node, and what they are to do; behind `NodeFaults`."""

    def __init__(self) -> None:
        self.requests = Requests()
        self.explored = False  # other faults may keep a request away
        # Not public: users see what they can call.
        requests = self.requests
        requests._catch_up = lambda: self.call_anywhere(  # pyright: ignore[reportPrivateUsage]
            self.catch_up
        )
        self.active: Sequence[Active] = ()
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

    def list_members(self, tap: Tap, frame: Frame) -> None:
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
        others: the faults inside the one that strikes now.
        severed: whether nothing passes any more.
    """

    others: Sequence[Active] = ()

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

    def _frames(self) -> Iterator[tuple[bytes, Frame | None]]:
        """Remove the complete frames from the requests.

        Raises:
            ProtocolError: what remains does not begin with a frame.
        """
        while (end := self._end(self._requests)) is not None:
            raw = bytes(self._requests[:end])
            frame = self._read(raw, self.connection.peer)
            del self._requests[:end]
            yield raw, frame

    def _record(self, frame: Frame | None) -> None:
        if frame is not None:  # not an answer of the client to a request of the node
            self._faults.requests.add(frame.about)

    def closed(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._ended(self)
        self._inner.closed(error)

    def arrive(self, frame: Frame, others: Sequence[Active]) -> None:
        """Take a request that was delayed, and let the other faults strike it."""
        left = [one for one in others if one in self._faults.active]
        if not (self.connection.closed or self.severed or self._is_kept(frame, left)):
            self.deliver(frame.data)

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

    def _judge(self, raw: bytes, frame: Frame | None) -> list[bytes]:
        if self._faults.silent:
            return []
        self._record(frame)
        return [] if frame is not None and self._is_kept(frame, self._faults.active) else [raw]

    def _is_kept(self, frame: Frame, faults: Sequence[Active]) -> bool:
        """Whether a fault keeps a request from the node, for now or for ever."""
        for number, fault in enumerate(faults, 1):
            self.others = faults[number:]
            if fault.applies(frame) and fault.strike(self, frame) is None:
                return True
        return False

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


def _read_rocketmq(raw: bytes, peer: str) -> Frame | None:
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
    return Frame(raw, command.opaque, about, lambda code, text: _refused(command, code, text))


def _refused(command: Command, code: int, text: str) -> bytes | None:
    return None if command.is_oneway else Session().response(command, code, text)


def _read_tubemq(raw: bytes, peer: str) -> Frame | None:
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
    return Frame(raw, request.serial, about, lambda code, text: _error(request, code, text))


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
