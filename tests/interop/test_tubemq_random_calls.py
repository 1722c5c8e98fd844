"""The same random calls to Java's master and broker and to ours: the same answers, by field.

Each seed makes a sequence of calls, valid and odd ones, in which the state matters: who is
registered, what was read and committed, what the members of a group have agreed on. The sequence is
played to both pairs of servers, and the second one compares.

Left out is what differs on purpose (docs/compatibility.md): texts that cannot be parsed, blanks
around names, messages with broken attributes, and what depends on the time of a balance.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Generator
from typing import Any, Final

from google.protobuf.message import Message

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.payload import checksum
from coherer._wire.tubemq.session import Failure
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS
from tests.interop.test_tubemq_calls import (
    HISTORY,
    LONG,
    WAIT_MS,
    Caller,
    broker_of,
    master_of,
)

SEEDS: Final = range(8)
CALLS: Final = 40
JAVA_AND_OURS: Final = [pair for pair in PAIRS if pair.master == pair.brokers[0]]
OWN_FIELDS: Final = 1001
"""Java knows no field with this number or a higher one."""

REGISTRATIONS: Final = frozenset({methods.CONSUMER_REGISTER, methods.CONSUMER_REGISTER_V2})

Call = tuple[int, Message]
Calls = Generator[Call, dict[str, Any], None]
"""Calls, each of which is told its answer."""
Said = tuple[str, dict[str, Any]]
"""A request and the answer to it."""

_PLAYED: dict[str, list[Said]] = {}


LEFT_OUT = {"errMsg", "event", "brokerInfos", "brokerConfigList"}
"""Texts, what depends on the moment, and brokers, which come and go with other tests."""


class Cell:
    """One pair of servers, and what differs between the pairs without meaning anything."""

    def __init__(self, at: At, caller: Caller) -> None:
        self.at = at
        self._caller = caller
        self.topic = at.topic
        self.is_java = at.deployed.topology.master == "java"
        self.broker = at.deployed.brokers[0]
        self.check_sum = -1
        """Of the list of brokers, as the master said it last."""

    async def ask(self, method: int, message: Message) -> Any:
        """The answer to a request; our broker holds a get for half of the time that is given."""
        wait_ms = 100 if method == methods.GET_MESSAGES and not self.is_java else WAIT_MS
        return await self._caller.ask(method, message, wait_ms)

    @property
    def step(self) -> int:
        """By how much one message moves an offset."""
        return 28 if self.is_java else 1

    def plain(self, text: str) -> str:
        """A text without the names of this cell."""
        broker = self.broker
        address = f"{broker.broker_id}:{broker.host}:{broker.port}"
        text = text.replace(self.topic, "TOPIC").replace(address, "BROKER")
        return text.replace(f"#{broker.broker_id}:", "#BROKER:")

    def fields(self, message: Message) -> dict[str, Any]:
        """The fields of an answer that Java's servers have, too."""
        return {
            field.name: self._value(field.name, value)
            for field, value in message.ListFields()
            if field.number < OWN_FIELDS and field.name not in LEFT_OUT
        }

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Message):
            return self.fields(value)
        if isinstance(value, str):
            return self.plain(value)
        if name in {"brokerCheckSum", "brokerConfigId", "topicMetaInfoId", "visitAuthorizedToken",
                    "messageId", "appendTime", "currDataDlt"}:  # fmt: skip
            return value > 0 or value
        if name in {"currOffset", "maxOffset", "appendOffset"}:
            return value // self.step if value > 0 else value
        if isinstance(value, bool | int | bytes):
            return value
        return [self._value("", item) for item in value]  # repeated


def any_of(r: random.Random, *usual: Any, odd: tuple[Any, ...] = (), share: float = 0.1) -> Any:
    """One of the usual values, or rarely an odd one."""
    return r.choice(odd) if odd and r.random() < share else r.choice(usual)


def maybe(r: random.Random, message: Message, **choices: tuple[Any, ...]) -> None:
    """Sets optional fields to one of several values; None leaves the field out."""
    for name, values in choices.items():
        value = r.choice(values)
        if value is not None:
            setattr(message, name, value)


