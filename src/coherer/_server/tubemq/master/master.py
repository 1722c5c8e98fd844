"""The TubeMQ master: who may send and read what, and where (section 7).

`Master.handle` turns one request into one answer and knows no sockets; `tick` does what nobody asks
for: timeouts, balance, new tokens. Desks do the work, for producers, consumers and brokers; what
they share is `MasterState`. The rules stand in `coherer._rules`.

Where this master does better than Java's is said in the docstrings of the desks, of `access`
and of the modules of rules (`rebalance`, `membership`, `broker_registry`, `balance`, `catalog`). In short: it
acts when something changes instead of every 30 to 60 seconds, it does not lose instructions, it
checks passwords, and it can create topics and book brokers by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import Message as PbMessage

from coherer._common import clock
from coherer._rules.tubemq.groups import GroupKind
from coherer._rules.tubemq.records import CatalogError, TopicStatus
from coherer._server.tubemq.master.brokers import BrokerDesk
from coherer._server.tubemq.master.choosers import ChooserDesk
from coherer._server.tubemq.master.consumers import ConsumerDesk
from coherer._server.tubemq.master.entry import Entry
from coherer._server.tubemq.master.options import MasterOptions
from coherer._server.tubemq.master.producers import ProducerDesk
from coherer._server.tubemq.master.state import Caller, MasterState, StandbyError
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import UsageError

__all__ = ["Master", "MasterOptions", "StandbyError"]

# What an answer that refuses must hold besides success, errCode and errMsg.
_REFUSED: dict[int, dict[str, object]] = {
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


class Master:
    """A TubeMQ master without sockets.

    Args:
        options: how it behaves.
        load: gives what `save` was given last, or None.
        save: keeps what this function gives, now or soon; it replaces what was kept before at once
            or not at all.
        now_ms: a clock that is not set, ms since 1970.
        wall_ms: the time of day, ms since 1970; where only `now_ms` is given, that.

    >>> from coherer._wire.tubemq import messages as pb
    >>> master = Master(now_ms=lambda: 1000)
    >>> request = pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="10.0.0.9")
    >>> master.handle(methods.PRODUCER_REGISTER, request, "10.0.0.9", False).errMsg
    'OK!'

    Attributes:
        state: what the desks share; for the HTTP administration and for tests.
        brokers: the desk for brokers.
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
        self._open()

    def _open(self) -> None:
        state = self.state
        entry = Entry(state)
        producers, consumers = ProducerDesk(state), ConsumerDesk(state, entry)
        self.brokers, choosers = BrokerDesk(state), ChooserDesk(state, entry)
        # Any: each handler takes the class of its own method; `methods.METHODS` pairs them.
        self._handlers: dict[int, Callable[[Any, Caller, int], PbMessage]] = {
            methods.PRODUCER_REGISTER: producers.register,
            methods.PRODUCER_HEARTBEAT: producers.heartbeat,
            methods.PRODUCER_CLOSE: producers.close,
            methods.CONSUMER_REGISTER: consumers.register,
            methods.CONSUMER_HEARTBEAT: consumers.heartbeat,
            methods.CONSUMER_CLOSE: consumers.close,
            methods.BROKER_REGISTER: self.brokers.register,
            methods.BROKER_HEARTBEAT: self.brokers.heartbeat,
            methods.BROKER_CLOSE: self.brokers.close,
            methods.CONSUMER_REGISTER_V2: choosers.register,
            methods.CONSUMER_HEARTBEAT_V2: choosers.heartbeat,
            methods.GET_PARTITION_META: choosers.partitions,
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
        """Answers a request.

        Args:
            method: its number.
            message: of the class that belongs to the method.
            peer_host: where it came from.
            secure: whether over TLS.

        Returns:
            The answer, which may be a refusal by its own fields.

        Raises:
            StandbyError: this master is a standby.
        """
        handler = self._handlers[method]
        try:
            return handler(message, Caller(peer_host, secure), self.state.now_ms())
        except Refusal as refusal:
            return _refusal(method, refusal.code, refusal.text)
        except CatalogError as error:
            return _refusal(method, ResultCode.BAD_REQUEST, error.text)

    # -- what nobody asks for

    def tick(self) -> None:
        """Timeouts, balance and tokens; to be called every 100 ms to 1 s."""
        state = self.state
        if state.standby:
            return
        now_ms = state.now_ms()
        counts, kinds = state.counts, {g.name: g.subscription.kind for g in state.groups}
        counts.producers_timed_out += len(state.producers.expire(now_ms))
        lost = state.groups.expire(now_ms)
        counts.consumers_timed_out += len(lost)
        gone = {name for name, _ in lost if state.groups.get(name) is None}
        counts.groups_timed_out += len(gone)
        chose = [name for name in gone if kinds[name] is GroupKind.CLIENT_BALANCED]
        counts.choosers_timed_out += len(chose)
        counts.brokers_timed_out += len(state.broker_registry.expire(now_ms))
        state.visit_tokens.rotate(now_ms)
        state.absorb(now_ms)
        for group in state.groups.due(now_ms):
            state.balance(group, now_ms)
        state.remember(now_ms)

    def close(self) -> None:
        """Write who is here: after a restart groups wait for them, and for nobody who has left."""
        if not self.standby:
            self.state.remember(self.state.now_ms())

    @property
    def standby(self) -> bool:
        """Whether this master refuses all business.

        A standby that becomes active reads its catalog again and knows nobody: clients and brokers
        are told to register.
        """
        return self.state.standby

    @standby.setter
    def standby(self, standby: bool) -> None:
        if self.state.standby and not standby:
            self.state.begin()
            self._open()
        self.state.standby = standby

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` whenever the configuration of brokers may be new.

        A broker in the same process sends its heartbeat then, and has new topics at once. It may
        call `handle` from inside.
        """
        self.state.watchers.append(changed)

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        brokers: Iterable[int] | None = None,
        *,
        user: str = "coherer",
    ) -> int:
        """Creates a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`, at most 64.
            partitions: how many on each broker; None: the options' number.
            brokers: ids of the brokers; None: all that are in the catalog.
            user: who does it.

        Returns:
            On how many brokers it is new; those that have it keep it as it is.

        Raises:
            CatalogError: the name or the number cannot be.
            UsageError: there is no broker.
            StandbyError: this master is a standby.
            StoreError: it is created, but will not survive a restart yet.
        """
        state = self.state
        state.require_active(user)
        chosen = sorted(state.catalog.brokers) if brokers is None else list(brokers)
        if not chosen:
            raise UsageError("There is no broker for the topic.", topic=name)
        for broker in chosen:
            state.catalog.broker(broker)
        count = state.create_topic(name, partitions, chosen, user)
        state.settle()
        return count

    def delete_topic(self, name: str, *, user: str = "coherer") -> bool:
        """Orders all brokers to delete a topic with its messages; False when there is none.

        Raises:
            StandbyError: this master is a standby.
            StoreError: it is ordered, but a restart may forget it.
        """
        state = self.state
        state.require_active(user)
        found = [
            deployment
            for deployment in state.catalog.topics.get(name, {}).values()
            if deployment.status < TopicStatus.REMOVING
        ]
        for deployment in found:
            state.catalog.remove_topic(name, deployment.broker, state.change(user))
        state.settle()
        return bool(found)

    def topics(self) -> dict[str, dict[int, int]]:
        """The topics that are not being deleted: partitions by broker id."""
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
        """The consumer groups that have members, and their members' client ids."""
        return {group.name: list(group.members) for group in self.state.groups}


def _refusal(method: int, code: ResultCode, text: str) -> PbMessage:
    fields = _REFUSED.get(method, {})
    if method not in _CODE_ONLY:
        fields = {**fields, "success": False}
    return methods.METHODS[method].response(errCode=int(code), errMsg=text, **fields)
