"""A scripted TubeMQ cluster: a master and a broker in a few lines, which do what a test tells them.

It keeps the protocol as far as our client needs it, and stands beside our real node for the odd
cases: any answer can be replaced, delayed, withheld, or turned into a broken connection.

    cluster.script(methods.SEND_MESSAGE, refuse(503))     # the next send is refused
    cluster.script(methods.GET_MESSAGES, silence)         # the next get is never answered
    cluster.always(methods.PRODUCER_HEARTBEAT, refuse(411))
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from coherer.client.tubemq.cluster import ClientOptions, Cluster
from coherer.net import Connection, Listener, listen
from coherer.tubemq import messages as pb
from coherer.tubemq import methods, payload
from coherer.tubemq.methods import METHODS, parse
from coherer.tubemq.names import BrokerInfo, Partition, SubscribeInfo
from coherer.tubemq.session import STANDBY, Request, ServerSession

Script = Callable[["Asked"], Any]


class Asked:
    """A request that has come, and the ways to answer it."""

    def __init__(
        self, cluster: FakeCluster, connection: Connection, session: ServerSession, request: Request
    ) -> None:
        self.cluster = cluster
        self.connection = connection
        self.session = session
        self.request = request
        self.method = request.method
        self.message: Any = parse(METHODS[request.method].request, request.body)

    def answer(self, **fields: Any) -> None:
        fields = {"success": True, "errCode": 200, "errMsg": "OK!"} | fields
        response = METHODS[self.method].response
        if "success" not in response.DESCRIPTOR.fields_by_name:
            del fields["success"]
        reply = response(**fields)
        self.connection.write(self.session.reply(self.request, reply))

    def refuse(self, code: int, text: str = "no", **fields: Any) -> None:
        if self.method in {1, 2}:
            fields.setdefault("brokerCheckSum", -1)
        self.answer(success=False, errCode=code, errMsg=text, **fields)

    def fail(self, exception: str, text: str) -> None:
        self.connection.write(self.session.error(self.request, exception, text))


def refuse(code: int, text: str = "no", **fields: Any) -> Script:
    return lambda asked: asked.refuse(code, text, **fields)


def standby(asked: Asked) -> None:
    asked.fail(STANDBY, "this one sleeps")


def silence(asked: Asked) -> None:
    del asked


def hang_up(asked: Asked) -> None:
    asked.connection.abort()


class Member:
    """A consumer, as the master sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[str] = []  # what it says that it holds
        self.events: deque[pb.EventProto] = deque()
        self.registration: pb.RegisterRequestC2M = pb.RegisterRequestC2M()


