"""The same calls to Java's and to our master and broker: they answer with the same codes.

What a client of ours or Java's would never send is asked here too: parameters that are missing, too
long or contradict what the group has agreed on, and requests in the wrong state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from google.protobuf.message import Message

from coherer import _net as net
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.payload import checksum
from coherer._wire.tubemq.session import ClientSession, Failure, Response
from tests.interop.peers.java import HOST
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

HISTORY = "__offset_history__"  # on every broker, so: another topic
LONG = "x" * 1025
WAIT_MS = 1_500
Call = tuple[str, int, Message, int]
"""What it is, the method, the request, and the code of the answer."""


class Caller:
    """A connection that asks one thing at a time."""

    def __init__(self, wire: net.Connection) -> None:
        self.wire = wire
        self._session = ClientSession()
        self._answer: asyncio.Future[Response | Failure]

    def received(self, data: bytes) -> None:
        for answer in self._session.receive(data):
            self._answer.set_result(answer)

    def closed(self, error: Exception | None) -> None:
        pass

    async def ask(self, method: int, message: Message, wait_ms: int = WAIT_MS) -> Any:
        """The answer's message, or a failure."""
        _, frame = self._session.request(method, message, wait_ms)
        self._answer = asyncio.get_running_loop().create_future()
        self.wire.write(frame)
        async with asyncio.timeout(10):
            answer = await self._answer
        if isinstance(answer, Failure):
            return answer
        return methods.parse(methods.METHODS[method].response, answer.body)

    async def check(self, calls: Sequence[Call]) -> None:
        """Asks one after the other; all that was answered otherwise is told at the end."""
        wrong = []
        for what, method, message, code in calls:
            answer = await self.ask(method, message)
            got = getattr(answer, "errCode", answer)
            success = getattr(answer, "success", code == 200)
            if (got, success) != (code, code == 200):
                wrong.append(f"{what}: {got}, not {code}")
        assert not wrong


@asynccontextmanager
async def dialled(host: str, port: int) -> AsyncIterator[Caller]:
    caller = await net.dial(host, port, Caller)
    assert isinstance(caller, Caller)
    try:
        yield caller
    finally:
        caller.wire.abort()


def master_of(at: At) -> AbstractAsyncContextManager[Caller]:
    return dialled(HOST, int(at.master.rpartition(":")[2]))


def broker_of(at: At) -> AbstractAsyncContextManager[Caller]:
    broker = at.deployed.brokers[0]
    return dialled(broker.host, broker.port)


@scenario(PAIRS, clients=["ours"])
async def test_a_master_answers_producers(at: At) -> None:
    def registration(**changes: Any) -> pb.RegisterRequestP2M:
        fields = {"clientId": at.name, "brokerCheckSum": -1, "hostName": "10.0.0.9"}
        return pb.RegisterRequestP2M(**fields | changes)

    def beat(*topics: str, **changes: Any) -> pb.HeartRequestP2M:
        fields = {"clientId": at.name, "brokerCheckSum": -1, "hostName": "10.0.0.9"}
        return pb.HeartRequestP2M(**fields | changes, topicList=topics)

    many = [f"t{number}" for number in range(1025)]
    async with master_of(at) as caller:
        await caller.check(
            [
                ("a heartbeat of a stranger", 2, beat(at.topic), 411),
                ("no name", 1, registration(clientId=" "), 400),
                ("a long name", 1, registration(clientId=LONG), 400),
                ("no host", 1, registration(hostName=""), 400),
                ("a long host", 1, registration(hostName="x" * 257), 400),
                ("the brokers' own topic", 1, registration(topicList=[HISTORY]), 400),
                ("many topics", 1, registration(topicList=many), 400),
                ("topics that are not there", 1, registration(topicList=["no", "x" * 99, ""]), 200),
                ("the brokers' own topic", 2, beat(HISTORY), 400),
                ("many topics", 2, beat(*many), 400),
            ]
        )
        answer = await caller.ask(2, beat(at.topic, "no", at.topic, ""))
        number = at.deployed.brokers[0].broker_id
        assert list(answer.topicInfos) == [f"{at.topic}#{number}:4:1#"]
        assert [text.split(":")[0] for text in answer.brokerInfos].count(str(number)) == 1
        close = pb.CloseRequestP2M(clientId=at.name)
        await caller.check(
            [
                ("goodbye without a name", 3, pb.CloseRequestP2M(clientId=""), 400),
                ("goodbye", 3, close, 200),
                ("goodbye again", 3, close, 200),
                ("a heartbeat after it", 2, beat(at.topic), 411),
            ]
        )


