"""A broker's link to its master: registration, heartbeats, configuration.

See docs/protocol/tubemq.md, sections 7.8.1 to 7.8.3.

`BrokerConfiguration` holds what the master has configured. `MasterExchange` decides the next
request and handles the answer, without any transport. Two links carry the requests:
`EmbeddedMasterLink` to a master in the same process, and `RemoteMasterLink` to masters behind
sockets, which retries forever.

The broker reports the id of the configuration that it has applied. Ids come from the master, and
are only compared. Topics that the master wants removed are closed and deleted, and reported until
the master has acknowledged.

A topic of the master can also be deleted here, by a client of RocketMQ. The heartbeats report it,
and a configuration that the master made before does not bring it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec
from google.protobuf.message import Message

from coherer import _net as net
from coherer import limits
from coherer._common.caches import forget_unused
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._rules.common.topics import Topic
from coherer._server.tubemq.broker.state import REMOVED, REMOVING, BrokerState
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode, refused
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.methods import UNDEFINED
from coherer._wire.tubemq.names import BrokerDefaults, TopicSettings
from coherer._wire.tubemq.session import ClientSession, Response
from coherer.errors import (
    CohererError,
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
)

_log = Log(logging.getLogger(__name__))

NORMAL, STOPPED, FAILED = 0, 1, -1
"""The states of reading and writing that a broker reports."""

TIMEOUT_MS, FAILOVER_TIMEOUT_MS = 10_000, 2_000
"""The timeouts of a call to the only master, and to one of several."""

EXCHANGES_MAX = 12
"""The maximum number of consecutive heartbeats that exchange a configuration."""


class BrokerConfiguration:
    """The configuration that a broker has applied.

    Args:
        remove: deletes the messages of a topic and ends its leases.
    """

    def __init__(self, state: BrokerState, remove: Callable[[str], None]) -> None:
        self._state = state
        self._remove = remove
        self._id = 0
        self._check_sum = 0
        self._defaults = ""
        self._topics: tuple[str, ...] = ()
        self._flow_id = UNDEFINED
        self._priority_id = UNDEFINED
        self._cluster_id = UNDEFINED
        self._removed: set[str] = set()
        self._deleted: set[str] = set()
        self.is_removing = False  # a topic, because the master has ordered it
        self._told: frozenset[str] = frozenset()
        self._report = False

    @property
    def unreported(self) -> bool:
        """Whether the configuration has not been reported to the master yet."""
        return self._report

    def deleted(self, name: str) -> None:
        """Note that the messages of a topic are being deleted."""
        # A topic that is still in the table loses its messages only.
        topics = self._state.core.topics
        if name not in topics and not topics.is_internal(name):
            self._deleted.add(name)

    def registration_request(self) -> pb.RegisterRequestB2M:
        """The request of method 7, without authentication."""
        self._told = frozenset()
        options = self._state.options
        read, write = self._status()
        return pb.RegisterRequestB2M(
            clientId=f"{options.broker_id}:{options.host}:{options.port}:coherer",
            brokerOnline=self._state.serving,
            enableTls=options.tls_port is not None,
            tlsPort=8124 if options.tls_port is None else options.tls_port,
            readStatusRpt=read,
            writeStatusRpt=write,
            curBrokerConfId=self._id,
            confCheckSumId=self._check_sum,
            brokerDefaultConfInfo=self._defaults,
            brokerTopicSetConfInfo=self._topics,
            flowCheckId=self._flow_id,
            qryPriorityId=self._priority_id,
            clsConfig=pb.ClusterConfig(configId=self._cluster_id),
            webPort=options.web_port,
        )

    def heartbeat_request(self) -> pb.HeartRequestB2M:
        """The request of method 8, without authentication."""
        read, write = self._status()
        self._deleted = set(filter(self._is_gone, self._deleted))
        self._told = frozenset(self._deleted)
        request = pb.HeartRequestB2M(
            brokerId=str(self._state.options.broker_id),
            brokerOnline=self._state.serving,
            readStatusRpt=read,
            writeStatusRpt=write,
            curBrokerConfId=self._id,
            confCheckSumId=self._check_sum,
            takeConfInfo=self._report,
            takeRemovedTopicInfo=bool(self._removed),
            removedTopicsInfo=sorted(self._removed),
            flowCheckId=self._flow_id,
            qryPriorityId=self._priority_id,
            clsConfig=pb.ClusterConfig(configId=self._cluster_id),
            deletedTopics=sorted(self._told),
        )
        if self._report:
            request.brokerDefaultConfInfo = self._defaults
            request.brokerTopicSetConfInfo.extend(self._topics)
        return request

    def registration_accepted(self, answer: pb.RegisterResponseM2B) -> None:
        """Apply the answer to an accepted registration."""
        access, now_ms = self._state.access, self._state.now_ms()
        access.in_contact = True
        access.registered_ms = now_ms
        access.switch(answer.enableBrokerInfo)
        self._state.changed()
        self._apply_common(answer)
        if answer.takeConfInfo:
            self._apply(answer)
        # The registration itself has reported the earlier configuration.
        self._report = answer.takeConfInfo

    def heartbeat_answered(self, answer: pb.HeartResponseM2B) -> None:
        """Apply the answer to an accepted heartbeat."""
        self._state.access.in_contact = True
        self._apply_common(answer)
        self._deleted -= self._told
        self._report = answer.needReportData
        removed: set[str] = set()
        if answer.takeRemoveTopicInfo:
            found = map(_settings, answer.removeTopicConfInfo)
            removed = {settings.topic for settings in found if settings is not None}
        if answer.takeConfInfo:
            self._apply(answer, removed)
        if answer.takeRemoveTopicInfo:
            self._remove_topics(removed)

    def _status(self) -> tuple[int, int]:
        state = self._state
        read = STOPPED if state.stop_read else NORMAL
        if state.core.write_failed or state.core.leaving:
            return read, FAILED  # the master then removes the broker from producers' routes
        return read, STOPPED if state.stop_write else NORMAL

    def _apply_common(self, answer: pb.RegisterResponseM2B | pb.HeartResponseM2B) -> None:
        state = self._state
        if state.access.add_tokens(answer.brokerAuthorizedInfo.visitAuthorizedToken):
            state.changed()
        if answer.HasField("flowCheckId") and answer.flowCheckId != self._flow_id:
            self._apply_flow_rules(answer.flowCheckId, answer.flowControlInfo)
        if answer.HasField("qryPriorityId"):
            self._priority_id = answer.qryPriorityId
        stops = answer.stopRead, answer.stopWrite
        if stops != (state.stop_read, state.stop_write):
            _log.warning(
                "The master %s consumers and %s producers at this broker",
                *("refuses" if stop else "allows" for stop in stops),
            )
            state.stop_read, state.stop_write = stops
            state.changed()
        if answer.HasField("clsConfig"):
            self._cluster_id = answer.clsConfig.configId
            if answer.clsConfig.HasField("maxMsgSize"):
                state.message_bytes_max = answer.clsConfig.maxMsgSize
                state.changed()

    def _apply_flow_rules(self, flow_id: int, text: str) -> None:
        self._flow_id = flow_id
        try:
            self._state.flow = FlowRules.parse(text)
        except ProtocolError as error:
            _log.error("Ignoring invalid flow rules from the master: %s", error)

    def _apply(
        self,
        answer: pb.RegisterResponseM2B | pb.HeartResponseM2B,
        removed: Collection[str] = (),
    ) -> None:
        try:
            defaults = BrokerDefaults.parse(answer.brokerDefaultConfInfo)
            topics = [_topic(text, defaults) for text in answer.brokerTopicSetConfInfo]
            forget_unused(_topic, len(topics))
        except ProtocolError as error:
            _log.error("Ignoring an invalid configuration from the master: %s", error)
            return
        self._id = answer.curBrokerConfId
        self._check_sum = answer.confCheckSumId
        self._defaults = answer.brokerDefaultConfInfo
        self._topics = tuple(answer.brokerTopicSetConfInfo)
        self._report = True
        hidden = set(filter(self._is_gone, self._deleted))
        self._replace_topics([topic for topic in topics if topic.name not in hidden], removed)

    def _replace_topics(self, topics: list[Topic], removed: Collection[str]) -> None:
        state = self._state
        before = {topic.name for topic in state.topics}
        if state.topics.replace(topics, state.now_ms()):
            names = {topic.name for topic in state.topics}
            for name in sorted(before - names - set(removed)):
                _log.warning("Topic %s is no longer served; its messages stay", name, topic=name)
            _log.info("%d topics; new: %s", len(names), ", ".join(sorted(names - before)) or "none")

    def _remove_topics(self, wanted: set[str]) -> None:
        for name in sorted(wanted - self._removed):
            if self._is_gone(name):
                self.is_removing = True
                try:
                    self._remove(name)
                finally:
                    self.is_removing = False
            self._deleted.discard(name)
            self._removed.add(name)
        self._removed &= wanted  # the master has acknowledged the others

    def _is_gone(self, name: str) -> bool:
        """Whether no client of RocketMQ has created the topic again."""
        found = self._state.topics.get(name)
        return found is None or found.tubemq


def _settings(text: str) -> TopicSettings | None:
    try:
        settings = TopicSettings.parse(text)
    except ProtocolError as error:
        _log.error("Ignoring an invalid topic to be removed: %s", error)
        return None
    return settings if settings.status in {REMOVING, REMOVED} else None


@lru_cache(limits.TOPICS_MAX)  # every change sends the texts of all topics again
def _topic(text: str, defaults: BrokerDefaults) -> Topic:
    settings = TopicSettings.parse(text)
    given = {
        name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None
    }
    merged = msgspec.structs.asdict(defaults) | given
    return Topic.of_master(
        settings.topic,
        merged["partitions"],
        stores=merged["stores"],
        can_publish=merged["accept_publish"],
        can_subscribe=merged["accept_subscribe"],
        status=settings.status,
        message_bytes_max=settings.max_message_bytes,
    )


# -- the exchange


class MasterExchange:
    """The requests and answers between a broker and its master, without a transport.

    Args:
        certificate: makes the authentication of a request; None if the master needs none.
    """

    def __init__(
        self,
        state: BrokerState,
        configuration: BrokerConfiguration,
        certificate: Callable[[], pb.MasterCertificateInfo] | None = None,
    ) -> None:
        self._state = state
        self._configuration = configuration
        self._certificate = certificate
        self._registered = False
        self._reported = False
        self._failure = ""

    def next_request(self) -> tuple[int, Message]:
        """The method and the message of the next request."""
        if not self._registered:
            registration = self._configuration.registration_request()
            self._sign(registration)
            return methods.BROKER_REGISTER, registration
        heartbeat = self._configuration.heartbeat_request()
        self._reported = heartbeat.takeConfInfo or heartbeat.takeRemovedTopicInfo
        self._sign(heartbeat)
        return methods.BROKER_HEARTBEAT, heartbeat

    def handle_answer(self, answer: Message) -> bool:
        """Apply an answer. Returns whether another request should follow at once.

        Raises:
            RefusedError: the master rejects this broker.
            ProtocolError: the answer has an unexpected type.
        """
        if isinstance(answer, pb.RegisterResponseM2B):
            more = self._register_answered(answer)
        elif isinstance(answer, pb.HeartResponseM2B):
            more = self._heartbeat_answered(answer)
        else:
            raise ProtocolError(f"The master answered with {type(answer).__name__}.")
        if self._failure and self._registered:
            self._failure = ""
            _log.info("Connected to a master again.")
        if not more and not self._state.serving:
            self._state.serving = True
            self._state.changed()
            return True
        return more

    def close_request(self) -> tuple[int, Message] | None:
        """The request that unregisters the broker; None if it is not registered."""
        if not self._registered:
            return None
        self._registered = False
        request = pb.CloseRequestB2M(brokerId=str(self._state.options.broker_id))
        self._sign(request)
        return methods.BROKER_CLOSE, request

    def failed(self, error: CohererError) -> None:
        """Record that no master has answered, or that it has refused."""
        self._state.access.in_contact = False
        self._failure = str(error)
        _log.warning("No connection to a master, retrying: %s", error)

    def _register_answered(self, answer: pb.RegisterResponseM2B) -> bool:
        if not answer.success:
            raise refused(answer.errCode, f"The master rejects this broker: {answer.errMsg}")
        self._configuration.registration_accepted(answer)
        self._registered = True
        return True

    def _heartbeat_answered(self, answer: pb.HeartResponseM2B) -> bool:
        if answer.errCode == ResultCode.HB_NO_NODE:
            _log.info("The master asks this broker to register again: %s", answer.errMsg)
            self._registered = False
            return True
        if not answer.success:
            raise refused(answer.errCode, f"The master rejects the heartbeat: {answer.errMsg}")
        self._configuration.heartbeat_answered(answer)
        return self._configuration.unreported or self._reported

    def _sign(
        self, request: pb.RegisterRequestB2M | pb.HeartRequestB2M | pb.CloseRequestB2M
    ) -> None:
        if self._certificate is not None:
            request.authInfo.CopyFrom(self._certificate())


class EmbeddedMasterLink:
    """The link to a master in the same process; changes of its catalog are applied at once.

    Args:
        handle: `Master.handle`.
        host: the address of the broker, as the master sees it.
    """

    def __init__(
        self,
        exchange: MasterExchange,
        handle: Callable[[int, Message, str, bool], Message],
        host: str,
    ) -> None:
        self._exchange = exchange
        self._handle = handle
        self._host = host
        self._busy = False
        self._again = False

    def sync(self) -> None:
        """Exchange heartbeats until both sides have the same configuration."""
        # A nested call, caused by a request of this exchange, makes the outer one go on.
        if self._busy:
            self._again = True
            return
        self._busy = True
        try:
            for _ in range(EXCHANGES_MAX):
                self._again = False
                method, request = self._exchange.next_request()
                answer = self._handle(method, request, self._host, False)
                if not self._exchange.handle_answer(answer) and not self._again:
                    return
        except CohererError as error:
            self._exchange.failed(error)
        finally:
            self._busy = False

    def close(self) -> None:
        """Unregister the broker."""
        close_request = self._exchange.close_request()
        try:
            if close_request is not None:
                self._handle(*close_request, self._host, False)
        except CohererError as error:
            _log.warning("Unregistering the broker at the master failed: %s", error)


class RemoteMasterLink:
    """The link to masters behind sockets.

    Args:
        heartbeat_ms: the time between heartbeats; changes are exchanged without a pause.
        retry_ms: the time between attempts while no master accepts the broker.

    Attributes:
        ready: set when a master has accepted the broker.
        upkeep: counts unexpected failures of heartbeats.
    """

    def __init__(
        self,
        exchange: MasterExchange,
        masters: MasterClient,
        *,
        heartbeat_ms: int = 1_000,
        retry_ms: int = 1_000,
    ) -> None:
        self._exchange = exchange
        self._masters = masters
        self._heartbeat_s = heartbeat_ms / 1000
        self._retry_s = retry_ms / 1000
        self._failed = False
        self._hurry = asyncio.Event()
        self.upkeep = Upkeep(
            Step("sending heartbeats to TubeMQ masters", self._exchange_once, pause=self._pause)
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()

    def start(self) -> None:
        """Register, and stay registered, in a background task."""
        self._tasks = self.upkeep.start()

    def sync(self) -> None:
        """Send the next heartbeat soon."""
        self._hurry.set()

    async def close(self, *, unregister: bool = True) -> None:
        """Stop the heartbeats, and `unregister` the broker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        close_request = self._exchange.close_request() if unregister else None
        try:
            if close_request is not None:
                await self._masters.call(*close_request)
        except CohererError as error:
            _log.warning("Unregistering the broker at the master failed: %s", error)
        finally:
            self._masters.close()

    async def _exchange_once(self) -> None:
        self._failed = True
        self._hurry.clear()
        try:
            for _ in range(EXCHANGES_MAX):
                answer = await self._masters.call(*self._exchange.next_request())
                if not self._exchange.handle_answer(answer):
                    self.ready.set()
                    break
        except CohererError as error:
            self._exchange.failed(error)
        else:
            self._failed = False

    async def _pause(self) -> None:
        if self._failed:
            await asyncio.sleep(self._retry_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat_s):
                await self._hurry.wait()


