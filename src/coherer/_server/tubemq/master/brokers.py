"""Methods 7 to 9: registration and configuration of brokers (docs/protocol/tubemq.md, section 7.8).

A broker registers and receives its configuration as texts with an id and a check sum. It repeats
both in every heartbeat. If they differ from the master's, the answer carries the new texts, and the
broker then reports its topics. Clients only see topics that brokers have reported
(`coherer._rules.tubemq.registry`).

Differences from Java's master: an unknown broker may be added when it registers
(`MasterOptions.auto_add_brokers`). If a broker reports that it has just started, all consumers that
held partitions there have to take them again, because the broker has lost its leases. A broker
that was stopped after disk errors is released by its restart, not only by an administrator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from coherer import limits
from coherer._common.caches import forget_unused
from coherer._rules.tubemq.records import (
    UNDEFINED,
    BrokerRecord,
    Deployment,
    ManageStatus,
    TopicProps,
    TopicStatus,
)
from coherer._rules.tubemq.registry import Hosted, RunningBroker
from coherer._server.tubemq.master.state import MasterState, Peer
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BLANK, BrokerDefaults, TopicSettings
from coherer.errors import ProtocolError

T = TypeVar("T")

_DEFAULT_TLS_PORT = 8124


class BrokerHandler:
    """Answers the requests of brokers."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self.configurations = BrokerConfigurations(state)

    def register(
        self, request: pb.RegisterRequestB2M, peer: Peer, now_ms: int
    ) -> pb.RegisterResponseM2B:
        """Method 7: a broker has started, or has come back."""
        del peer
        state = self._state
        state.authenticator.broker(request.authInfo)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        state.require_active(request.clientId)
        running = _read_broker(request)
        record = self._record(running, request)
        hosted: dict[str, Hosted] | None = None
        if not request.brokerOnline:  # the broker has just started
            state.groups.forget_broker(running.id, now_ms)
            state.broker_registry.release(running.id, now_ms)
        elif request.brokerDefaultConfInfo.strip():
            hosted = read_hosted(request.brokerDefaultConfInfo, request.brokerTopicSetConfInfo)
        state.broker_registry.register(running, hosted, now_ms)
        state.broker_registry.set_condition(
            running, request.readStatusRpt, request.writeStatusRpt, now_ms
        )
        state.apply_changes(now_ms)
        configuration = self.configurations.of(record.id)
        key = request.curBrokerConfId, request.confCheckSumId
        stop_read, stop_write = state.broker_registry.stopped(running.id)
        answer = pb.RegisterResponseM2B(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            stopRead=stop_read,
            stopWrite=stop_write,
            takeConfInfo=key != configuration.key,
            enableBrokerInfo=self._switches(),
            curBrokerConfId=configuration.id,
            confCheckSumId=configuration.check_sum,
            ssdStoreId=UNDEFINED,
        )
        if answer.takeConfInfo:
            answer.brokerDefaultConfInfo = configuration.defaults
            answer.brokerTopicSetConfInfo.extend(configuration.topics)
        self._add_common(answer, request)
        return answer

    def _record(self, running: RunningBroker, request: pb.RegisterRequestB2M) -> BrokerRecord:
        """The record of the broker in the catalog; its address must match."""
        state, catalog = self._state, self._state.catalog
        record = catalog.brokers.get(running.id)
        if record is None:
            if not state.options.auto_add_brokers:
                raise Refusal(
                    ResultCode.BAD_REQUEST,
                    f"Not found broker configure info, please create first! the connecting "
                    f"client id is {request.clientId}",
                )
            record = BrokerRecord(
                id=running.id,
                host=running.host,
                port=running.port,
                tls_port=running.tls_port,
                web_port=request.webPort,
                status=ManageStatus.ONLINE,
            )
            return catalog.add_broker(record, state.change("auto"))
        if record.status is ManageStatus.DRAFT:
            raise Refusal(
                ResultCode.BAD_REQUEST, f"Broker {running.id} is a draft; set it online first."
            )
        address = {"host": running.host, "port": running.port, "tls_port": running.tls_port}
        if request.webPort:
            address["web_port"] = request.webPort
        if all(getattr(record, name) == value for name, value in address.items()):
            return record
        known = state.broker_registry.get(running.id)
        elsewhere = known is not None and (known.host, known.port) != (running.host, running.port)
        if elsewhere or not state.options.auto_add_brokers:
            silence_s = state.options.broker_timeout_ms / 1000
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Broker {running.id} is configured at {record.host}:{record.port} (TLS "
                f"{record.tls_port}), not at {running.host}:{running.port} (TLS "
                f"{running.tls_port}). "
                + (
                    f"If it has moved, it can register after the old one has been silent for "
                    f"{silence_s:g} s; otherwise give it another id."
                    if state.options.auto_add_brokers
                    else "Change its record first."
                ),
            )
        return catalog.update_broker(running.id, address, state.change("auto"))

    def heartbeat(
        self, request: pb.HeartRequestB2M, peer: Peer, now_ms: int
    ) -> pb.HeartResponseM2B:
        """Method 8: record the report of the broker; send its configuration if it differs."""
        del peer
        state = self._state
        state.authenticator.broker(request.authInfo)
        broker = _read_id(request.brokerId)
        state.require_active(request.brokerId)
        running = state.broker_registry.heartbeat(
            broker, online=request.brokerOnline, now_ms=now_ms
        )
        if running is None or broker not in state.catalog.brokers:
            raise _unknown(broker)
        if request.takeRemovedTopicInfo:
            self._forget_removed(broker, request.removedTopicsInfo)
        for topic in request.deletedTopics:
            state.catalog.remove_open_topic(topic, broker, state.change("rocketmq"))
        key = request.curBrokerConfId, request.confCheckSumId
        state.broker_registry.report(running, key, self._reported(request, running, key), now_ms)
        state.broker_registry.set_condition(
            running, request.readStatusRpt, request.writeStatusRpt, now_ms
        )
        state.apply_changes(now_ms)
        configuration = self.configurations.of(broker)
        stop_read, stop_write = state.broker_registry.stopped(broker)
        differs = key != configuration.key
        answer = pb.HeartResponseM2B(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            stopRead=stop_read,
            stopWrite=stop_write,
            curBrokerConfId=configuration.id,
            confCheckSumId=configuration.check_sum,
            needReportData=differs,
            takeConfInfo=differs,
            takeRemoveTopicInfo=True,
            removeTopicConfInfo=configuration.removing,
            ssdStoreId=UNDEFINED,
        )
        if differs:
            answer.brokerDefaultConfInfo = configuration.defaults
            answer.brokerTopicSetConfInfo.extend(configuration.topics)
        self._add_common(answer, request)
        return answer

    def _reported(
        self, request: pb.HeartRequestB2M, running: RunningBroker, key: tuple[int, int]
    ) -> dict[str, Hosted] | None:
        if request.takeConfInfo and request.brokerDefaultConfInfo.strip():
            return read_hosted(request.brokerDefaultConfInfo, request.brokerTopicSetConfInfo)
        # A broker that repeats this id and check sum has applied the texts, reported or not.
        configuration = self.configurations.of(running.id)
        return configuration.hosted if key == configuration.key != running.configuration else None

    def _forget_removed(self, broker: int, topics: Iterable[str]) -> None:
        catalog = self._state.catalog
        for topic in topics:
            deployment = catalog.topics.get(topic, {}).get(broker)
            if deployment is not None and deployment.status >= TopicStatus.REMOVING:
                catalog.forget_topic(topic, broker)

    def close(self, request: pb.CloseRequestB2M, peer: Peer, now_ms: int) -> pb.CloseResponseM2B:
        """Method 9: remove the broker at once."""
        del peer
        state = self._state
        state.authenticator.broker(request.authInfo)
        broker = _read_id(request.brokerId)
        state.require_active(request.brokerId)
        if not state.broker_registry.close(broker, now_ms):
            raise _unknown(broker)
        state.apply_changes(now_ms)
        return pb.CloseResponseM2B(success=True, errCode=ResultCode.SUCCESS, errMsg="OK!")

    def _switches(self) -> pb.EnableBrokerFunInfo:
        options = self._state.options
        authenticate = options.authenticate_producers or options.authenticate_consumers
        switches = pb.EnableBrokerFunInfo(
            enableConsumeAuthenticate=False,  # see `access`
            enableConsumeAuthorize=False,
            enableProduceAuthenticate=options.authenticate_producers,
            enableProduceAuthorize=False,
            enableVisitTokenCheck=options.checks_visit_tokens,
        )
        if authenticate:
            switches.accountsRequired = True
        return switches

    def _add_common(
        self,
        answer: pb.RegisterResponseM2B | pb.HeartResponseM2B,
        request: pb.RegisterRequestB2M | pb.HeartRequestB2M,
    ) -> None:
        state = self._state
        cluster = state.catalog.cluster
        serial = cluster.stamp.serial
        if request.HasField("flowCheckId"):
            answer.flowCheckId = serial
            answer.qryPriorityId = cluster.priority
            if request.flowCheckId != serial:
                answer.flowControlInfo = cluster.flow_rules if cluster.flow_enabled else BLANK
        answer.authorizedInfo.visitAuthorizedToken = state.visit_tokens.fresh
        answer.brokerAuthorizedInfo.visitAuthorizedToken = state.visit_tokens.text
        answer.clsConfig.configId = serial
        if request.clsConfig.configId != serial:
            answer.clsConfig.maxMsgSize = cluster.message_bytes_max


