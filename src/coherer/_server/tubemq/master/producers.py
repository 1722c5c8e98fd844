"""Methods 1 to 3: producers (docs/protocol/tubemq.md, sections 3.2, 3.3 and 3.8).

Difference from Java's master: a topic that a producer names for the first time may be created
(`MasterOptions.auto_create_topics`). It is in the same answer if its broker runs in the same
process.

A master that has just started, or has become active, knows no broker until they register, about a
second later. A producer that asks in between keeps the partitions that it knows, and goes on
sending: it gets code 201 (NOT_READY). Otherwise it would have none until its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coherer import limits
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.tubemq.records import valid_topic
from coherer._rules.tubemq.registry import Producer
from coherer._server.tubemq.master.access import Identity
from coherer._server.tubemq.master.state import MasterState, Peer
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import TopicInfo

NO_BROKERS: Final = -1
"""The check sum of a producer that knows no brokers yet."""


class ProducerHandler:
    """Answers the requests of producers."""

    def __init__(self, state: MasterState) -> None:
        self._state = state

    def register(
        self, request: pb.RegisterRequestP2M, peer: Peer, now_ms: int
    ) -> pb.RegisterResponseM2P:
        """Method 1: check the producer, in Java's order, and send the list of brokers."""
        state = self._state
        identity = state.authenticator.producer(request.clientId, request.authInfo, now_ms)
        topics = _check(request.clientId, request.hostName, request.topicList)
        state.require_active(request.clientId)
        if len(state.producers) >= limits.CLIENTS_MAX:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many producers.")
        producer = Producer(request.clientId, request.hostName, peer.secure, topics)
        producer.existing_topics.update(topic for topic in topics if topic in state.catalog.topics)
        producer.returned = request.brokerCheckSum not in {NO_BROKERS, state.broker_list_id}
        state.producers.register(producer, now_ms)
        return pb.RegisterResponseM2P(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerCheckSum=state.broker_list_id,
            brokerInfos=state.broker_list(secure=peer.secure),
            authorizedInfo=state.authorized(identity),
            appdConfig=self._limits(request.appdConfig),
            webPort=state.options.web_port or None,
            masterId=state.master_id,
        )

    def heartbeat(
        self, request: pb.HeartRequestP2M, peer: Peer, now_ms: int
    ) -> pb.HeartResponseM2P:
        """Method 2: send the writable partitions of the producer's topics."""
        state = self._state
        identity = self._identify(request, now_ms)
        topics = _check(request.clientId, request.hostName, request.topicList)
        state.require_active(request.clientId)
        producer = state.producers.seen(request.clientId, now_ms)
        if producer is None:
            raise _not_registered(request.clientId)
        producer.topics = topics
        new = [topic for topic in topics if topic not in producer.existing_topics]
        if new:
            state.create_missing(new, request.clientId)
            producer.existing_topics.update(topic for topic in new if topic in state.catalog.topics)
        answer = pb.HeartResponseM2P(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerCheckSum=state.broker_list_id,
            # Not `now_ms`: a topic created above is reported by its broker at a later time.
            topicInfos=self._topic_infos(topics, state.now_ms()),
            authorizedInfo=state.authorized(identity),
            appdConfig=self._limits(request.appdConfig),
        )
        if request.brokerCheckSum != state.broker_list_id:
            answer.brokerInfos.extend(state.broker_list(secure=peer.secure))
        if producer.returned and self._awaits_brokers(topics):
            answer.errCode = ResultCode.NOT_READY
        if identity.must_sign:
            answer.requireAuth = True
        return answer

    def close(self, request: pb.CloseRequestP2M, peer: Peer, now_ms: int) -> pb.CloseResponseM2P:
        """Method 3: remove the producer."""
        del peer
        state = self._state
        state.authenticator.producer(request.clientId, request.authInfo, now_ms)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        state.require_active(request.clientId)
        state.producers.close(request.clientId)
        return pb.CloseResponseM2P(success=True, errCode=ResultCode.SUCCESS, errMsg="OK!")

    def _identify(self, request: pb.HeartRequestP2M, now_ms: int) -> Identity:
        try:
            return self._state.authenticator.producer(request.clientId, request.authInfo, now_ms)
        except Refusal:
            # An unknown producer can only have a token from an earlier run of the master. After
            # 415, a Java producer would repeat the same heartbeat forever; after 411 it registers
            # again, and signs.
            if not request.authInfo.HasField("authInfo") and not self._state.producers.known(
                request.clientId
            ):
                self._state.require_active(request.clientId)
                raise _not_registered(request.clientId) from None
            raise

    def _awaits_brokers(self, topics: Iterable[str]) -> bool:
        state, now_ms = self._state, self._state.now_ms()
        if now_ms >= state.began_ms + state.options.broker_return_ms:
            return False
        return any(state.broker_registry.awaits_broker(topic, now_ms) for topic in topics)

    def _topic_infos(self, topics: Iterable[str], now_ms: int) -> list[str]:
        state = self._state
        infos: list[str] = []
        for topic in topics:
            found = state.broker_registry.publishable(topic, now_ms)
            if found:
                brokers = {broker: (hosted.partitions, hosted.stores) for broker, hosted in found}
                limit = state.catalog.message_bytes_max(topic)
                infos.append(TopicInfo(topic, brokers, limit).text())
        return infos

    def _limits(self, held: pb.ApprovedClientConfig) -> pb.ApprovedClientConfig:
        cluster = self._state.catalog.cluster
        config = pb.ApprovedClientConfig(configId=cluster.stamp.serial)
        if held.configId != config.configId:
            config.maxMsgSize = cluster.message_bytes_max
        return config


def _check(client_id: str, host: str, topics: Iterable[str]) -> tuple[str, ...]:
    check_text("clientId", client_id, limits.CLIENT_ID_CHARS_MAX)
    check_text("hostName", host, limits.HOST_CHARS_MAX)
    named = tuple(dict.fromkeys(topics))
    if HISTORY_TOPIC in named:
        raise Refusal(ResultCode.BAD_REQUEST, f"Topic {HISTORY_TOPIC} is for brokers only.")
    if len(named) > limits.TOPICS_PER_CLIENT_MAX:
        raise Refusal(
            ResultCode.BAD_REQUEST,
            f"{len(named)} topics; {limits.TOPICS_PER_CLIENT_MAX} are allowed.",
        )
    return tuple(topic for topic in named if valid_topic(topic))


def _not_registered(client_id: str) -> Refusal:
    return Refusal(ResultCode.HB_NO_NODE, f"Producer {client_id} is not registered here.")
