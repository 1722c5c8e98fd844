"""Methods 4 to 6: consumers (docs/protocol/tubemq.md, sections 4.2, 4.3, 7.5 and 7.6).

The rules of balancing are in `coherer._rules.tubemq.groups`. Difference from Java's master: a group
that has changed is balanced during a member's heartbeat, before it is answered. A new consumer thus
gets its partitions with its first heartbeat, and a rebalance takes no longer than the reports of
the members. The answers tell Coherer's consumers how often to report (`heartbeatMs`): more often
while partitions are being moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import ConsumerGroup, Event, GroupKind, GroupSubscription, Member
from coherer._rules.tubemq.records import UNDEFINED
from coherer._server.tubemq.master.admission import (
    ConsumerAdmission,
    not_registered,
    read_filters,
)
from coherer._server.tubemq.master.state import MasterState, Peer
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import names
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import ProtocolError

MOVING_HEARTBEAT_MS = 50
"""How often Coherer's consumers report while their group is rebalanced."""


class ConsumerHandler:
    """Answers the requests of consumers whose partitions the master assigns."""

    def __init__(self, state: MasterState, admission: ConsumerAdmission) -> None:
        self._state = state
        self._admission = admission

    def register(
        self, request: pb.RegisterRequestC2M, peer: Peer, now_ms: int
    ) -> pb.RegisterResponseM2C:
        """Method 4: check the consumer, in Java's order, and add it to its group."""
        client_id, group_name = request.clientId, request.groupName

        def join(time_ms: int) -> ConsumerGroup:
            return self._join(request, peer, time_ms)

        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, request.hostName, group_name)
        answer = pb.RegisterResponseM2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            notAllocated=True,
            authorizedInfo=self._state.authorized(identity),
            heartbeatMs=MOVING_HEARTBEAT_MS,
        )
        if identity is None:
            self._admission.defer(request, (group_name, client_id), join, now_ms)
        else:
            topics = self._state.catalog.topics
            missing = [topic for topic in request.topicList if topic not in topics]
            answer.notAllocated = not join(now_ms).allocated
            answer.createdTopics.extend(topic for topic in missing if topic in topics)
        if request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId"):
            self._add_rules(answer, group_name, request.defFlowCheckId, request.groupFlowCheckId)
        return answer

    def _join(self, request: pb.RegisterRequestC2M, peer: Peer, now_ms: int) -> ConsumerGroup:
        topics = self._admission.check_topics(request.topicList, request.clientId)
        filters = read_filters(request.topicCondition, topics)
        member = Member(
            id=request.clientId,
            host=request.hostName,
            address=peer.host,
            secure=peer.secure,
        )
        member.held = self._held(request.subscribeInfo, member)
        kind = GroupKind.BOUND if request.requireBound else GroupKind.NORMAL
        if request.requireBound:
            member.named = self._check_bound(request, topics, now_ms)
            member.allocated = request.HasField("notAllocated") and not request.notAllocated
        self._admission.check_rights(request.groupName, topics, filters)
        subscription = GroupSubscription(
            kind=kind,
            topics=topics,
            filters=filters,
            session_key=request.sessionKey if request.requireBound else "",
            # As in Java, the larger of two named offsets is used by default.
            select_big=request.requireBound
            and (request.selectBig or not request.HasField("selectBig")),
            source_count=request.totalCount if request.requireBound else UNDEFINED,
        )
        return self._admission.join(request.groupName, member, subscription, now_ms)

    def _check_bound(
        self, request: pb.RegisterRequestC2M, topics: Iterable[str], now_ms: int
    ) -> Mapping[Partition, int]:
        state = self._state
        named = _named(request.requiredPartition, frozenset(topics))
        check_text("sessionKey", request.sessionKey, 1024)
        if request.totalCount <= 0:
            raise Refusal(
                ResultCode.BAD_REQUEST, f"totalCount is {request.totalCount}; it must be above 0."
            )
        if (
            state.options.start_offset_check
            and request.groupName not in state.catalog.group_controls
        ):
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Group {request.groupName} has no record that permits it to name offsets.",
            )
        brokers = max(len(state.broker_registry.subscribable(topic, now_ms)) for topic in topics)
        rate_max = state.broker_rate_max(request.groupName)
        if brokers // request.totalCount > rate_max:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"{brokers} brokers for {request.totalCount} consumers; {rate_max} per consumer "
                f"are allowed.",
            )
        return named

    def heartbeat(
        self, request: pb.HeartRequestC2M, peer: Peer, now_ms: int
    ) -> pb.HeartResponseM2C:
        """Method 5: record reports and acknowledgements; send at most one event."""
        del peer
        client_id, group_name = request.clientId, request.groupName
        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, None, group_name)
        answer = pb.HeartResponseM2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            notAllocated=True,
            authorizedInfo=self._state.authorized(identity),
            heartbeatMs=MOVING_HEARTBEAT_MS,
        )
        if identity is None or identity.must_sign:
            answer.requireAuth = True
        if self._admission.admit(group_name, client_id, identity, now_ms):
            self._process(request, answer, now_ms)
        if request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId"):
            self._add_rules(answer, group_name, request.defFlowCheckId, request.groupFlowCheckId)
        return answer

    def _process(
        self, request: pb.HeartRequestC2M, answer: pb.HeartResponseM2C, now_ms: int
    ) -> None:
        found = self._state.groups.seen(request.groupName, request.clientId, now_ms)
        if found is None:
            raise not_registered(request.groupName, request.clientId)
        group, member = found
        if request.reportSubscribeInfo:
            group.report(member, self._held(request.subscribeInfo, member), now_ms)
        if request.event.rebalanceId > 0:
            group.acknowledge(
                member,
                request.event.rebalanceId,
                now_ms,
                reported=request.reportSubscribeInfo,
            )
        self._state.balance(group, now_ms)
        event = group.next_event(member, now_ms)
        if event is not None:
            answer.event.CopyFrom(self._event(event, group, member))
        answer.notAllocated = not group.allocated
        if not group.unfinished:
            answer.heartbeatMs = self._state.options.consumer_heartbeat_ms

    def _event(self, event: Event, group: ConsumerGroup, member: Member) -> pb.EventProto:
        catalog = self._state.catalog.brokers
        brokers = {
            broker: self._state.broker_info(broker, secure=member.secure)
            for broker in {partition.broker for partition in event.partitions}
            if broker in catalog
        }
        return pb.EventProto(
            rebalanceId=event.id,
            opType=event.kind,
            subscribeInfo=[
                names.SubscribeInfo(
                    member.id,
                    group.name,
                    names.Partition(brokers[partition.broker], partition.topic, partition.number),
                ).text()
                for partition in event.partitions
                if partition.broker in brokers
            ],
        )

    def close(self, request: pb.CloseRequestC2M, peer: Peer, now_ms: int) -> pb.CloseResponseM2C:
        """Method 6: remove the consumer from its group, client-balanced ones included."""
        del peer
        client_id, group_name = request.clientId, request.groupName
        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, None, group_name)
        if identity is None:
            self._admission.forget(group_name, client_id)
        else:
            self._state.groups.leave(group_name, client_id, now_ms)
        return pb.CloseResponseM2C(success=True, errCode=ResultCode.SUCCESS, errMsg="OK!")

    def _held(self, texts: Iterable[str], member: Member) -> frozenset[Partition]:
        """The partitions that a consumer claims to hold; malformed texts are ignored."""
        found: set[Partition] = set()
        for text in texts:
            try:
                partition = names.SubscribeInfo.parse(text).partition
            except ProtocolError:
                continue
            found.add(Partition(partition.broker.id, partition.topic, partition.id))
        return self._state.plausible(found, member)

    def _add_rules(
        self,
        answer: pb.RegisterResponseM2C | pb.HeartResponseM2C,
        group: str,
        default_id: int,
        group_id: int,
    ) -> None:
        answer.defFlowCheckId, answer.defFlowControlInfo = self._state.flow_rules(default_id)
        own_id, rules, priority = self._state.group_rules(group, group_id)
        answer.groupFlowCheckId, answer.groupFlowControlInfo = own_id, rules
        answer.ssdStoreId = UNDEFINED
        answer.qryPriorityId = priority


def _named(text: str, topics: frozenset[str]) -> dict[Partition, int]:
    """The partitions and offsets that a bound consumer names."""
    try:
        required = names.parse_required_partitions(text)
    except ProtocolError as error:
        raise Refusal(ResultCode.BAD_REQUEST, error.text) from None
    named: dict[Partition, int] = {}
    for key, offset in required.items():
        broker, topic, number = key.split(":")
        if topic not in topics:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Partition {key[:200]} belongs to a topic that is not subscribed.",
            )
        named[Partition(int(broker), topic, int(number))] = offset
    return named