@scenario(PAIRS, clients=["ours"])
async def test_a_master_answers_consumers(at: At) -> None:
    def register(client: str = "a", **changes: Any) -> pb.RegisterRequestC2M:
        fields = {"clientId": client, "groupName": at.name, "hostName": "h", "topicList": [at.name]}
        return pb.RegisterRequestC2M(**fields | changes)

    def beat(client: str = "a", group: str = at.name) -> pb.HeartRequestC2M:
        return pb.HeartRequestC2M(clientId=client, groupName=group, reportSubscribeInfo=False)

    def close(client: str, group: str = at.name) -> pb.CloseRequestC2M:
        return pb.CloseRequestC2M(clientId=client, groupName=group)

    bound = {"groupName": f"{at.name}_b", "requireBound": True, "sessionKey": "k", "totalCount": 2}

    def named(text: str) -> pb.RegisterRequestC2M:
        return register(**bound, requiredPartition=text)

    async with master_of(at) as caller:
        await caller.check(
            [
                ("no name", 4, register(""), 400),
                ("no group", 4, register(groupName=""), 400),
                ("no topics", 4, register(topicList=[]), 400),
                ("a topic that is not there", 4, register(topicList=[at.name, "no"]), 431),
                ("that, before filters of others", 4,
                 register(topicList=["no"], topicCondition=["other#a"]), 431),
                ("filters of a topic not subscribed", 4, register(topicCondition=["other#a"]), 400),
                ("a heartbeat of a stranger", 5, beat(), 411),
                ("the first", 4, register(), 200),
                ("its heartbeat", 5, beat(), 200),
                ("a heartbeat without a name", 5, beat(""), 400),
                ("a heartbeat of another group", 5, beat("a", "nobody"), 411),
                ("other topics", 4, register("b", topicList=[HISTORY]), 425),
                ("more topics", 4, register("b", topicList=[at.name, HISTORY]), 425),
                ("filters", 4, register("b", topicCondition=[f"{at.name}#x"]), 426),
                ("bound", 4, register("b", **bound | {"groupName": at.name}), 424),
                ("one that fits", 4, register("b"), 200),
                ("goodbye of a stranger", 6, close("c"), 200),
                ("goodbye to nobody", 6, close("a", "nobody"), 200),
                ("goodbye without a name", 6, close(""), 400),
                ("goodbye", 6, close("a"), 200),
                ("goodbye", 6, close("b"), 200),
                ("bound without key", 4, register(**bound | {"sessionKey": ""}), 400),
                ("bound without number", 4, register(**bound | {"totalCount": 0}), 400),
                ("a start of another topic", 4, named(f"1:{HISTORY}:0=0"), 400),
                ("no partition", 4, named(f"{at.name}:0=0"), 400),
                ("no offset", 4, named(f"1:{at.name}:0"), 400),
                ("no number", 4, named(f"1:{at.name}:0=x"), 400),
                ("the first that is bound", 4, named(f"1:{at.name}:0=5"), 200),
                ("another key", 4, register("b", **bound | {"sessionKey": "x"}), 427),
                ("another way to choose", 4, register("b", **bound, selectBig=False), 428),
                ("another number", 4, register("b", **bound | {"totalCount": 3}), 429),
                ("not bound", 4, register("b", groupName=bound["groupName"]), 424),
                ("what silence means", 4, register("b", **bound, selectBig=True), 200),
                ("goodbye", 6, close("a", str(bound["groupName"])), 200),
                ("goodbye", 6, close("b", str(bound["groupName"])), 200),
            ]
        )  # fmt: skip


@scenario(PAIRS, clients=["ours"])
async def test_a_master_answers_those_who_choose(at: At) -> None:
    sub = pb.ClientSubRepInfo(brokerConfigId=-2, topicMetaInfoId=-2)

    def register(client: str, node: int, **changes: Any) -> pb.RegisterRequestC2MV2:
        fields = {"clientId": client, "groupName": at.name, "hostName": "h", "nodeId": node,
                  "sourceCount": 2, "topicList": [at.name], "subRepInfo": sub}  # fmt: skip
        return pb.RegisterRequestC2MV2(**fields | changes, opsTaskInfo=pb.OpsTaskInfo())

    def beat(client: str) -> pb.HeartRequestC2MV2:
        return pb.HeartRequestC2MV2(
            clientId=client, groupName=at.name, subRepInfo=sub, opsTaskInfo=pb.OpsTaskInfo()
        )

    def look(client: str) -> pb.GetPartMetaRequestC2M:
        return pb.GetPartMetaRequestC2M(
            clientId=client, groupName=at.name, brokerConfigId=-2, topicMetaInfoId=-2
        )

    normal = pb.RegisterRequestC2M(
        clientId="n", groupName=at.name, hostName="h", topicList=[at.name]
    )
    async with master_of(at) as caller:
        await caller.check(
            [
                ("a look of a stranger", 22, look("a"), 411),
                ("a heartbeat of a stranger", 21, beat("a"), 411),
                ("the first", 20, register("a", 0), 200),
                ("its number again", 20, register("b", 0), 430),
                ("a number too large", 20, register("b", 2), 400),
                ("a number below", 20, register("b", -1), 400),
                ("another count", 20, register("b", 1, sourceCount=3), 429),
                ("other topics", 20, register("b", 1, topicList=[HISTORY]), 425),
                ("filters", 20, register("b", 1, topicCondition=[f"{at.name}#x"]), 426),
                ("no topics", 20, register("b", 1, topicList=[]), 400),
                ("a topic that is not there", 20, register("b", 1, topicList=["no"]), 431),
                ("one who does not choose", 4, normal, 424),
                ("one that fits", 20, register("b", 1), 200),
                ("its heartbeat", 21, beat("b"), 200),
            ]
        )
        answer = await caller.ask(22, look("a"))
        number = at.deployed.brokers[0].broker_id
        assert list(answer.topicMetaInfoList) == [f"{at.name}#{number}:1:4:1"]
        for client in "ab":
            await caller.ask(6, pb.CloseRequestC2M(clientId=client, groupName=at.name))


