"""A node is killed under load repeatedly: acknowledged messages survive."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coherer import _net as net
from coherer._record.layout import decode
from coherer._store import Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.payload import encode_payload
from coherer._wire.tubemq.sending import SendEncoder, parse_send_response
from coherer._wire.tubemq.session import ClientSession, Response
from tests.server.raw_client import RawClient

CHILD = Path(__file__).with_name("node_child.py")
ROUNDS = int(os.environ.get("COHERER_CRASH_ROUNDS", "10"))
PARTITIONS = 4
TOKEN = pb.AuthorizedInfo(visitAuthorizedToken=-2).SerializeToString()

Acknowledged = dict[tuple[int, int], bytes]


class Child:
    """The node's process."""

    def __init__(self, directory: Path, flush: str) -> None:
        self.arguments = (str(CHILD), str(directory), flush)
        self.broker = 0

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        self.broker = json.loads(line)["broker"]

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()

    async def stop(self) -> int:
        await self.process.communicate(b"")  # closes its stdin
        assert self.process.returncode is not None
        return self.process.returncode


class Load:
    """Sends as fast as the window allows, and keeps what was acknowledged."""

    window = 400

    def __init__(self, wire: net.Connection, prefix: str, enough: int) -> None:
        self.wire, self.prefix, self.enough = wire, prefix, enough
        self.session = ClientSession()
        self.encoders = [
            SendEncoder("producer", "demo", number, 0x7F000001) for number in range(PARTITIONS)
        ]
        self.under_way: dict[int, tuple[int, bytes]] = {}
        self.acknowledged: Acknowledged = {}
        self.done = asyncio.Event()
        self.fill()

    def fill(self) -> None:
        while len(self.under_way) < self.window:
            serial = self.session.next_serial()
            body = f"{self.prefix}-{serial}-".encode() + b"x" * (serial % 700)
            data, flag = encode_payload(body, f"$msgType$=t{serial % 5},k={serial}")
            partition = serial % PARTITIONS
            self.under_way[serial] = partition, body
            self.wire.write(
                self.encoders[partition].encode(
                    serial, data, flag, f"t{serial % 5}", None, TOKEN, 10_000
                )
            )

    def received(self, data: bytes) -> None:
        for answer in self.session.receive(data):
            assert isinstance(answer, Response)
            reply = parse_send_response(answer.body)
            assert reply.success, reply
            partition, body = self.under_way.pop(answer.serial)
            self.acknowledged[partition, reply.offset] = body
        if len(self.acknowledged) >= self.enough:
            self.done.set()
        self.fill()

    def closed(self, error: Exception | None) -> None:
        self.done.set()


def missing(directory: Path, acknowledged: Acknowledged) -> list[tuple[int, int]]:
    with Store.open(directory, now_ms=lambda: time.time_ns() // 10**6) as store:
        assert store.recovery.damage == ()
        assert not store.recovery.clean
        found: Acknowledged = {}
        for partition in range(PARTITIONS):
            offset, end = store.queue_range("demo", partition)
            while offset < end:
                read = store.read("demo", partition, offset, max_bytes=1 << 20, max_count=1 << 20)
                assert read.damaged == []
                for number, record in zip(read.offsets, read.records, strict=True):
                    found[partition, number] = bytes(decode(record).body)
                del record
                offset = read.next_offset
                del read
    return [key for key, body in acknowledged.items() if found.get(key) != body]


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_killed_under_load_nothing_acknowledged_is_lost(tmp_path: Path, flush: str) -> None:
    child = Child(tmp_path, flush)
    acknowledged: Acknowledged = {}
    chance = random.Random(7)
    for round_ in range(ROUNDS):
        await child.start()

        def load(wire: net.Connection, prefix: str = f"{flush}-{round_}") -> Load:
            return Load(wire, prefix, chance.randrange(1, 3000))

        sender = await net.dial("127.0.0.1", child.broker, load)
        async with asyncio.timeout(30):
            await sender.done.wait()
        await child.kill()
        before = len(acknowledged)
        acknowledged |= sender.acknowledged
        assert len(acknowledged) == before + len(sender.acknowledged), "no offset is given twice"
        assert missing(tmp_path, acknowledged) == []


async def test_killed_with_positions(tmp_path: Path) -> None:
    """Offsets saved by an orderly stop survive a later kill."""
    child = Child(tmp_path, "async")
    await child.start()

    def load(wire: net.Connection) -> Load:
        return Load(wire, "first", 1)

    sender = await net.dial("127.0.0.1", child.broker, load)
    await sender.done.wait()
    sender.wire.abort()
    reader = await net.dial("127.0.0.1", child.broker, RawClient)
    taken = await reader.ask(15, register())
    assert taken.success
    got = await reader.ask(17, pb.GetMessageRequestC2B(**WHO))
    assert got.messages
    committed = (await reader.ask(18, pb.CommitOffsetRequestC2B(**WHO))).currOffset
    assert committed == len(got.messages)
    assert await child.stop() == 0
    for _ in range(2):
        await child.start()
        reader = await net.dial("127.0.0.1", child.broker, RawClient)
        assert (await reader.ask(15, register())).currOffset == committed
        await child.kill()


WHO: dict[str, Any] = {"clientId": "c", "groupName": "g", "topicName": "demo", "partitionId": 1}


def register() -> pb.RegisterRequestC2B:
    return pb.RegisterRequestC2B(**WHO, opType=31, readStatus=0)
