"""What the master tells a broker, and what the broker tells the master that it holds (7.8).

Ids say what either side holds; they come from the master and are only compared. Topics that the
master wants removed are closed and deleted here, and reported until it has heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.common.topics import Topic
from coherer._server.tubemq.broker.state import REMOVED, REMOVING, BrokerState
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.methods import UNDEFINED
from coherer._wire.tubemq.names import BrokerDefaults, TopicSettings
from coherer.errors import ProtocolError

_log = Log(logging.getLogger(__name__))

NORMAL, STOPPED, FAILED = 0, 1, -1
"""What a broker reports about its reading and writing."""


class Configuration:
    """The configuration that a broker holds.

    Args:
        state: what it is applied to.
        remove: deletes the messages of a topic and ends its readers.
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
        self._report = False

    @property
    def unreported(self) -> bool:
        """Whether the master has not heard yet what is held here now."""
        return self._report

    def registration(self) -> pb.RegisterRequestB2M:
        """Method 7, without an authentication."""
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

    def heartbeat(self) -> pb.HeartRequestB2M:
        """Method 8, without an authentication."""
        read, write = self._status()
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
        )
        if self._report:
            request.brokerDefaultConfInfo = self._defaults
            request.brokerTopicSetConfInfo.extend(self._topics)
        return request

    def registered(self, answer: pb.RegisterResponseM2B) -> None:
        """Take what an accepted registration says."""
        access, now_ms = self._state.access, self._state.now_ms()
        access.in_contact = True
        access.registered_ms = now_ms
        access.switch(answer.enableBrokerInfo)
        self._state.changed()
        self._take_common(answer)
        if answer.takeConfInfo:
            self._take(answer)
        # The registration itself reported what was held before it.
        self._report = answer.takeConfInfo

    def heard(self, answer: pb.HeartResponseM2B) -> None:
        """Take what the answer to an accepted heartbeat says."""
        self._state.access.in_contact = True
        self._take_common(answer)
        self._report = answer.needReportData
        if answer.takeConfInfo:
            self._take(answer)
        if answer.takeRemoveTopicInfo:
            self._take_removals(answer.removeTopicConfInfo)

    def _status(self) -> tuple[int, int]:
        state = self._state
        read = STOPPED if state.stop_read else NORMAL
        if state.core.write_failed:
            return read, FAILED
        return read, STOPPED if state.stop_write else NORMAL

    def _take_common(self, answer: pb.RegisterResponseM2B | pb.HeartResponseM2B) -> None:
        state = self._state
        if state.access.learn(answer.brokerAuthorizedInfo.visitAuthorizedToken):
            state.changed()
        if answer.HasField("flowCheckId") and answer.flowCheckId != self._flow_id:
            self._take_flow(answer.flowCheckId, answer.flowControlInfo)
        if answer.HasField("qryPriorityId"):
            self._priority_id = answer.qryPriorityId
        stops = answer.stopRead, answer.stopWrite
        if stops != (state.stop_read, state.stop_write):
            _log.warning("The master says: stop reading %s, stop writing %s", *stops)
            state.stop_read, state.stop_write = stops
            state.changed()
        if answer.HasField("clsConfig"):
            self._cluster_id = answer.clsConfig.configId
            if answer.clsConfig.HasField("maxMsgSize"):
                state.message_bytes_max = answer.clsConfig.maxMsgSize
                state.changed()

    def _take_flow(self, flow_id: int, text: str) -> None:
        self._flow_id = flow_id
        try:
            self._state.flow = FlowRules.parse(text)
        except ProtocolError as error:
            _log.error("The master's flow rules are not used: %s", error)

    def _take(self, answer: pb.RegisterResponseM2B | pb.HeartResponseM2B) -> None:
        try:
            defaults = BrokerDefaults.parse(answer.brokerDefaultConfInfo)
            topics = [_topic(text, defaults) for text in answer.brokerTopicSetConfInfo]
        except ProtocolError as error:
            _log.error("The master's configuration is not used: %s", error)
            return
        self._id = answer.curBrokerConfId
        self._check_sum = answer.confCheckSumId
        self._defaults = answer.brokerDefaultConfInfo
        self._topics = tuple(answer.brokerTopicSetConfInfo)
        self._report = True
        self._apply(topics)

    def _apply(self, topics: list[Topic]) -> None:
        state = self._state
        before = {topic.name for topic in state.topics}
        if state.topics.replace(topics, state.now_ms()):
            names = {topic.name for topic in state.topics}
            for name in sorted(before - names):
                _log.warning("Topic %s is not served any more; its messages stay", name)
            _log.info("%d topics; new: %s", len(names), ", ".join(sorted(names - before)) or "none")

    def _take_removals(self, texts: Iterable[str]) -> None:
        wanted = {settings.topic for settings in map(_settings, texts) if settings is not None}
        for name in sorted(wanted - self._removed):
            self._remove(name)
            self._removed.add(name)
        self._removed &= wanted  # the master has heard of the others


def _settings(text: str) -> TopicSettings | None:
    try:
        settings = TopicSettings.parse(text)
    except ProtocolError as error:
        _log.error("A topic to be removed cannot be read: %s", error)
        return None
    return settings if settings.status in {REMOVING, REMOVED} else None


@lru_cache(limits.TOPICS_MAX)  # all of them come again with every change
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