@scenario(PAIRS, clients=["ours"])
async def test_a_master_answers_brokers(at: At) -> None:
    def register(client: str) -> pb.RegisterRequestB2M:
        return pb.RegisterRequestB2M(
            clientId=client, brokerOnline=False, enableTls=False, readStatusRpt=0,
            writeStatusRpt=0, curBrokerConfId=0, confCheckSumId=0, brokerDefaultConfInfo="",
            tlsPort=8124,
        )  # fmt: skip

    def beat(number: str) -> pb.HeartRequestB2M:
        return pb.HeartRequestB2M(
            brokerId=number, brokerOnline=True, readStatusRpt=0, writeStatusRpt=0,
            curBrokerConfId=0, confCheckSumId=0, takeConfInfo=False, takeRemovedTopicInfo=False,
        )  # fmt: skip

    def close(number: str) -> pb.CloseRequestB2M:
        return pb.CloseRequestB2M(brokerId=number)

    known = at.deployed.brokers[0].broker_id
    async with master_of(at) as caller:
        await caller.check(
            [
                ("no name", 7, register(""), 400),
                ("another address", 7, register(f"{known}:10.9.9.9:8123:1.0"), 400),
                ("a heartbeat of a stranger", 8, beat("77"), 411),
                ("a heartbeat that is no number", 8, beat("x"), 400),
                ("a heartbeat without a number", 8, beat(""), 400),
                ("goodbye of a stranger", 9, close("77"), 411),
                ("goodbye that is no number", 9, close("x"), 400),
                ("goodbye without a number", 9, close(" "), 400),
            ]
        )


@scenario(PAIRS, clients=["ours"])
async def test_a_broker_answers_producers(at: At) -> None:
    def send(**changes: Any) -> pb.SendMessageRequestP2B:
        fields = {"clientId": "p", "topicName": at.topic, "partitionId": 0, "data": b"hello",
                  "flag": 0, "checkSum": -1, "sentAddr": 1}  # fmt: skip
        return pb.SendMessageRequestP2B(**fields | changes)

    most = (1 << 20) + 10_240
    async with broker_of(at) as caller:
        await caller.check(
            [
                ("a message", 13, send(), 200),
                ("with a type", 13, send(msgType="t", msgTime="202401020304"), 200),
                ("no name", 13, send(clientId=" "), 400),
                ("a long name", 13, send(clientId=LONG), 400),
                ("no topic", 13, send(topicName=""), 400),
                ("a long topic", 13, send(topicName="x" * 65), 400),
                ("a topic that is not there", 13, send(topicName="no"), 403),
                ("the brokers' own topic", 13, send(topicName=HISTORY), 403),
                ("a partition too far", 13, send(partitionId=4), 403),
                ("a partition below", 13, send(partitionId=-1), 403),
                ("no data", 13, send(data=b""), 400),
                ("as large as can be", 13, send(data=bytes(most)), 200),
                ("larger", 13, send(data=bytes(most + 1)), 400),
                ("the right check sum", 13, send(checkSum=checksum(b"hello")), 200),
                ("a wrong check sum", 13, send(checkSum=0), 403),
                ("one that is not said, but not with -1", 13, send(checkSum=-2), 403),
                ("other bits of the flag", 13, send(flag=6), 200),
                ("attributes that are cut off", 13, send(flag=1, data=b"abc"), 200),
            ]
        )


