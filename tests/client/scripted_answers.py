"""What the scripted TubeMQ cluster answers when a test says nothing else, by method."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods, payload
from coherer._wire.tubemq.names import Partition, SubscribeInfo

if TYPE_CHECKING:
    from tests.client.scripted_cluster import Asked, FakeCluster, Script


class Member:
    """A consumer, as the master sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[str] = []  # what it says that it holds
        self.events: deque[pb.EventProto] = deque()
        self.registration: pb.RegisterRequestC2M = pb.RegisterRequestC2M()


def _token() -> pb.MasterAuthorizedInfo:
    return pb.MasterAuthorizedInfo(visitAuthorizedToken=4711)


def producer_register(asked: Asked) -> None:
    cluster = asked.cluster
    cluster.producers.add(asked.message.clientId)
    asked.answer(
        brokerCheckSum=cluster.check_sum,
        brokerInfos=[broker.text() for broker in cluster.brokers],
        authorizedInfo=_token(),
        appdConfig=pb.ApprovedClientConfig(configId=3),
    )


def producer_heartbeat(asked: Asked) -> None:
    cluster = asked.cluster
    if asked.message.clientId not in cluster.producers:
        asked.refuse(411, "who?")
        return
    infos = [broker.text() for broker in cluster.brokers]
    places = {
        topic: ",".join(f"{broker.id}:{cluster.topics[topic]}:1" for broker in cluster.brokers)
        for topic in asked.message.topicList
        if topic in cluster.topics
    }
    asked.answer(
        brokerCheckSum=cluster.check_sum,
        brokerInfos=infos if asked.message.brokerCheckSum != cluster.check_sum else [],
        topicInfos=[f"{topic}#{text}#" for topic, text in places.items() if text],
        authorizedInfo=_token(),
        appdConfig=pb.ApprovedClientConfig(configId=3),
    )


def producer_close(asked: Asked) -> None:
    asked.cluster.producers.discard(asked.message.clientId)
    asked.answer()