def _read_broker(request: pb.RegisterRequestB2M) -> RunningBroker:
    """`brokerId:host:port:version`; a host of IPv6 has colons of its own."""
    id_text, _, rest = request.clientId.partition(":")
    parts = rest.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not parts[1].isdecimal():
        parts = [*rest.rsplit(":", 1), ""]
    if len(parts) != 3 or not parts[0] or not parts[1].isdecimal() or len(parts[1]) > 5:
        raise Refusal(
            ResultCode.BAD_REQUEST, f"{request.clientId[:200]!r} is not a valid broker client id."
        )
    return RunningBroker(
        id=_read_id(id_text),
        host=parts[0],
        port=int(parts[1]),
        tls_port=request.tlsPort if request.HasField("tlsPort") else _DEFAULT_TLS_PORT,
        secure=request.enableTls,
        version=parts[2][:64],
        online=request.brokerOnline,
    )


def _read_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 10 and int(text) > 0):
        raise Refusal(ResultCode.BAD_REQUEST, f"{text[:200]!r} is not a valid broker id.")
    return int(text)


def _unknown(broker: int) -> Refusal:
    return Refusal(ResultCode.HB_NO_NODE, f"Broker {broker} is not registered here.")


# -- configurations


class BrokerConfiguration(msgspec.Struct, frozen=True):
    """The configuration of a broker, as the texts sent to it (sections 2.5.9 and 2.5.10).

    Args:
        id: raised by every change.
        check_sum: the check sum of the texts (section 7.8.3).
        topics: its topics, ordered by text.
        removing: the topics to remove.
        hosted: the topics as the broker will report them.
    """

    id: int
    check_sum: int
    defaults: str
    topics: tuple[str, ...]
    removing: tuple[str, ...]
    hosted: dict[str, Hosted]

    @property
    def key(self) -> tuple[int, int]:
        """The id and check sum that a broker repeats."""
        return self.id, self.check_sum