@scenario(PAIRS, clients=["ours"])
async def test_a_broker_answers_consumers(at: At) -> None:
    def who(client: str = "a", **changes: Any) -> dict[str, Any]:
        names = {"clientId": client, "groupName": at.name, "topicName": at.topic, "partitionId": 0}
        return names | changes

    def take(client: str = "a", read: int = 0, **changes: Any) -> pb.RegisterRequestC2B:
        return pb.RegisterRequestC2B(opType=31, readStatus=read, **who(client, **changes))

    def drop(client: str = "a", **changes: Any) -> pb.RegisterRequestC2B:
        return pb.RegisterRequestC2B(opType=32, readStatus=0, **who(client, **changes))

    def get(client: str = "a", *, done: bool = False, **changes: Any) -> pb.GetMessageRequestC2B:
        return pb.GetMessageRequestC2B(lastPackConsumed=done, **who(client, **changes))

    def commit(client: str = "a", **changes: Any) -> pb.CommitOffsetRequestC2B:
        return pb.CommitOffsetRequestC2B(**who(client, **changes))

    def beat(client: str, *places: str) -> pb.HeartBeatRequestC2B:
        return pb.HeartBeatRequestC2B(
            clientId=client, groupName=at.name, readStatus=0, partitionInfo=places
        )

    async with broker_of(at) as caller:
        for number in range(3):
            message = pb.SendMessageRequestP2B(
                clientId="p", topicName=at.topic, partitionId=0, data=b"%d" % number, flag=0,
                checkSum=-1, sentAddr=1,
            )  # fmt: skip
            assert (await caller.ask(13, message)).success
        await caller.check(
            [
                ("a get before", 17, get(), 411),
                ("a commit before", 18, commit(), 401),
                ("giving up before", 15, drop(), 411),
                ("no operation", 15, pb.RegisterRequestC2B(opType=30, readStatus=0, **who()), 400),
                ("no name", 15, take(""), 400),
                ("no topic", 15, take(topicName=""), 400),
                ("a topic that is not there", 15, take(topicName="no"), 403),
                ("no group", 15, take(groupName=""), 400),
                ("a long group", 15, take(groupName=LONG), 400),
                ("taken", 15, take(), 200),
                ("taken by another", 15, take("b"), 410),
                ("a get of another", 17, get("b"), 412),
                ("a commit of another", 18, commit("b"), 401),
                ("giving up what another has", 15, drop("b"), 412),
                ("a get without a name", 17, get(""), 400),
                ("a get without a group", 17, get(groupName=""), 400),
                ("a get of nowhere", 17, get(topicName="no"), 403),
                ("a get of a partition too far", 17, get(partitionId=4), 411),
                ("a commit without a name", 18, commit(""), 400),
                ("a commit nowhere", 18, commit(topicName="no"), 403),
                ("a commit too far", 18, commit(partitionId=4), 403),
            ]
        )
        places = [f"1:h:1#{at.topic}:0", f"1:h:1#{at.topic}:1", "1:h:1#no:0"]
        answer = await caller.ask(16, beat("a", *places))
        assert list(answer.failureInfo) == [f"411:{places[1]}", f"411:{places[2]}"]
        answer = await caller.ask(16, beat("b", places[0]))
        assert list(answer.failureInfo) == [f"412:{places[0]}"]
        for _ in range(2):  # nothing is confirmed in between
            answer = await caller.ask(17, get())
            assert [one.payLoadData for one in answer.messages] == [b"0", b"1", b"2"]
            assert answer.currOffset == 0
        confirmed = await caller.ask(18, commit())
        assert 0 < confirmed.currOffset == confirmed.maxOffset == answer.maxOffset
        await caller.check(
            [
                ("nothing more", 17, get(done=True), 404),
                ("a second commit moves nothing", 18, commit(), 200),
            ]
        )
        for what, request, begins in (
            ("anew where it was", take(), confirmed.currOffset),
            ("from an offset", take(currOffset=0), 0),
            ("below the start", take(currOffset=-7), 0),
            ("behind the end", take(currOffset=10**9), confirmed.maxOffset),
            ("always from the end", take(read=2, currOffset=0), confirmed.maxOffset),
            (
                "a new group from the end",
                take(read=1, groupName=f"{at.name}2"),
                confirmed.maxOffset,
            ),
            (
                "a new group from nowhere",
                take(read=9, groupName=f"{at.name}3"),
                confirmed.maxOffset,
            ),
            ("a new group from the start", take(groupName=f"{at.name}4"), 0),
        ):
            answer = await caller.ask(15, request)
            assert (what, answer.errCode, answer.currOffset) == (what, 200, begins)
        await caller.check(
            [
                ("given up", 15, drop(), 200),
                ("given up again", 15, drop(), 411),
                ("a get after", 17, get(), 411),
            ]
        )
