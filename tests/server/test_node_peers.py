"""A node and hostile peers: garbage, incomplete frames, peers that never read, and many of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from coherer import _net as net
from coherer import limits
from coherer._server.node.node import Node
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.frame import encode_frame
from coherer.errors import DisconnectedError
from tests.server.node_harness import WHO, message, options, register, to_broker
from tests.server.raw_client import RawClient
from tests.server.rocket_harness import long_fields
from tests.server.rocketmq_caller import Caller


async def test_garbage_ends_only_its_connection(node: Node) -> None:
    good = await to_broker(node)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff\x7f\xf4\xfe" + b"\xff" * 8):
        for port in (node.broker_port, node.master_port):
            bad = await net.dial("127.0.0.1", port, RawClient)
            bad.wire.write(garbage)
            async with asyncio.timeout(10):
                await bad.gone.wait()
    assert (await good.ask(methods.SEND_MESSAGE, message())).success


async def test_half_and_huge_frames_are_bounded(node: Node) -> None:
    half = await to_broker(node)
    half.wire.write(encode_frame(1, b"x" * 5000)[:-1])
    huge = await to_broker(node)
    blocks = limits.FRAME_BLOCKS_MAX
    huge.wire.write(b"\xff\x7f\xf4\xfe\0\0\0\1" + blocks.to_bytes(4, "big"))
    block = (1 << 20).to_bytes(4, "big") + b"y" * (1 << 20)
    async with asyncio.timeout(30):
        for _ in range(2 * limits.FRAME_BYTES_MAX // len(block)):
            if huge.wire.closed:
                break
            huge.wire.write(block)
            with suppress(DisconnectedError):
                await huge.wire.drain()
        await huge.gone.wait()
    good = await to_broker(node)
    assert (await good.ask(methods.SEND_MESSAGE, message())).success
    assert not half.gone.is_set()


FLOOD = 20
READ_BYTES_MAX = 256 * 1024
"""The size of one socket read of the event loop."""


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_requests_that_never_become_whole_do_not_fill_the_memory(
    tmp_path: Path, protocol: str
) -> None:
    limit = net.UNFINISHED_BYTES_MIN
    async with Node(options(tmp_path, unfinished_bytes=limit)) as node:
        node.create_topic("demo", 2)
        good, caller = await to_broker(node), await Caller.dial(node.rocketmq_port)
        fields = long_fields()
        huge = encode(Command(Code.SEND_MESSAGE, 1, 0, fields=fields, body=bytes(15 << 20)))
        port = node.rocketmq_port
        if protocol == "tubemq":
            huge, port = encode_frame(1, bytes(15 << 20)), node.broker_port
        flood = [await net.dial("127.0.0.1", port, RawClient) for _ in range(FLOOD)]
        for bad in flood:
            bad.wire.write(memoryview(huge)[:-1])
        async with asyncio.timeout(300):
            while node.budget.unfinished.buffered_bytes < limit // 2:
                assert (await good.ask(methods.SEND_MESSAGE, message())).success
            for _ in range(3):
                assert (await good.ask(methods.SEND_MESSAGE, message(bytes(1 << 20)))).success
                body = bytes(4_000_000)
                assert (await caller.ask(Code.SEND_MESSAGE, fields, body)).code == 0
                assert node.budget.unfinished.buffered_bytes < limit + FLOOD * READ_BYTES_MAX
            await flood[-1].gone.wait()
        for bad in flood:
            bad.wire.abort()
        async with asyncio.timeout(10):
            while node.budget.unfinished.buffered_bytes:
                assert (await good.ask(methods.SEND_MESSAGE, message())).success


async def test_a_peer_that_never_reads_does_not_affect_others(node: Node) -> None:
    good, bad = await to_broker(node), await to_broker(node)
    for _ in range(4):
        assert (await good.ask(methods.SEND_MESSAGE, message(b"x" * 250_000))).success
    await register(bad)
    bad.wire.pause_reading()
    request = pb.GetMessageRequestC2B(**WHO)
    asked = 400
    for _ in range(asked):
        bad.post(methods.GET_MESSAGES, request)
    await good.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
    highest = 0
    for _ in range(50):
        assert (await good.ask(methods.SEND_MESSAGE, message())).success
        highest = max(highest, node.budget.writes.unsent_bytes)
    assert 0 < highest < node.budget.limits.write_buffer_high_bytes + (2 << 20)
    bad.wire.resume_reading()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*bad.waiting.values())
    assert len(answers) == asked


async def test_many_connections_come_and_go(node: Node) -> None:
    peers = [await to_broker(node) for _ in range(200)]
    answers = [peer.post(methods.SEND_MESSAGE, message()) for peer in peers]
    async with asyncio.timeout(10):
        await asyncio.gather(*answers)
        for peer in peers:
            peer.wire.abort()
        await asyncio.gather(*(peer.gone.wait() for peer in peers))
        good = await to_broker(node)
        while node.budget.connections.count > 1:
            await good.ask(methods.SEND_MESSAGE, message())
    assert node.broker is not None
    assert node.broker.gets.held_count == 0