class BrokerConfigurations:
    """The configurations of all brokers, renewed when the catalog changes."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._cache: dict[int, BrokerConfiguration] = {}
        self._version = -1

    def of(self, broker: int) -> BrokerConfiguration:
        """The configuration of a broker; its id is raised whenever its texts change.

        Raises:
            CatalogError: the broker has no record.
        """
        catalog = self._state.catalog
        if self._version != catalog.version:
            self._version = catalog.version
            for known in [known for known in self._cache if known in catalog.brokers]:
                self._cache[known] = self._build(known, self._cache[known])
            deployed = sum(map(len, catalog.topics.values()))
            forget_unused(_topic_text, deployed)
            forget_unused(_hosted, deployed)
        found = self._cache.get(broker)
        if found is None:
            found = self._cache[broker] = self._build(broker, None)
        return found

    def _build(self, broker: int, before: BrokerConfiguration | None) -> BrokerConfiguration:
        catalog = self._state.catalog
        record = catalog.broker(broker)
        deployments = catalog.topics_of(broker)
        kept = [d for d in deployments if d.status < TopicStatus.REMOVING]
        removed = [d for d in deployments if d.status >= TopicStatus.REMOVING]
        defaults = _defaults(record.props).text()
        topics = tuple(sorted(self._text(record, deployment) for deployment in kept))
        removing = tuple(sorted(self._text(record, deployment) for deployment in removed))
        if before is not None and (defaults, topics) == (before.defaults, before.topics):
            if removing == before.removing:
                return before
            return msgspec.structs.replace(before, removing=removing)
        return BrokerConfiguration(
            id=self._state.new_id(),
            check_sum=check_sum(defaults, topics),
            defaults=defaults,
            topics=topics,
            removing=removing,
            hosted=read_hosted(defaults, topics),
        )

    def _text(self, record: BrokerRecord, deployment: Deployment) -> str:
        limit = self._state.catalog.message_bytes_max(deployment.topic)
        if limit == self._state.catalog.cluster.message_bytes_max:
            limit = None
        return _topic_text(record.props, deployment, limit)


# Every change rebuilds, sends and parses all texts of a broker; nearly all of them are unchanged.


@lru_cache(limits.TOPICS_MAX)
def _topic_text(broker: TopicProps, deployment: Deployment, message_bytes_max: int | None) -> str:
    usual = msgspec.structs.asdict(_defaults(broker))
    own = msgspec.structs.asdict(_defaults(deployment.props))
    return TopicSettings(
        topic=deployment.topic,
        status=int(deployment.status),
        max_message_bytes=message_bytes_max,
        **{name: value for name, value in own.items() if value != usual[name]},
    ).text()


@lru_cache(limits.TOPICS_MAX)
def _hosted(topic_text: str, defaults_text: str) -> tuple[str, Hosted] | None:
    topic, defaults = TopicSettings.parse(topic_text), BrokerDefaults.parse(defaults_text)
    if topic.status:
        return None
    return topic.topic, Hosted(
        partitions=_either(topic.partitions, defaults.partitions),
        stores=_either(topic.stores, defaults.stores),
        publish=_either(topic.accept_publish, defaults.accept_publish),
        subscribe=_either(topic.accept_subscribe, defaults.accept_subscribe),
    )


def check_sum(defaults: str, topics: Iterable[str]) -> int:
    """Java's check sum: CRC-32 without its highest bit, over the texts and as many zeros again.

    >>> check_sum(
    ...     "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000",
    ...     ["__offset_history__:10: : : : : : : :0: : : : : ", "demo:3: : : : : : :2:0: : : : : "],
    ... )
    2044385142
    """
    text = defaults + "".join(sorted(topics))
    return zlib.crc32(text.encode().ljust(2 * len(text), b"\0")) & 0x7FFFFFFF


def _defaults(props: TopicProps) -> BrokerDefaults:
    return BrokerDefaults(
        partitions=props.partitions,
        accept_publish=props.accept_publish,
        accept_subscribe=props.accept_subscribe,
        unflush_threshold=props.unflush_messages,
        unflush_interval_ms=props.unflush_ms,
        delete_policy=props.delete_policy,
        stores=props.stores,
        unflush_data_hold_bytes=props.unflush_hold,
        cache_megabytes=props.cache_mb,
        cache_thousands=props.cache_k,
        cache_flush_interval_ms=props.cache_flush_ms,
    )


def read_hosted(defaults_text: str, topic_texts: Iterable[str]) -> dict[str, Hosted]:
    """The topics that the texts of a broker describe.

    Raises:
        Refusal: with 400 if a text is not valid.
    """
    if not defaults_text.strip():
        return {}
    try:
        BrokerDefaults.parse(defaults_text)
        return dict(filter(None, (_hosted(text, defaults_text) for text in topic_texts)))
    except ProtocolError as error:
        raise Refusal(ResultCode.BAD_REQUEST, error.text) from None


def _either(own: T | None, default: T) -> T:
    return default if own is None else own