def send(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    log = cluster.logs[message.topicName, message.partitionId]
    log.append((message.data, message.flag, message.msgType))
    asked.answer(errMsg="77", messageId=77, appendTime=1_700_000_000_000, appendOffset=len(log) - 1)
    cluster.release()


def consumer_register(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    missing = [topic for topic in message.topicList if topic not in cluster.topics]
    if missing:
        asked.refuse(431, f"no topic {missing[0]}")
        return
    member = Member(message.clientId)
    member.registration = message
    member.told = list(message.subscribeInfo)
    cluster.groups[message.groupName][message.clientId] = member
    asked.answer(authorizedInfo=_token(), notAllocated=True, **cluster.extra)


def consumer_heartbeat(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    member = cluster.groups[message.groupName].get(message.clientId)
    if member is None:
        asked.refuse(411, "who?")
        return
    if message.reportSubscribeInfo:
        member.told = list(message.subscribeInfo)
    if message.event.rebalanceId > 0 and member.events:
        member.events.popleft()
    if cluster.balances and not member.events:
        _balance(cluster, message.groupName, member)
    fields = dict(cluster.extra)
    if member.events and not member.events[0].status:
        member.events[0].status = 1
        told = pb.EventProto()
        told.CopyFrom(member.events[0])
        told.ClearField("status")
        fields["event"] = told
    asked.answer(authorizedInfo=_token(), notAllocated=False, **fields)


def _balance(cluster: FakeCluster, group: str, member: Member) -> None:
    owned = {
        SubscribeInfo.parse(text).partition
        for other in cluster.groups[group].values()
        for text in [*other.told, *(text for event in other.events for text in event.subscribeInfo)]
    }
    wanted = [
        partition
        for topic in member.registration.topicList
        for partition in cluster.partitions(topic)
        if partition not in owned
    ]
    if wanted:
        cluster.instruct(group, member.name, 10, *wanted)


def chooser_register(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    missing = [topic for topic in message.topicList if topic not in cluster.topics]
    if missing:
        asked.refuse(431, f"no topic {missing[0]}")
        return
    cluster.groups[message.groupName][message.clientId] = cluster.member(*message.topicList)
    asked.answer(
        brokerConfigId=cluster.check_sum,
        brokerConfigList=[broker.text() for broker in cluster.brokers],
        authorizedInfo=_token(),
    )


def partition_meta(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    member = cluster.groups[message.groupName][message.clientId]
    places = {
        topic: ",".join(
            f"{broker.id}:1:{cluster.topics[topic]}:{int(broker.id not in cluster.unreadable)}"
            for broker in cluster.brokers
        )
        for topic in member.told
    }
    asked.answer(
        brokerConfigId=cluster.check_sum,
        topicMetaInfoId=1,
        topicMetaInfoList=[f"{topic}#{text}" for topic, text in places.items() if text],
    )


def consumer_close(asked: Asked) -> None:
    groups, message = asked.cluster.groups, asked.message
    groups[message.groupName].pop(message.clientId, None)
    if not groups[message.groupName]:
        del groups[message.groupName]
    asked.answer()


def partition_register(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    key = (message.groupName, message.topicName, message.partitionId)
    holder = cluster.holders.get(key)
    if message.opType == methods.UNREGISTER:
        if holder != message.clientId:
            asked.refuse(411 if holder is None else 412)
            return
        _commit(cluster, key, consumed=message.readStatus == 0)
        del cluster.holders[key]
        asked.answer()
        return
    if holder not in {None, message.clientId}:
        asked.refuse(410, "somebody else's")
        return
    cluster.holders[key] = message.clientId
    cluster.deltas.pop(key, None)
    end = len(cluster.logs[key[1], key[2]])
    step = 1 if cluster.ours else 28
    if message.HasField("currOffset") and message.readStatus != 2:
        cluster.stored[key] = max(0, min(message.currOffset // step, end))
    elif message.readStatus == 2 or (message.readStatus == 1 and key not in cluster.stored):
        cluster.stored[key] = end
    mark = {"offsetStep": 1} if cluster.ours else {}
    asked.answer(currOffset=cluster.stored[key] * step, maxOffset=end * step, **mark)


def partition_heartbeat(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    failures = []
    for text in message.partitionInfo:
        partition = Partition.parse(text)
        key = (message.groupName, partition.topic, partition.id)
        holder = cluster.holders.get(key)
        if holder != message.clientId:
            failures.append(f"{411 if holder is None else 412}:{text}")
    asked.answer(hasPartFailure=bool(failures), failureInfo=failures, requireAuth=False)


def _commit(cluster: FakeCluster, key: tuple[str, str, int], *, consumed: bool) -> None:
    delta = cluster.deltas.pop(key, 0)
    if consumed:
        cluster.stored[key] += delta


def get(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    key = (message.groupName, message.topicName, message.partitionId)
    holder = cluster.holders.get(key)
    if holder != message.clientId:
        asked.refuse(411 if holder is None else 412, currOffset=-1, minLimitTime=-1)
        return
    if message.lastPackConsumed:
        _commit(cluster, key, consumed=True)
        message.lastPackConsumed = False
    log = cluster.logs[key[1], key[2]]
    start = cluster.stored[key]
    found = log[start : start + cluster.package]
    if not found:
        if cluster.holds_gets:
            cluster.hold(asked)
        else:
            asked.refuse(404, "nothing there", currOffset=-1, minLimitTime=-1, currDataDlt=-1)
        return
    cluster.deltas[key] = len(found)
    step = 1 if cluster.ours else 28
    asked.answer(
        messages=[
            pb.TransferedMessage(
                messageId=start + number,
                checkSum=payload.checksum(data),
                payLoadData=data,
                flag=flag,
            )
            for number, (data, flag, _) in enumerate(found)
        ],
        currOffset=start * step,
        maxOffset=len(log) * step,
        currDataDlt=sum(len(data) for data, _, _ in log[start + len(found) :]),
        minLimitTime=0,
        escFlowCtrl=False,
        requireSlow=False,
    )


def commit(asked: Asked) -> None:
    message, cluster = asked.message, asked.cluster
    key = (message.groupName, message.topicName, message.partitionId)
    if cluster.holders.get(key) != message.clientId:
        asked.refuse(401, "not yours", currOffset=-1)
        return
    consumed = message.lastPackConsumed if message.HasField("lastPackConsumed") else True
    _commit(cluster, key, consumed=consumed)
    step = 1 if cluster.ours else 28
    end = len(cluster.logs[key[1], key[2]])
    asked.answer(currOffset=cluster.stored[key] * step, maxOffset=end * step)


HANDLERS: dict[int, Script] = {
    methods.PRODUCER_REGISTER: producer_register,
    methods.PRODUCER_HEARTBEAT: producer_heartbeat,
    methods.PRODUCER_CLOSE: producer_close,
    methods.CONSUMER_REGISTER: consumer_register,
    methods.CONSUMER_HEARTBEAT: consumer_heartbeat,
    methods.CONSUMER_CLOSE: consumer_close,
    methods.CONSUMER_REGISTER_V2: chooser_register,
    methods.GET_PARTITION_META: partition_meta,
    methods.SEND_MESSAGE: send,
    methods.PARTITION_REGISTER: partition_register,
    methods.PARTITION_HEARTBEAT: partition_heartbeat,
    methods.GET_MESSAGES: get,
    methods.COMMIT_OFFSET: commit,
}