NAMES: Final = ("", " ", LONG)


# -- the master


def producers(r: random.Random, cell: Cell, seed: int) -> Calls:
    for _ in range(CALLS):
        client = any_of(r, "p1", "p2", odd=NAMES)
        client = f"{cell.topic}{seed}{client}" if client.strip() else client
        method = r.choice([1, 2, 2, 2, 3])
        if method == methods.PRODUCER_CLOSE:
            yield method, pb.CloseRequestP2M(clientId=client)
            continue
        kind = pb.RegisterRequestP2M if method == 1 else pb.HeartRequestP2M
        known = (cell.topic, "nope", "", "x" * 65)
        topics = [any_of(r, *known, odd=(HISTORY,)) for _ in range(r.randrange(4))]
        message = kind(
            clientId=client,
            brokerCheckSum=r.choice([cell.check_sum, cell.check_sum, -1, 0, 7]),
            hostName=any_of(r, "10.0.0.9", "x" * 256, odd=("", " ", "x" * 257)),
            topicList=any_of(r, topics, odd=([f"t{n}" for n in range(1025)], ["nope"] * 1500)),
        )
        config = r.choice([None, -2, 0, 5])
        if config is not None:
            message.appdConfig.configId = config
        yield method, message


def consumers(r: random.Random, cell: Cell, seed: int) -> Calls:
    members: dict[str, set[str]] = {}
    choosing: set[str] = set()
    """The groups whose members choose their partitions."""
    for _ in range(CALLS):
        group = any_of(r, f"{cell.topic}{seed}g", f"{cell.topic}{seed}h", odd=NAMES)
        client = any_of(r, "c1", "c2", "c3", odd=NAMES)
        client = f"{group[:99]}{client}" if client.strip() else client
        names = {"clientId": client, "groupName": group}
        method = r.choice([4, 4, 4, 5, 5, 6, 20, 21, 22])
        own = members.setdefault(group, set())
        if method == methods.CONSUMER_HEARTBEAT and group in choosing:
            method = methods.CONSUMER_HEARTBEAT_V2
        if method in REGISTRATIONS and own == {client}:
            # Alone in its group, it could change the group's topics and filters here.
            own.clear()
            yield methods.CONSUMER_CLOSE, pb.CloseRequestC2M(**names)
        answer = yield method, consumer_call(r, cell, method, names)
        if method in REGISTRATIONS and answer.get("errCode") == 200:
            own.add(client)
            (choosing.add if method == methods.CONSUMER_REGISTER_V2 else choosing.discard)(group)
        elif method == methods.CONSUMER_CLOSE:
            own.discard(client)
    for group, found in members.items():
        for client in sorted(found):
            yield methods.CONSUMER_CLOSE, pb.CloseRequestC2M(clientId=client, groupName=group)


