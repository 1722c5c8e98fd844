"""Methods 7 to 9: what a master does for brokers (section 7.8).

A broker registers, gets its configuration as texts with an id and a check sum, and repeats those in
every heartbeat until the master's differ: then it gets the new texts, and says what it has made of
them. Only what it says is told to clients (`coherer._rules.tubemq.registry`).

Different from Java's master: a broker that nobody has configured may be added when it registers
(`MasterOptions.auto_add_brokers`); when a broker says that it has just started, everybody who held
partitions there is told to take them again, because the broker knows of nobody; and one that was
stopped after errors of its disk is released by its restart, not only by an administrator.
"""

from __future__ import annotations

from collections.abc import Iterable

from coherer import limits
from coherer._rules.tubemq.records import UNDEFINED, BrokerRecord, ManageStatus, TopicStatus
from coherer._rules.tubemq.registry import Hosted, RunningBroker
from coherer._server.tubemq.master.broker_texts import Configurations, read_hosted
from coherer._server.tubemq.master.state import Caller, MasterState
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BLANK

_DEFAULT_TLS_PORT = 8124


class BrokerDesk:
    """Registers brokers and tells them what to hold.

    Attributes:
        configurations: what each of them should hold.
    """

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self.configurations = Configurations(state)

    # -- method 7

    def register(
        self, request: pb.RegisterRequestB2M, caller: Caller, now_ms: int
    ) -> pb.RegisterResponseM2B:
        """Method 7: a broker has started, or has come back."""
        del caller
        state = self._state
        state.credentials.broker(request.authInfo)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        state.require_active(request.clientId)
        running = _read_broker(request)
        record = self._record(running, request)
        hosted: dict[str, Hosted] | None = None
        if not request.brokerOnline:  # it has just started
            state.groups.forget_broker(running.id, now_ms)
            state.broker_registry.release(running.id, now_ms)
        elif request.brokerDefaultConfInfo.strip():
            hosted = read_hosted(request.brokerDefaultConfInfo, request.brokerTopicSetConfInfo)
        state.broker_registry.register(running, hosted, now_ms)
        state.broker_registry.set_condition(
            running, request.readStatusRpt, request.writeStatusRpt, now_ms
        )
        state.absorb(now_ms)
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
        """The broker's record in the catalog, which its address has to match."""
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
                    f"If it has moved, it may come when the old one has been silent for "
                    f"{silence_s:g} s; if not, it needs another number."
                    if state.options.auto_add_brokers
                    else "Change its record first."
                ),
            )
        return catalog.update_broker(running.id, address, state.change("auto"))

    # -- method 8

    def heartbeat(
        self, request: pb.HeartRequestB2M, caller: Caller, now_ms: int
    ) -> pb.HeartResponseM2B:
        """Method 8: what the broker holds, and what it should hold."""
        del caller
        state = self._state
        state.credentials.broker(request.authInfo)
        broker = _read_id(request.brokerId)
        state.require_active(request.brokerId)
        running = state.broker_registry.heartbeat(
            broker, online=request.brokerOnline, now_ms=now_ms
        )
        if running is None or broker not in state.catalog.brokers:
            raise _unknown(broker)
        if request.takeRemovedTopicInfo:
            self._forget_removed(broker, request.removedTopicsInfo)
        key = request.curBrokerConfId, request.confCheckSumId
        state.broker_registry.report(running, key, self._reported(request, running, key), now_ms)
        state.broker_registry.set_condition(
            running, request.readStatusRpt, request.writeStatusRpt, now_ms
        )
        state.absorb(now_ms)
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
        # One that repeats our id and check sum holds just that, whether it has said so or not.
        configuration = self.configurations.of(running.id)
        return configuration.hosted if key == configuration.key != running.configuration else None

    def _forget_removed(self, broker: int, topics: Iterable[str]) -> None:
        catalog = self._state.catalog
        for topic in topics:
            deployment = catalog.topics.get(topic, {}).get(broker)
            if deployment is not None and deployment.status >= TopicStatus.REMOVING:
                catalog.forget_topic(topic, broker)

    # -- method 9

    def close(
        self, request: pb.CloseRequestB2M, caller: Caller, now_ms: int
    ) -> pb.CloseResponseM2B:
        """Method 9: the broker leaves the lists at once."""
        del caller
        state = self._state
        state.credentials.broker(request.authInfo)
        broker = _read_id(request.brokerId)
        state.require_active(request.brokerId)
        if not state.broker_registry.close(broker, now_ms):
            raise _unknown(broker)
        state.absorb(now_ms)
        return pb.CloseResponseM2B(success=True, errCode=ResultCode.SUCCESS, errMsg="OK!")

    # -- what both answers hold

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
        raise Refusal(ResultCode.BAD_REQUEST, f"{request.clientId[:200]!r} is no broker.")
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
        raise Refusal(ResultCode.BAD_REQUEST, f"{text[:200]!r} is no number of a broker.")
    return int(text)


def _unknown(broker: int) -> Refusal:
    return Refusal(ResultCode.HB_NO_NODE, f"Broker {broker} is not registered here.")
