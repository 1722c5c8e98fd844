"""Methods 20 to 22: client-balanced consumers (docs/protocol/tubemq.md, section 5).

These consumers choose their partitions themselves. The master sends them the lists of brokers and
partitions, checks that the members of a group agree, and leaves the group out of its balance.
"""

from __future__ import annotations

import msgspec

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import ConsumerGroup, GroupKind, GroupSubscription, Member
from coherer._rules.tubemq.records import UNDEFINED, TopicStatus
from coherer._server.tubemq.master.access import Identity
from coherer._server.tubemq.master.admission import (
    ConsumerAdmission,
    not_registered,
    read_filters,
)
from coherer._server.tubemq.master.state import MasterState, Peer
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import PartSub, TopicMeta
from coherer.errors import ProtocolError


class _TopicMetadata(msgspec.Struct, frozen=True):
    """The partitions of a group's topics as texts, and the id that clients echo."""

    id: int
    texts: tuple[str, ...]


class ClientBalancedHandler:
    """Answers the requests of client-balanced consumers."""

    def __init__(self, state: MasterState, admission: ConsumerAdmission) -> None:
        self._state = state
        self._admission = admission
        self._metadata: dict[str, _TopicMetadata] = {}

    def register(
        self, request: pb.RegisterRequestC2MV2, peer: Peer, now_ms: int
    ) -> pb.RegisterResponseM2CV2:
        """Method 20: check the consumer and add it to its group."""
        client_id, group_name = request.clientId, request.groupName

        def join(time_ms: int) -> ConsumerGroup:
            return self._join(request, peer, time_ms)

        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, request.hostName, group_name)
        group: ConsumerGroup | None = None
        if identity is None:
            self._admission.defer(request, (group_name, client_id), join, now_ms)
        else:
            group = join(now_ms)
        return pb.RegisterResponseM2CV2(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            brokerConfigList=self._brokers(request.subRepInfo.brokerConfigId, peer),
            opsTaskInfo=self._tasks(group_name, group, request.opsTaskInfo, identity),
            authorizedInfo=self._state.authorized(identity),
        )

    def _join(self, request: pb.RegisterRequestC2MV2, peer: Peer, now_ms: int) -> ConsumerGroup:
        # A client that chooses partitions, or only looks at them, does not create topics.
        topics = self._admission.check_topics(request.topicList, request.clientId, create=False)
        filters = read_filters(request.topicCondition, topics)
        count, node_id = request.sourceCount, request.nodeId
        if count > 0 and not 0 <= node_id < count:
            raise Refusal(ResultCode.BAD_REQUEST, f"nodeId {node_id} is not within 0..{count - 1}.")
        self._admission.check_rights(request.groupName, topics, filters)
        subscription = GroupSubscription(
            kind=GroupKind.CLIENT_BALANCED,
            topics=topics,
            filters=filters,
            source_count=count if count > 0 else UNDEFINED,
        )
        member = Member(
            id=request.clientId,
            host=request.hostName,
            address=peer.host,
            secure=peer.secure,
            node_id=node_id if count > 0 else UNDEFINED,
        )
        group = self._admission.join(request.groupName, member, subscription, now_ms)
        self._report(group, member, request.subRepInfo, now_ms)
        return group

    def heartbeat(
        self, request: pb.HeartRequestC2MV2, peer: Peer, now_ms: int
    ) -> pb.HeartResponseM2CV2:
        """Method 21: record the reported partitions; send lists that the client lacks."""
        client_id, group_name = request.clientId, request.groupName
        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, None, group_name)
        held = request.subRepInfo
        answer = pb.HeartResponseM2CV2(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            brokerConfigList=self._brokers(held.brokerConfigId, peer),
            authorizedInfo=self._state.authorized(identity),
        )
        group: ConsumerGroup | None = None
        if self._admission.admit(group_name, client_id, identity, now_ms):
            group, member = self._find(group_name, client_id, now_ms)
            self._report(group, member, held, now_ms)
            old_ms = held.lstAssignedTime + self._state.options.meta_update_ms
            if held.HasField("lstAssignedTime") and member.held and now_ms > old_ms:
                metadata = self._topic_metadata(group, now_ms)
                answer.topicMetaInfoId = metadata.id
                if held.topicMetaInfoId != metadata.id:
                    answer.topicMetaInfoList.extend(metadata.texts)
        tasks = self._tasks(group_name, group, request.opsTaskInfo, identity)
        answer.opsTaskInfo.CopyFrom(tasks)
        return answer

    def partition_metadata(
        self, request: pb.GetPartMetaRequestC2M, peer: Peer, now_ms: int
    ) -> pb.GetPartMetaResponseM2C:
        """Method 22: send the list of partitions."""
        client_id, group_name = request.clientId, request.groupName
        identity = self._admission.identify(request.authInfo, client_id, now_ms)
        self._admission.check_names(client_id, None, group_name)
        if not self._admission.admit(group_name, client_id, identity, now_ms):
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, "Sign in first.")
        group, _ = self._find(group_name, client_id, now_ms)
        metadata = self._topic_metadata(group, now_ms)
        answer = pb.GetPartMetaResponseM2C(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            topicMetaInfoId=metadata.id,
            brokerConfigList=self._brokers(request.brokerConfigId, peer),
        )
        if request.topicMetaInfoId != metadata.id:
            answer.topicMetaInfoList.extend(metadata.texts)
        return answer

    def _find(self, group_name: str, client_id: str, now_ms: int) -> tuple[ConsumerGroup, Member]:
        found = self._state.groups.seen(group_name, client_id, now_ms)
        if found is None:
            raise not_registered(group_name, client_id)
        return found

    def _report(
        self, group: ConsumerGroup, member: Member, held: pb.ClientSubRepInfo, now_ms: int
    ) -> None:
        if not held.reportSubInfo:
            return
        partitions: set[Partition] = set()
        for text in held.partSubInfo:
            try:
                part = PartSub.parse(text)
            except ProtocolError:
                continue
            partitions.update(Partition(broker, part.topic, id_) for broker, id_ in part.partitions)
        group.report(member, self._state.plausible(partitions, member), now_ms)

    def _brokers(self, held_id: int, peer: Peer) -> list[str]:
        if held_id == self._state.broker_list_id:
            return []
        return self._state.broker_list(secure=peer.secure)

    def _tasks(
        self,
        group_name: str,
        group: ConsumerGroup | None,
        held: pb.OpsTaskInfo,
        identity: Identity | None,
    ) -> pb.OpsTaskInfo:
        # A client without rules leaves the ids out. As in Java, the answer has only differences.
        state = self._state
        default_id, default_rules = state.flow_rules(_held_id(held, "defFlowCheckId"))
        own_id, rules, priority = state.group_rules(group_name, _held_id(held, "groupFlowCheckId"))
        tasks = pb.OpsTaskInfo()
        if default_id != _held_id(held, "defFlowCheckId"):
            tasks.defFlowCheckId, tasks.defFlowControlInfo = default_id, default_rules
        if own_id != _held_id(held, "groupFlowCheckId"):
            tasks.groupFlowCheckId, tasks.groupFlowControlInfo = own_id, rules
        if priority != _held_id(held, "qryPriorityId"):
            tasks.qryPriorityId = priority
        if group is not None and 0 <= group.from_max_id != held.csmFrmMaxOffsetCtrlId:
            tasks.csmFrmMaxOffsetCtrlId = group.from_max_id
        if identity is None or identity.must_sign:
            tasks.requireAuth = True
        return tasks

    def _topic_metadata(self, group: ConsumerGroup, now_ms: int) -> _TopicMetadata:
        texts = tuple(
            self._topic_text(topic, now_ms) for topic in sorted(group.subscription.topics)
        )
        known = self._metadata.get(group.name)
        if known is not None and known.texts == texts:
            return known
        for name in [name for name in self._metadata if self._state.groups.get(name) is None]:
            del self._metadata[name]
        fresh = self._metadata[group.name] = _TopicMetadata(self._state.new_id(), texts)
        return fresh

    def _topic_text(self, topic: str, now_ms: int) -> str:
        open_brokers = dict(self._state.broker_registry.subscribable(topic, now_ms))
        brokers: dict[int, tuple[int, int, bool]] = {}
        for broker, deployment in sorted(self._state.catalog.topics.get(topic, {}).items()):
            hosted = open_brokers.get(broker)
            if hosted is not None:
                brokers[broker] = hosted.stores, hosted.partitions, True
            elif deployment.status is TopicStatus.OK:
                brokers[broker] = deployment.props.stores, deployment.props.partitions, False
        return TopicMeta(topic, brokers).text()


def _held_id(held: pb.OpsTaskInfo, field: str) -> int:
    return int(getattr(held, field)) if held.HasField(field) else UNDEFINED
