"""The TubeMQ master, and its end of a connection (docs/protocol/tubemq.md, section 7).

`Master` works without sockets. `Master.handle` answers one request; `Master.tick` does periodic
work: timeouts, balance, new tokens. The table of methods is in `Master._open`. Handlers answer the
requests of producers (`producers`), consumers (`consumers`, `client_balanced`) and brokers
(`brokers`), share a `MasterState`, and decide by the rules in `coherer._rules.tubemq`.

`MasterConnection` decodes the requests of one connection. They are answered at once, except for a
request that changes the master's file: it is answered when the file is on disk.

The docstrings of the handlers, of `access` and of the rules list the differences from Java's
master. In short: it acts when something changes instead of every 30 to 60 seconds, it does not lose
events, it checks passwords, and it can create topics and add brokers automatically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf.message import Message as PbMessage

from coherer._common import clock
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._net import Connection
from coherer._rules.tubemq.groups import GroupKind
from coherer._rules.tubemq.records import CatalogError, TopicStatus
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.master.admission import ConsumerAdmission
from coherer._server.tubemq.master.brokers import BrokerHandler
from coherer._server.tubemq.master.client_balanced import ClientBalancedHandler
from coherer._server.tubemq.master.consumers import ConsumerHandler
from coherer._server.tubemq.master.producers import ProducerHandler
from coherer._server.tubemq.master.state import MasterState, Peer, StandbyError
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.session import JAVA_EXCEPTION, STANDBY, Request, ServerSession
from coherer.errors import ProtocolError, StoreError, UsageError

_log = Log(logging.getLogger(__name__))

_USER: Final = "coherer"
"""Makes the changes that this node asks for."""

HOUSEKEEPING_MS: Final = 1_000
"""How often expired clients, brokers and tokens are looked for, which last for many seconds."""

# The fields that an error answer must have besides success, errCode and errMsg.
_ERROR_FIELDS: dict[int, dict[str, object]] = {
    methods.PRODUCER_REGISTER: {"brokerCheckSum": -1},
    methods.PRODUCER_HEARTBEAT: {"brokerCheckSum": -1},
    methods.BROKER_REGISTER: {"stopRead": False, "stopWrite": False, "takeConfInfo": False},
    methods.BROKER_HEARTBEAT: {
        "stopRead": False,
        "stopWrite": False,
        "curBrokerConfId": methods.UNDEFINED,
        "confCheckSumId": methods.UNDEFINED,
        "needReportData": True,
        "takeConfInfo": False,
        "takeRemoveTopicInfo": False,
    },
}
_CODE_ONLY = frozenset(
    {methods.CONSUMER_REGISTER_V2, methods.CONSUMER_HEARTBEAT_V2, methods.GET_PARTITION_META}
)

_BALANCE = "balancing TubeMQ groups"


class Master:
    """A TubeMQ master without sockets.

    Args:
        load: returns the content that was saved last, or None.
        save: saves the content that the given function returns, now or soon, and atomically.
        now_ms: a monotonic clock, ms since 1970.
        wall_ms: the time of day, ms since 1970; defaults to `now_ms` if only that is given.

    >>> from coherer._wire.tubemq import messages as pb
    >>> master = Master(now_ms=lambda: 1000)
    >>> request = pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="10.0.0.9")
    >>> master.handle(methods.PRODUCER_REGISTER, request, "10.0.0.9", False).errMsg
    'OK!'

    Attributes:
        state: shared by the handlers; also for the HTTP administration and tests.
        brokers: the handler for requests of brokers.
        upkeep: the periodic steps; they do nothing while the master is a standby.
    """

    def __init__(
        self,
        options: MasterOptions | None = None,
        load: Callable[[], bytes | None] = lambda: None,
        save: Callable[[Callable[[], bytes]], None] = lambda _: None,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        if wall_ms is None:
            wall_ms = clock.wall_ms if now_ms is clock.now_ms else now_ms
        self.state = MasterState(options or MasterOptions(), load, save, now_ms, wall_ms)
        self.upkeep = self._steps()
        self._open()

    def _open(self) -> None:
        state = self.state
        admission = ConsumerAdmission(state)
        producers, consumers = ProducerHandler(state), ConsumerHandler(state, admission)
        client_balanced = ClientBalancedHandler(state, admission)
        self.brokers = BrokerHandler(state)
        # Any: each handler takes the request class of its method; `methods.METHODS` pairs them.
        self._handlers: dict[int, Callable[[Any, Peer, int], PbMessage]] = {
            methods.PRODUCER_REGISTER: producers.register,
            methods.PRODUCER_HEARTBEAT: producers.heartbeat,
            methods.PRODUCER_CLOSE: producers.close,
            methods.CONSUMER_REGISTER: consumers.register,
            methods.CONSUMER_HEARTBEAT: consumers.heartbeat,
            methods.CONSUMER_CLOSE: consumers.close,
            methods.BROKER_REGISTER: self.brokers.register,
            methods.BROKER_HEARTBEAT: self.brokers.heartbeat,
            methods.BROKER_CLOSE: self.brokers.close,
            methods.CONSUMER_REGISTER_V2: client_balanced.register,
            methods.CONSUMER_HEARTBEAT_V2: client_balanced.heartbeat,
            methods.GET_PARTITION_META: client_balanced.partition_metadata,
        }

    def __repr__(self) -> str:
        role = "standby" if self.standby else "active"
        return (
            f"<Master {role}, {len(self.state.catalog.brokers)} brokers, "
            f"{len(list(self.state.catalog.topic_names()))} topics, "
            f"{len(self.state.producers)} producers, {len(self.state.groups)} consumers>"
        )

    # -- requests

    def handle(self, method: int, message: PbMessage, peer_host: str, secure: bool) -> PbMessage:
        """Answer a request.

        Args:
            message: the request, of the class that belongs to the method.
            peer_host: where it came from.
            secure: whether it came over TLS.

        Returns:
            The answer, which may be an error answer.

        Raises:
            StandbyError: this master is a standby.
        """
        handler = self._handlers[method]
        try:
            return handler(message, Peer(peer_host, secure), self.state.now_ms())
        except Refusal as refusal:
            return _error_answer(method, refusal.code, refusal.text)
        except CatalogError as error:
            return _error_answer(method, ResultCode.BAD_REQUEST, error.text)

    # -- periodic work

    def tick(self) -> None:
        """Run the periodic steps; call it every 100 ms to 1 s."""
        self.upkeep.tick()

    def _steps(self) -> Upkeep:
        def active(work: Callable[[MasterState, int], object]) -> Callable[[], None]:
            def step() -> None:
                if not self.standby:
                    work(self.state, self.state.now_ms())

            return step

        return Upkeep(
            Step("expiring TubeMQ producers", active(self._expire_producers), HOUSEKEEPING_MS),
            Step("expiring TubeMQ consumers", active(self._expire_consumers), HOUSEKEEPING_MS),
            Step("expiring TubeMQ brokers", active(self._expire_brokers), HOUSEKEEPING_MS),
            Step(
                "renewing visit tokens",
                active(lambda it, now: it.visit_tokens.rotate(now)),
                HOUSEKEEPING_MS,
            ),
            Step("applying changed topics", active(MasterState.apply_changes)),
            Step(_BALANCE, active(self._balance)),
            Step("saving group members", active(MasterState.save_members)),
            now_ms=self.state.now_ms,
        )

    def _expire_producers(self, state: MasterState, now_ms: int) -> None:
        state.counters.producers_timed_out += len(state.producers.expire(now_ms))

    def _expire_consumers(self, state: MasterState, now_ms: int) -> None:
        counters, kinds = state.counters, {g.name: g.subscription.kind for g in state.groups}
        consumers = state.groups.expire(now_ms)
        counters.consumers_timed_out += len(consumers)
        groups = {name for name, _ in consumers if state.groups.get(name) is None}
        counters.groups_timed_out += len(groups)
        client_balanced = [name for name in groups if kinds[name] is GroupKind.CLIENT_BALANCED]
        counters.client_balanced_timed_out += len(client_balanced)

    def _expire_brokers(self, state: MasterState, now_ms: int) -> None:
        state.counters.brokers_timed_out += len(state.broker_registry.expire(now_ms))

    def _balance(self, state: MasterState, now_ms: int) -> None:
        for group in state.groups.due(now_ms):
            with self.upkeep.guard(_BALANCE):
                state.balance(group, now_ms)

    def close(self) -> None:
        """Save the members of groups: after a restart, groups wait for them."""
        if not self.standby:
            self.state.save_members(self.state.now_ms())

    @property
    def standby(self) -> bool:
        """Whether this master refuses all requests.

        A standby that becomes active loads its catalog again and starts without registered clients
        and brokers, and asks them to register.
        """
        return self.state.standby

    @standby.setter
    def standby(self, standby: bool) -> None:
        if self.state.standby and not standby:
            self.state.begin()
            self._open()
        self.state.standby = standby

    @property
    def active(self) -> bool:
        """Whether it answers requests now: it is no standby, and no other master can be active."""
        return self.state.active

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the configuration of brokers may have changed.

        A broker in the same process then sends a heartbeat, and has new topics at once. `changed`
        may call `handle`.
        """
        self.state.watchers.append(changed)

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        brokers: Iterable[int] | None = None,
    ) -> int:
        """Create a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`; at most 64 characters.
            partitions: the number of partitions on each broker; None for the default.
            brokers: the ids of the brokers; None for all brokers of the catalog.

        Returns:
            The number of brokers it was added to. Brokers that have the topic keep it unchanged.

        Raises:
            CatalogError: the name or the number of partitions is not valid.
            UsageError: there is no broker.
            StandbyError: this master is a standby.
            StoreError: the topic is created, but not saved yet.
        """
        state = self.state
        state.require_active(_USER)
        chosen = sorted(state.catalog.brokers) if brokers is None else list(brokers)
        if not chosen:
            raise UsageError("There is no broker for the topic.", topic=name)
        for broker in chosen:
            state.catalog.broker(broker)
        count = state.create_topic(name, partitions, chosen, _USER)
        state.commit_changes()
        return count

    def delete_topic(self, name: str) -> bool:
        """Order all brokers to delete a topic with its messages. Returns whether it existed.

        Raises:
            StandbyError: this master is a standby.
            StoreError: the order is in effect, but not saved yet.
        """
        state = self.state
        state.require_active(_USER)
        found = [
            deployment
            for deployment in state.catalog.topics.get(name, {}).values()
            if deployment.status < TopicStatus.REMOVING
        ]
        for deployment in found:
            state.catalog.remove_topic(name, deployment.broker, state.change(_USER))
        state.commit_changes()
        return bool(found)

    def topics(self) -> dict[str, dict[int, int]]:
        """The topics that are not being deleted: the number of partitions by broker id."""
        return {
            name: {
                deployment.broker: deployment.props.partitions * deployment.props.stores
                for deployment in self.state.catalog.topics[name].values()
                if deployment.status is TopicStatus.OK
            }
            for name in self.state.catalog.topic_names()
            if any(d.status is TopicStatus.OK for d in self.state.catalog.topics[name].values())
        }

    def groups(self) -> dict[str, list[str]]:
        """The consumer groups that have members, and the client ids of their members."""
        return {group.name: list(group.members) for group in self.state.groups}