def consumer_call(r: random.Random, cell: Cell, method: int, names: dict[str, Any]) -> Message:
    topic, broker = cell.topic, cell.broker.broker_id
    topics = any_of(r, [topic], [topic, topic], [f" {topic}", ""], odd=([], [" "], ["nope"]))
    filters = any_of(r, [], [f"{topic}#a,b"], [f"{topic}# b ,a", " "], odd=([f"{HISTORY}#a"],))
    rest = {"hostName": "h", "topicList": topics, "topicCondition": filters}
    ids = {
        "subRepInfo": pb.ClientSubRepInfo(brokerConfigId=-2, topicMetaInfoId=-2),
        "opsTaskInfo": pb.OpsTaskInfo(),
    }
    message: Any
    if method == methods.CONSUMER_REGISTER:
        message = pb.RegisterRequestC2M(**names, **rest, requireBound=r.random() < 0.3)
        named = (f"{broker}:{topic}:0=5", f"{broker}:{topic}:77=-1", f"{broker}:{HISTORY}:0=1")
        maybe(r, message, sessionKey=("k", "k", "", "l", None), totalCount=(2, 2, 0, -1, None))
        maybe(r, message, selectBig=(True, False, None), notAllocated=(True, None))
        maybe(r, message, requiredPartition=("", *named, f"{topic}:0=5"), defFlowCheckId=(-2, None))
    elif method == methods.CONSUMER_HEARTBEAT:
        message = pb.HeartRequestC2M(**names, reportSubscribeInfo=r.random() < 0.3)
        maybe(r, message, groupFlowCheckId=(-2, None), qryPriorityId=(-2, 301, None))
    elif method == methods.CONSUMER_CLOSE:
        message = pb.CloseRequestC2M(**names)
    elif method == methods.GET_PARTITION_META:
        message = pb.GetPartMetaRequestC2M(**names, brokerConfigId=-2, topicMetaInfoId=-2)
    elif method == methods.CONSUMER_HEARTBEAT_V2:
        message = pb.HeartRequestC2MV2(**names, **ids)
    else:
        counts = {"sourceCount": r.choice([2, 2, 3, 0]), "nodeId": r.choice([0, 1, 2, -1])}
        message = pb.RegisterRequestC2MV2(**names, **rest, **counts, **ids)
    return message


# -- the broker


def send(r: random.Random, cell: Cell, body: bytes) -> Call:
    attributes = r.choice(
        ["k=v", "$msgType$=t1,$msgTime$=202401020304,k=v", "", "a=b,a=c", "=x", "a=", "no", ",,",
         "a=b=c", "k=\u00e9\U0001f600", "$msgTime$=never", "k=a\tb\nc\x01d\x02"]
    )  # fmt: skip
    text = attributes.encode()
    flag, data = any_of(
        r,
        (0, body),
        (1, struct.pack(">i", len(text)) + text + body),
        odd=((1, struct.pack(">i", -5) + body), (-2, body), (6, body), (0, b""),
             (1, b"\0\0\0\4\xff\xfe\0\1" + body), (0, bytes((1 << 20) + 10_241))),
    )  # fmt: skip
    message = pb.SendMessageRequestP2B(
        clientId=any_of(r, "p", odd=NAMES),
        topicName=any_of(r, cell.topic, odd=("nope", "x" * 65, HISTORY, *NAMES)),
        partitionId=any_of(r, 0, odd=(1, -1, 9_999, 10_001, 2**31 - 1, -(2**31))),
        data=data,
        flag=flag,
        checkSum=any_of(r, -1, checksum(data), odd=(0, -2, checksum(data) ^ 1)),
        sentAddr=r.choice([0, 1, -1, -(2**31)]),
    )
    types, times = ("t1", " t1 ", "t,2", "", "x" * 300, None), ("202401020304", "never", None)
    maybe(r, message, msgType=types, msgTime=times)
    return methods.SEND_MESSAGE, message


def partition_calls(r: random.Random, cell: Cell, seed: int) -> Calls:
    for number in range(2 * CALLS):
        kind = r.choice(["send", "take", "take", "drop", "get", "get", "commit", "beat"])
        group = f"{cell.topic}{seed}{r.choice('gh')}"
        names = {"clientId": any_of(r, "c1", "c2", odd=NAMES), "groupName": group}
        topic = any_of(r, cell.topic, odd=("nope", *NAMES))
        beyond = (1, -1, 10_001, 2**31 - 1)
        place = {**names, "topicName": topic, "partitionId": any_of(r, 0, odd=beyond)}
        message: Any
        if kind == "send":
            yield send(r, cell, b"%d-%d" % (seed, number))
        elif kind in {"take", "drop"}:
            message = pb.RegisterRequestC2B(
                **place | {"partitionId": 0},
                opType=any_of(r, 31 if kind == "take" else 32, odd=(0, 30)),
                readStatus=r.choice([0, 0, 1, 2, 9, -1]),
                filterCondStr=r.choice([[], [], ["t1"], ["t2", " t1 "], [" "]]),
                qryPriorityId=303,  # Java's consumers with filters then read memory, too
            )
            begin = r.choice([None, None, 0, 1, 3, -1, 10**6])
            if begin is not None and kind == "take":
                message.currOffset = begin * cell.step
            yield methods.PARTITION_REGISTER, message
        elif kind == "get":
            message = pb.GetMessageRequestC2B(**place, lastPackConsumed=r.random() < 0.5)
            maybe(r, message, manualCommitOffset=(True, False, None), escFlowCtrl=(True, None))
            yield methods.GET_MESSAGES, message
        elif kind == "commit":
            message = pb.CommitOffsetRequestC2B(**place)
            maybe(r, message, lastPackConsumed=(True, True, False, None))
            yield methods.COMMIT_OFFSET, message
        else:
            places = [f"7:h:1#{cell.topic}:{n}" for n in (0, 0, 1)] + ["7:h:1#nope:0"]
            message = pb.HeartBeatRequestC2B(
                **names,
                readStatus=0,
                partitionInfo=r.sample(places, r.randrange(4)),
                qryPriorityId=303,
            )
            yield methods.PARTITION_HEARTBEAT, message


