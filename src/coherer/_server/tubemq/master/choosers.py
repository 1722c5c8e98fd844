"""Methods 20 to 22: consumers that choose their partitions themselves (section 5).

The master gives them the list of brokers and of partitions, checks that the group agrees, and keeps
the group out of its balance.
"""

from __future__ import annotations

import msgspec

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import ConsumerGroup, GroupKind, GroupSubscription, Member
from coherer._rules.tubemq.records import UNDEFINED, TopicStatus
from coherer._server.tubemq.master.access import Proof
from coherer._server.tubemq.master.entry import Entry, read_filters, unknown
from coherer._server.tubemq.master.state import Caller, MasterState
from coherer._server.tubemq.refusal import Refusal
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import PartSub, TopicMeta
from coherer.errors import ProtocolError


class _Meta(msgspec.Struct, frozen=True):
    """What a group was told about its partitions, and under which id."""

    id: int
    texts: tuple[str, ...]


class ChooserDesk:
    """Serves consumers that balance themselves."""

    def __init__(self, state: MasterState, entry: Entry) -> None:
        self._state = state
        self._entry = entry
        self._metas: dict[str, _Meta] = {}

    # -- method 20

    def register(
        self, request: pb.RegisterRequestC2MV2, caller: Caller, now_ms: int
    ) -> pb.RegisterResponseM2CV2:
        """Method 20: checks, then the consumer is in its group."""
        client_id, group_name = request.clientId, request.groupName

        def enter(time_ms: int) -> ConsumerGroup:
            return self._enter(request, caller, time_ms)

        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, request.hostName, group_name)
        group: ConsumerGroup | None = None
        if proof is None:
            self._entry.wait(request, (group_name, client_id), enter, now_ms)
        else:
            group = enter(now_ms)
        return pb.RegisterResponseM2CV2(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            brokerConfigList=self._brokers(request.subRepInfo.brokerConfigId, caller),
            opsTaskInfo=self._tasks(group_name, group, request.opsTaskInfo, proof),
            authorizedInfo=self._state.authorized(proof),
        )

    def _enter(
        self, request: pb.RegisterRequestC2MV2, caller: Caller, now_ms: int
    ) -> ConsumerGroup:
        # Who chooses among partitions, or just looks what there is, makes no topics.
        topics = self._entry.check_topics(request.topicList, request.clientId, create=False)
        filters = read_filters(request.topicCondition, topics)
        count, node_id = request.sourceCount, request.nodeId
        if count > 0 and not 0 <= node_id < count:
            raise Refusal(ResultCode.BAD_REQUEST, f"nodeId {node_id} is not within 0..{count - 1}.")
        self._entry.check_rights(request.groupName, topics, filters)
        subscription = GroupSubscription(
            kind=GroupKind.CLIENT_BALANCED,
            topics=topics,
            filters=filters,
            source_count=count if count > 0 else UNDEFINED,
        )
        member = Member(
            id=request.clientId,
            host=request.hostName,
            address=caller.host,
            secure=caller.secure,
            node_id=node_id if count > 0 else UNDEFINED,
        )
        group = self._entry.join(request.groupName, member, subscription, now_ms)
        self._report(group, member, request.subRepInfo, now_ms)
        return group

    # -- method 21

    def heartbeat(
        self, request: pb.HeartRequestC2MV2, caller: Caller, now_ms: int
    ) -> pb.HeartResponseM2CV2:
        """Method 21: takes reports; lists only where the client's are old."""
        client_id, group_name = request.clientId, request.groupName
        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, None, group_name)
        held = request.subRepInfo
        answer = pb.HeartResponseM2CV2(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            brokerConfigList=self._brokers(held.brokerConfigId, caller),
            authorizedInfo=self._state.authorized(proof),
        )
        group: ConsumerGroup | None = None
        if self._entry.admit(group_name, client_id, proof, now_ms):
            group, member = self._find(group_name, client_id, now_ms)
            self._report(group, member, held, now_ms)
            old_ms = held.lstAssignedTime + self._state.options.meta_update_ms
            if held.HasField("lstAssignedTime") and member.held and now_ms > old_ms:
                meta = self._meta(group, now_ms)
                answer.topicMetaInfoId = meta.id
                if held.topicMetaInfoId != meta.id:
                    answer.topicMetaInfoList.extend(meta.texts)
        tasks = self._tasks(group_name, group, request.opsTaskInfo, proof)
        answer.opsTaskInfo.CopyFrom(tasks)
        return answer

    # -- method 22

    def partitions(
        self, request: pb.GetPartMetaRequestC2M, caller: Caller, now_ms: int
    ) -> pb.GetPartMetaResponseM2C:
        """Method 22: the list of partitions."""
        client_id, group_name = request.clientId, request.groupName
        proof = self._entry.proof(request.authInfo, client_id, now_ms)
        self._entry.check_names(client_id, None, group_name)
        if not self._entry.admit(group_name, client_id, proof, now_ms):
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, "Sign in first.")
        group, _ = self._find(group_name, client_id, now_ms)
        meta = self._meta(group, now_ms)
        answer = pb.GetPartMetaResponseM2C(
            errCode=ResultCode.SUCCESS,
            errMsg="OK!",
            brokerConfigId=self._state.broker_list_id,
            topicMetaInfoId=meta.id,
            brokerConfigList=self._brokers(request.brokerConfigId, caller),
        )
        if request.topicMetaInfoId != meta.id:
            answer.topicMetaInfoList.extend(meta.texts)
        return answer

    # -- inside

    def _find(self, group_name: str, client_id: str, now_ms: int) -> tuple[ConsumerGroup, Member]:
        found = self._state.groups.seen(group_name, client_id, now_ms)
        if found is None:
            raise unknown(group_name, client_id)
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

    def _brokers(self, held_id: int, caller: Caller) -> list[str]:
        if held_id == self._state.broker_list_id:
            return []
        return self._state.broker_list(secure=caller.secure)

    def _tasks(
        self,
        group_name: str,
        group: ConsumerGroup | None,
        held: pb.OpsTaskInfo,
        proof: Proof | None,
    ) -> pb.OpsTaskInfo:
        # A client that holds no rules leaves the ids out, and as Java we answer only what differs.
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
        if proof is None or proof.require:
            tasks.requireAuth = True
        return tasks

    def _meta(self, group: ConsumerGroup, now_ms: int) -> _Meta:
        texts = tuple(
            self._topic_meta(topic, now_ms) for topic in sorted(group.subscription.topics)
        )
        known = self._metas.get(group.name)
        if known is not None and known.texts == texts:
            return known
        for name in [name for name in self._metas if self._state.groups.get(name) is None]:
            del self._metas[name]
        meta = self._metas[group.name] = _Meta(self._state.new_id(), texts)
        return meta

    def _topic_meta(self, topic: str, now_ms: int) -> str:
        open_brokers = dict(self._state.broker_registry.subscribable(topic, now_ms))
        places: dict[int, tuple[int, int, bool]] = {}
        for broker, deployment in sorted(self._state.catalog.topics.get(topic, {}).items()):
            hosted = open_brokers.get(broker)
            if hosted is not None:
                places[broker] = hosted.stores, hosted.partitions, True
            elif deployment.status is TopicStatus.OK:
                places[broker] = deployment.props.stores, deployment.props.partitions, False
        return TopicMeta(topic, places).text()


def _held_id(held: pb.OpsTaskInfo, field: str) -> int:
    return int(getattr(held, field)) if held.HasField(field) else UNDEFINED