def _error_answer(method: int, code: ResultCode, text: str) -> PbMessage:
    fields = _ERROR_FIELDS.get(method, {})
    if method not in _CODE_ONLY:
        fields = {**fields, "success": False}
    return methods.METHODS[method].response(errCode=int(code), errMsg=text, **fields)


class MasterConnection:
    """The master's end of one connection: service 1 of the protocol.

    Args:
        master: answers the requests.
        files: writes the master's file; a request that has it written is answered when it is on
            disk.
    """

    def __init__(
        self, master: Master, connection: Connection, files: DeferredSaver | None = None
    ) -> None:
        self._master = master
        self._files = files
        self._deferred: set[asyncio.Task[None]] = set()
        self._connection = connection
        self._session = ServerSession()

    def received(self, data: bytes) -> None:
        """Handle the data of one socket read."""
        requests, answers = self._session.receive(data)
        self._connection.report_unfinished(self._session.unfinished)
        self._connection.write_many(answers)
        for request in requests:
            before = self._saves
            answer = self._answer(request)
            if request.timeout_ms <= 0:
                continue
            if self._saves == before:
                self._connection.write(answer)
            else:
                later = self._answer_when_saved(request, answer)
                task = asyncio.get_running_loop().create_task(later)
                self._deferred.add(task)
                task.add_done_callback(self._deferred.discard)

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason is irrelevant
        """Drop deferred answers. Registrations do not end with their connection."""
        for task in self._deferred:
            task.cancel()

    @property
    def _saves(self) -> int:
        return 0 if self._files is None else self._files.changes

    async def _answer_when_saved(self, request: Request, answer: bytes) -> None:
        if self._files is not None:
            try:
                await self._files.flush()
            except StoreError as error:
                # A single master goes on with the change: a full disk must not make it refuse
                # heartbeats.
                if self._files.loses_unsaved:
                    text = f"This master could not save the change: {error.text}"
                    answer = self._session.error(request, STANDBY, text)
        self._connection.write(answer)

    def _answer(self, request: Request) -> bytes:
        session = self._session
        if request.service != methods.MASTER:
            text = f"No service {request.service} found on the server"
            return session.error(request, JAVA_EXCEPTION, text)
        try:
            message = methods.parse(methods.METHODS[request.method].request, request.body)
        except ProtocolError as error:
            return session.fatal(request, JAVA_EXCEPTION, error.text)
        connection = self._connection
        try:
            answer = self._master.handle(
                request.method, message, connection.peer_host, connection.secure
            )
        except StandbyError as error:
            return session.error(request, STANDBY, error.text)
        except Exception:  # noqa: BLE001 - a bug in one handler must not end the connection
            _log.exception(
                "Unhandled error in method %d from %s",
                request.method,
                connection.peer,
                about=request.method,
                peer=connection.peer,
            )
            return session.error(request, JAVA_EXCEPTION, "The master failed; see its log.")
        return session.reply(request, answer)