class MasterClient:
    """Calls masters behind sockets, of which one is active; tries the next if one does not serve.

    Args:
        addresses: host and port of each master.
        timeout_ms: the timeout of a call; None for a default, which is shorter if another master
            can be asked.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], timeout_ms: int | None = None) -> None:
        self._addresses = sorted(addresses)
        one, several = TIMEOUT_MS, FAILOVER_TIMEOUT_MS
        self._timeout_ms = timeout_ms or (several if len(self._addresses) > 1 else one)
        self._current = 0
        self._connection: _MasterConnection | None = None

    async def call(self, method: int, message: Message) -> Message:
        """Send a request and wait for the answer.

        Raises:
            CohererError: no master answered.
        """
        last: CohererError | None = None
        for _ in self._addresses:
            host, port = self._addresses[self._current]
            try:
                if self._connection is None or self._connection.connection.closed:
                    self._connection = await net.dial(host, port, _MasterConnection)
                return await self._connection.call(method, message, self._timeout_ms)
            except (UnavailableError, RefusedError, ProtocolError) as error:
                last = error
                self.close()
                self._current = (self._current + 1) % len(self._addresses)
        raise last or UnavailableError("No master is configured.")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.connection.close()
            self._connection = None


class _MasterConnection:
    """One connection to a master."""

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self._session = ClientSession()
        self._answers: dict[int, asyncio.Future[Message]] = {}

    async def call(self, method: int, message: Message, timeout_ms: int) -> Message:
        serial, frame = self._session.request(method, message, timeout_ms)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[serial] = answer
        self.connection.write(frame)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The master did not answer within {timeout_ms} ms.", server=self.connection.peer
            ) from None
        finally:
            self._answers.pop(serial, None)

    def received(self, data: bytes) -> None:
        for answer in self._session.receive(data):
            waiting = self._answers.get(answer.serial)
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, Response):
                try:
                    row = methods.METHODS[answer.method]
                    waiting.set_result(methods.parse(row.response, answer.body))
                except (KeyError, ProtocolError) as error:
                    waiting.set_exception(ProtocolError(f"The answer is malformed: {error}."))
            else:
                waiting.set_exception(answer.error(self.connection.peer))

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason is irrelevant
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(
                    DisconnectedError(
                        "The master closed the connection.", server=self.connection.peer
                    )
                )
