"""Methods 4 to 6: consumers that the master gives partitions to (sections 4.2, 4.3, 7.5, 7.6).

Balance itself stands in `_rules.tubemq.groups`. Different from Java's master: a group that has
changed is balanced in the heartbeat that asks, before it is answered, so that a new consumer has
its partitions with its first heartbeat and the rest of a move travels as fast as members report.
Our own consumers are told how often to report (`heartbeatMs`): more often while something is to be
moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import ConsumerGroup, Event, GroupKind, GroupSubscription, Member
from coherer._rules.tubemq.records import UNDEFINED
from coherer._server.tubemq.master.entry import Entry, read_filters, unknown
from coherer._server.tubemq.master.state import Caller, MasterState
from coherer._server.tubemq.refusal import Refusal, check_text
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import names
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import ProtocolError

MOVING_HEARTBEAT_MS = 50
"""How often our own consumers report while their group is being moved."""


class ConsumerDesk:
    """Registers consumers and tells them which partitions to take and to give up."""

    def __init__(self, state: MasterState, entry: Entry) -> None:
        self._state = state
        self._entry = entry

    # -- method 4

    def register(
        self, request: pb.RegisterRequestC2M, caller: Caller, now_ms: int
    ) -> pb.RegisterResponseM2C:
        """Method 4: checks in Java's order, then the consumer is in its group."""
        client_id, group_name = request.clientId, request.groupName

        def enter(time_ms: int) -> ConsumerGroup:
            return self._enter(request, caller, time_ms)

        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, request.hostName, group_name)
        answer = pb.RegisterResponseM2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            notAllocated=True,
            authorizedInfo=self._state.authorized(proof),
            heartbeatMs=MOVING_HEARTBEAT_MS,
        )
        if proof is None:
            self._entry.wait(request, (group_name, client_id), enter, now_ms)
        else:
            answer.notAllocated = not enter(now_ms).allocated
        if request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId"):
            self._add_rules(answer, group_name, request.defFlowCheckId, request.groupFlowCheckId)
        return answer

    def _enter(self, request: pb.RegisterRequestC2M, caller: Caller, now_ms: int) -> ConsumerGroup:
        topics = self._entry.check_topics(request.topicList, request.clientId)
        filters = read_filters(request.topicCondition, topics)
        member = Member(
            id=request.clientId,
            host=request.hostName,
            address=caller.host,
            secure=caller.secure,
        )
        member.held = self._held(request.subscribeInfo, member)
        kind = GroupKind.BOUND if request.requireBound else GroupKind.NORMAL
        if request.requireBound:
            member.named = self._check_bound(request, topics, now_ms)
            member.allocated = request.HasField("notAllocated") and not request.notAllocated
        self._entry.check_rights(request.groupName, topics, filters)
        subscription = GroupSubscription(
            kind=kind,
            topics=topics,
            filters=filters,
            session_key=request.sessionKey if request.requireBound else "",
            select_big=_selects_big(request) if request.requireBound else False,
            source_count=request.totalCount if request.requireBound else UNDEFINED,
        )
        return self._entry.join(request.groupName, member, subscription, now_ms)

    def _check_bound(
        self, request: pb.RegisterRequestC2M, topics: Iterable[str], now_ms: int
    ) -> Mapping[Partition, int]:
        state = self._state
        named = _named(request.requiredPartition, frozenset(topics))
        check_text("sessionKey", request.sessionKey, 1024)
        if request.totalCount <= 0:
            raise Refusal(
                ResultCode.BAD_REQUEST, f"totalCount is {request.totalCount}, not above 0."
            )
        if (
            state.options.start_offset_check
            and request.groupName not in state.catalog.group_controls
        ):
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"Group {request.groupName} has no record that lets it name offsets.",
            )
        brokers = max(len(state.broker_registry.subscribable(topic, now_ms)) for topic in topics)
        rate_max = state.broker_rate_max(request.groupName)
        if brokers // request.totalCount > rate_max:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"{brokers} brokers for {request.totalCount} consumers; {rate_max} for each are "
                f"allowed.",
            )
        return named

    # -- method 5

    def heartbeat(
        self, request: pb.HeartRequestC2M, caller: Caller, now_ms: int
    ) -> pb.HeartResponseM2C:
        """Method 5: takes reports and acknowledgements, and gives at most one event."""
        del caller
        client_id, group_name = request.clientId, request.groupName
        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, None, group_name)
        answer = pb.HeartResponseM2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            notAllocated=True,
            authorizedInfo=self._state.authorized(proof),
            heartbeatMs=MOVING_HEARTBEAT_MS,
        )
        if proof is None or proof.require:
            answer.requireAuth = True
        if self._entry.admit(group_name, client_id, proof, now_ms):
            self._book(request, answer, now_ms)
        if request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId"):
            self._add_rules(answer, group_name, request.defFlowCheckId, request.groupFlowCheckId)
        return answer

    def _book(self, request: pb.HeartRequestC2M, answer: pb.HeartResponseM2C, now_ms: int) -> None:
        found = self._state.groups.seen(request.groupName, request.clientId, now_ms)
        if found is None:
            raise unknown(request.groupName, request.clientId)
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

    # -- method 6

    def close(
        self, request: pb.CloseRequestC2M, caller: Caller, now_ms: int
    ) -> pb.CloseResponseM2C:
        """Method 6: the consumer leaves its group, of whichever kind it is."""
        del caller
        client_id, group_name = request.clientId, request.groupName
        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, None, group_name)
        if proof is None:
            self._entry.forget(group_name, client_id)
        else:
            self._state.groups.leave(group_name, client_id, now_ms)
        return pb.CloseResponseM2C(success=True, errCode=ResultCode.SUCCESS, errMsg="OK!")

    def _held(self, texts: Iterable[str], member: Member) -> frozenset[Partition]:
        """What a consumer says that it holds; what cannot be read is not held."""
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


def _selects_big(request: pb.RegisterRequestC2M) -> bool:
    """Whether the larger wins where two name an offset for one partition; Java's default."""
    return request.selectBig or not request.HasField("selectBig")


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
                ResultCode.BAD_REQUEST, f"Partition {key[:200]} is of a topic that is not consumed."
            )
        named[Partition(int(broker), topic, int(number))] = offset
    return named