class FakeCluster:
    """Master and broker on ports of their own."""

    def __init__(self) -> None:
        self.topics = {"demo": 3}
        self.logs: defaultdict[tuple[str, int], list[tuple[bytes, int, str]]] = defaultdict(list)
        self.stored: defaultdict[tuple[str, str, int], int] = defaultdict(int)  # offsets
        self.deltas: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self.holders: dict[tuple[str, str, int], str] = {}
        self.producers: set[str] = set()
        self.groups: defaultdict[str, dict[str, Member]] = defaultdict(dict)
        self.seen: list[Asked] = []
        self.package = 5  # messages to a get
        self.ours = True  # offsets count messages, and the broker says so
        self.holds_gets = True
        self.balances = True  # partitions are given to whoever has none, at each heartbeat
        self.brokers: list[BrokerInfo] = []
        self.unreadable: set[int] = set()  # ids of brokers that are away, or closed for readers
        self.check_sum = 7
        self.extra: dict[str, Any] = {}  # fields of every answer to consumers' heartbeats
        self._scripts: defaultdict[int, deque[Script]] = defaultdict(deque)
        self._always: dict[int, Script] = {}
        self._held: list[Asked] = []
        self._ids = itertools.count(1)
        self._changes: list[asyncio.Future[None]] = []
        self._listeners: list[Listener] = []
        self.master: Listener
        self.broker: Listener

    async def start(self) -> None:
        self.master = await self.listen()
        self.broker = await self.listen()
        self.brokers = [BrokerInfo(1, "127.0.0.1", self.broker.port)]

    async def listen(self, port: int = 0) -> Listener:
        listener = await listen("127.0.0.1", port, lambda connection: Service(self, connection))
        self._listeners.append(listener)
        return listener

    async def restart_broker(self) -> None:
        """The broker is gone and back, and has forgotten its consumers."""
        await self.broker.close(timeout_ms=0)
        self.holders.clear()
        self.deltas.clear()
        self._held.clear()
        self.broker = await self.listen(self.broker.port)

    async def stop(self) -> None:
        self._held.clear()
        for listener in self._listeners:
            await listener.close(timeout_ms=0)

    # -- what tests say and ask

    def script(self, method: int, *steps: Script) -> None:
        """Answer the next requests of a method by these."""
        self._scripts[method].extend(steps)

    def always(self, method: int, step: Script | None) -> None:
        """Answer all requests of a method by this, until told otherwise."""
        if step is None:
            self._always.pop(method, None)
        else:
            self._always[method] = step

    def asked(self, method: int) -> list[Any]:
        """The requests of a method that have come."""
        return [asked.message for asked in self.seen if asked.method == method]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a request makes `condition` true."""
        async with asyncio.timeout(10):
            while not condition():
                change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._changes.append(change)
                await change

    def put(self, topic: str, partition: int, *bodies: bytes, tag: str = "") -> None:
        """Messages appear in a partition."""
        attributes = f"$msgType$={tag}" if tag else None
        for body in bodies:
            data, flag = payload.encode_payload(body, attributes)
            self.logs[topic, partition].append((data, flag, tag))
        self._release()

    def partitions(self, topic: str) -> list[Partition]:
        return [
            Partition(broker, topic, number)
            for broker in self.brokers
            for number in range(self.topics[topic])
        ]

    def instruct(self, group: str, member: str, kind: int, *partitions: Partition) -> None:
        """Queue an instruction."""
        told = [SubscribeInfo(member, group, partition).text() for partition in partitions]
        event = pb.EventProto(rebalanceId=next(self._ids), opType=kind, subscribeInfo=told)
        self.groups[group][member].events.append(event)

    def member(self, *topics: str) -> Member:
        """One who chooses its partitions."""
        member = Member("chooser")
        member.told = list(topics)
        return member

    # -- what happens by itself

    def handle(self, asked: Asked) -> None:
        self.seen.append(asked)
        steps = self._scripts[asked.method]
        step = steps.popleft() if steps else self._always.get(asked.method, HANDLERS[asked.method])
        step(asked)
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)

    def hold(self, asked: Asked) -> None:
        self._held.append(asked)

    def _release(self) -> None:
        held, self._held = self._held, []
        for asked in held:
            get(asked)


class Service:
    """A connection to the cluster."""

    def __init__(self, cluster: FakeCluster, connection: Connection) -> None:
        self.cluster = cluster
        self.connection = connection
        self.session = ServerSession()

    def received(self, data: bytes) -> None:
        requests, answers = self.session.receive(data)
        self.connection.write_many(answers)
        for request in requests:
            self.cluster.handle(Asked(self.cluster, self.connection, self.session, request))

    def closed(self, error: Exception | None) -> None:
        del error


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
    cluster._release()


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


class Kit:
    """Everything above, for tests that cannot import this file."""

    refuse = staticmethod(refuse)
    standby = staticmethod(standby)
    silence = staticmethod(silence)
    hang_up = staticmethod(hang_up)
    handlers = HANDLERS
    Asked = Asked


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    """A scripted cluster with the topic `demo` of three partitions."""
    cluster = FakeCluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def way(fake: FakeCluster) -> AsyncIterator[Cluster]:
    """A client's way to the scripted cluster; short timeouts, no heartbeats by the clock."""
    cluster = Cluster(
        ClientOptions(
            addresses=(("127.0.0.1", fake.master.port),), timeout_ms=2_000, heartbeat_ms=3_600_000
        )
    )
    yield cluster
    await cluster.pool.close()
