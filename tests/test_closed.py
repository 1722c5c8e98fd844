"""After `close`, every call of everything that a client makes raises `ClosedError`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import coherer.blocking
from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ClosedError
from coherer.message import Message
from coherer.rocketmq import HalfMessages, Verdict
from coherer.testing import EmbeddedNode, embedded_node

TOPIC = "orders"
MESSAGE_ID = "7F00000100002A9F0000000000000000"

STILL_ALLOWED = {"check_reports", "close"}
"""Calls that mean something after `close`."""


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node() as node:
        with coherer.blocking.tubemq.connect(node.url, admin=node.admin_url) as client:
            client.admin().topics.create(TOPIC, 2, wait_ms=5_000)
        yield node


def connect(node: EmbeddedNode, protocol: str, *, blocking: bool) -> Any:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    options = {"admin": node.admin_url} if protocol == "tubemq" else {}
    return (coherer.blocking.connect if blocking else coherer.connect)(url, **options)


MAKERS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "tubemq": {
        "producer": lambda client, _: client.producer(TOPIC),
        "consumer": lambda client, _: client.consumer("closed", TOPIC),
        "reader": lambda client, partition: client.reader(partition, 0),
    },
    "rocketmq": {
        "producer": lambda client, _: client.producer(TOPIC),
        "consumer": lambda client, _: client.consumer("closed", TOPIC),
        "pull_consumer": lambda client, _: client.pull_consumer("closed-pull", TOPIC),
        "reader": lambda client, queue: client.reader(queue, 0),
    },
}


def arguments(partition: Any) -> dict[str, Any]:
    """A value for every required parameter of a public call, by its name."""
    return {
        "access_key": "alice123",
        "address": "127.0.0.1:9",
        "addresses": ["127.0.0.1"],
        "batch": object(),
        "batches": [],
        "body": b"x",
        "born_ms": 0,
        "broker": "broker-a",
        "changes": {"flushDiskType": "ASYNC_FLUSH"},
        "client_id": "someone",
        "filter": "*",
        "group": "closed",
        "groups": ["closed"],
        "halves": HalfMessages.joined([]),
        "handler": print,
        "index": 0,
        "key": "42",
        "listener": print,
        "message": StoredMessage(TOPIC, b"x", id=MESSAGE_ID),
        "message_id": MESSAGE_ID,
        "messages": [Message(TOPIC, b"x")],
        "name": TOPIC,
        "namespace": "ORDER_TOPIC_CONFIG",
        "offset": 0,
        "offset_id": MESSAGE_ID,
        "offsets": {partition: 0} if isinstance(partition, Queue) else {"1:orders:0": 0},
        "order": "1",
        "partition": partition,
        "partitions": 1,
        "properties": {},
        "queue": partition,
        "queues": [partition],
        "reply": b"x",
        "request": StoredMessage(TOPIC, b"x", id=MESSAGE_ID, properties={"REPLY_TO_CLIENT": "a"}),
        "secret_key": "secret123",
        "source": "closed",
        "stats": "TOPIC_PUT_NUMS",
        "target": "closed2",
        "time": datetime.now(UTC),
        "timeout_ms": 1_000,
        "to": Edge.END if isinstance(partition, Queue) else "latest",
        "topic": TOPIC,
        "topics": TOPIC,
        "unique_id": "7F000001000018B4AAC20000000000000000",
        "value": "1",
        "verdict": Verdict.COMMIT,
        "writable": True,
    }


def calls(kind: type) -> list[str]:
    """The public methods of a class, inherited ones too; not its properties."""
    return sorted(
        name
        for name in dir(kind)
        if not name.startswith("_")
        and name not in STILL_ALLOWED
        and inspect.isroutine(inspect.getattr_static(kind, name))
        and not isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    )


def call(thing: Any, name: str, values: dict[str, Any]) -> Any:
    method = getattr(thing, name)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            if name in {"publish", "pause", "resume"}:
                positional.append(values["topic" if name == "publish" else "partition"])
        elif parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty:
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = values[parameter.name]
        else:
            positional.append(values[parameter.name])
    if name == "reset_offsets" and values["to"] is Edge.END:
        positional = ["latest" if value is Edge.END else value for value in positional]
    if name == "alter_topic":  # it needs one of its optional parameters
        named["partitions"] = values["partitions"]
    return method(*positional, **named)


async def finished(answer: Any) -> Any:
    """The result of an asyncio call; of an iterator, its first step."""
    if inspect.isawaitable(answer):
        return await answer
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            break
        return None
    return answer


def begun(answer: Any) -> Any:
    """The result of a blocking call; of an iterator, its first step."""
    return next(iter(answer), None) if hasattr(answer, "__next__") else answer


PAIRS = [(protocol, kind) for protocol, makers in MAKERS.items() for kind in makers]


async def survivors(thing: Any, partition: Any) -> list[str]:
    """The calls of a closed asyncio object that do not raise `ClosedError`."""
    values, wrong = arguments(partition), []
    for name in calls(type(thing)):
        try:
            async with asyncio.timeout(5):
                answer = await finished(call(thing, name, values))
            wrong.append(f"{name} gave {answer!r}")
        except ClosedError:
            continue
        except Exception as error:  # noqa: BLE001 - every other outcome is a finding
            wrong.append(f"{name} raised {error!r}")
    return wrong


def blocking_survivors(thing: Any, partition: Any) -> list[str]:
    """The calls of a closed blocking object that do not raise `ClosedError`."""
    values, wrong = arguments(partition), []
    for name in calls(type(thing)):
        try:
            wrong.append(f"{name} gave {begun(call(thing, name, values))!r}")
        except ClosedError:
            continue
        except Exception as error:  # noqa: BLE001 - every other outcome is a finding
            wrong.append(f"{name} raised {error!r}")
    return wrong


async def some_partition(client: Any) -> Any:
    return (await client.partitions(TOPIC))[0]


@pytest.mark.parametrize(("protocol", "kind"), PAIRS)
async def test_a_closed_object_refuses_every_call(
    node: EmbeddedNode, protocol: str, kind: str
) -> None:
    async with connect(node, protocol, blocking=False) as client:
        partition = await some_partition(client)
        thing = MAKERS[protocol][kind](client, partition)
        async with thing:
            pass
        assert await survivors(thing, partition) == []


@pytest.mark.parametrize(("protocol", "kind"), PAIRS)
async def test_objects_of_a_closed_client_refuse_every_call(
    node: EmbeddedNode, protocol: str, kind: str
) -> None:
    async with connect(node, protocol, blocking=False) as client:
        partition = await some_partition(client)
        thing = MAKERS[protocol][kind](client, partition)
        await thing.start()
        fresh = MAKERS[protocol][kind](client, partition)
    assert await survivors(thing, partition) == []
    assert await survivors(fresh, partition) == []


@pytest.mark.parametrize("protocol", MAKERS)
async def test_a_closed_client_and_its_administration_refuse_every_call(
    node: EmbeddedNode, protocol: str
) -> None:
    async with connect(node, protocol, blocking=False) as client:
        partition = await some_partition(client)
        admin = client.admin()
    assert await survivors(client, partition) == []
    assert await survivors(admin, partition) == []


@pytest.mark.parametrize(("protocol", "kind"), PAIRS)
def test_closed_blocking_objects_refuse_every_call(
    node: EmbeddedNode, protocol: str, kind: str
) -> None:
    async def find() -> Any:
        async with connect(node, protocol, blocking=False) as client:
            return await some_partition(client)

    partition = asyncio.run(find())
    with connect(node, protocol, blocking=True) as client:
        closed = MAKERS[protocol][kind](client, partition)
        with closed:
            pass
        assert blocking_survivors(closed, partition) == []
        left_open = MAKERS[protocol][kind](client, partition)
        left_open.start()
        fresh = MAKERS[protocol][kind](client, partition)
        admin = client.admin()
    for thing in (left_open, fresh, admin, client):
        assert blocking_survivors(thing, partition) == [], thing