# -- playing


async def ask(cell: Cell, method: int, message: Any) -> dict[str, Any]:
    answer = await cell.ask(method, message)
    if isinstance(answer, Failure):
        return {"failure": answer.fatal}
    if method == methods.GET_MESSAGES:
        return await read_on(cell, message, answer)
    found = cell.fields(answer)
    if found.get("brokerCheckSum") is True:
        cell.check_sum = answer.brokerCheckSum
    if method == methods.PARTITION_REGISTER and message.opType == methods.UNREGISTER:
        found = {"errCode": found["errCode"]}  # ours says where the group stands, too
    return found


async def read_on(cell: Cell, message: Any, answer: Any) -> dict[str, Any]:
    """All messages up to the end: one answer of Java's ends between its disk and its memory."""
    begin, messages = answer.currOffset, []
    further = pb.GetMessageRequestC2B()
    further.CopyFrom(message)
    further.manualCommitOffset, further.lastPackConsumed = True, False
    while answer.success:
        messages += [(one.payLoadData, one.flag, one.checkSum) for one in answer.messages]
        answer = await cell.ask(methods.GET_MESSAGES, further)
    read = {"begin": begin // cell.step, "messages": messages} if messages else {}
    return {**read, "then": answer.errCode}


async def play(cell: Cell, make: Callable[[random.Random, Cell, int], Calls]) -> None:
    """Makes the calls of all seeds; the second of the two cells compares."""
    said: list[Said] = []
    for seed in SEEDS:
        calls, answer = make(random.Random(seed), cell, seed), None
        with contextlib.suppress(StopIteration):
            while True:
                method, message = calls.send(answer)  # type: ignore[arg-type]
                answer = await ask(cell, method, message)
                text = cell.plain(str(message).replace("\n", " "))[:300]
                said.append((f"seed {seed}, method {method}: {text}", answer))
    other = _PLAYED.setdefault(make.__name__, said)
    if other is said:
        return
    java, ours = (said, other) if cell.is_java else (other, said)
    different = [
        f"{what}\n  Java {expected}\n  ours {found}"
        for (what, expected), (_, found) in zip(java, ours, strict=False)
        if expected != found
    ]
    assert not different, f"{len(different)}:\n" + "\n".join(different[:5])


@scenario(JAVA_AND_OURS, partitions=1, clients=["ours"])
async def test_random_calls_of_producers(at: At) -> None:
    async with master_of(at) as caller:
        await play(Cell(at, caller), producers)


@scenario(JAVA_AND_OURS, partitions=1, clients=["ours"])
async def test_random_calls_of_consumers(at: At) -> None:
    async with master_of(at) as caller:
        await play(Cell(at, caller), consumers)


@scenario(JAVA_AND_OURS, partitions=1, clients=["ours"])
async def test_random_calls_to_a_broker(at: At) -> None:
    async with broker_of(at) as caller:
        await play(Cell(at, caller), partition_calls)
