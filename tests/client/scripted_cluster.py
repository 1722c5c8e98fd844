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
from collections.abc import Callable
from typing import Any

from coherer._net import Connection, Listener, listen
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import payload
from coherer._wire.tubemq.methods import METHODS, parse
from coherer._wire.tubemq.names import BrokerInfo, Partition, SubscribeInfo
from coherer._wire.tubemq.session import STANDBY, Request, ServerSession
from tests.client.scripted_answers import HANDLERS, Member, get

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

    def scripted(self, method: int) -> int:
        """How many scripted answers of a method are left."""
        return len(self._scripts[method])

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
        self.release()

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

    def release(self) -> None:
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


class Kit:
    """What tests script with."""

    refuse = staticmethod(refuse)
    standby = staticmethod(standby)
    silence = staticmethod(silence)
    hang_up = staticmethod(hang_up)
    handlers = HANDLERS
    Asked = Asked
