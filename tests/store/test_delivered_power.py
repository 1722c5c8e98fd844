"""Power cuts, and what consumers of both protocols were given and have committed.

Whatever was delivered before a power cut, another message must not get its offset afterwards. With
sync flush every delivered message is still there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import Draft
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS, BrokerClient, bodies, close, serve
from tests.server.rocket_harness import BrokerHarness, records_of

Delivered = dict[int, bytes]


async def use(
    node: BrokerHarness, client: BrokerClient, chance: random.Random, delivered: list[Delivered]
) -> None:
    """Send and read over both protocols, commit what was read, and let the node work."""
    tubemq, rocketmq = delivered
    position = 0
    reader = await node.dial()
    for number in range(chance.randint(5, 40)):
        body = b"%d." % number
        if number % 2:
            assert (await client.send(data=body)).success
        else:
            assert (await reader.send(body, b="demo", e="0")).code == 0
        if chance.random() < 0.6:
            answer = client.get()
            # TubeMQ's payload begins with attributes if RocketMQ's client sent the message.
            payloads = [payload.split(b"TagA")[-1] for payload in bodies(answer)]
            tubemq |= dict(enumerate(payloads, answer.currOffset))
        if chance.random() < 0.6:
            pulled = await reader.pull(queueOffset=position)
            for record in records_of(pulled) if pulled.code == 0 else []:
                rocketmq[record.queue_offset] = bytes(record.body)
                position = record.queue_offset + 1
            node.state.commit("g", "demo", 0, position)
        step = chance.random()
        if step < 0.2:
            await node.core.save_positions()
        elif step < 0.3:
            node.clock.advance(700)
            node.store.tick()


@pytest.mark.parametrize("sync_flush", [True, False])
@pytest.mark.parametrize("seed", range(8))
async def test_a_delivered_offset_never_means_another_message(
    power_files: Callable[[], Any], tmp_path: Path, seed: int, sync_flush: bool
) -> None:
    chance, clock = random.Random(seed), ManualClock()
    files = power_files()
    files.adopt(tmp_path / "disk")
    node = BrokerHarness(tmp_path / "disk", clock, sync_flush=sync_flush, files=files)
    await node.start()
    broker = Broker(OPTIONS, node.core)
    serve(broker)
    client = BrokerClient(broker)
    client.register()
    delivered: list[Delivered] = [{}, {}]
    images: list[tuple[Path, list[Delivered]]] = []
    left = chance.randint(1, 150)

    def step() -> None:
        nonlocal left
        left -= 1
        if left % 40 == 0:
            images.append((tmp_path / f"image{len(images)}", [dict(one) for one in delivered]))
            files.cut(tmp_path / "disk", images[-1][0], chance)

    files.before = step
    await use(node, client, chance, delivered)
    left = 1
    step()
    files.before = lambda: None
    await close(broker)
    await node.stop()
    assert any(delivered[0].values())
    assert any(delivered[1].values())
    for image, given in images:
        check(image, clock, given, sync_flush=sync_flush)


def check(image: Path, clock: ManualClock, delivered: list[Delivered], *, sync_flush: bool) -> None:
    """Open what a power cut left; send more messages, and compare them with what was delivered."""
    node = BrokerHarness(image, clock, sync_flush=sync_flush)
    core: Core = node.core
    for topic, _, positions in core.offsets.items():
        for partition, position in positions.items():
            assert position.offset <= core.store.queue_range(topic, partition)[1]
    for number in range(30):
        core.store.append([_draft(b"new %d" % number)])
    core.store.flush()
    found = {record.queue_offset: bytes(record.body) for record in everything(core)}
    for given in delivered:
        for offset, body in given.items():
            assert found.get(offset, body) == body
            assert not sync_flush or offset in found
    assert sum(body.startswith(b"new") for body in found.values()) == 30
    core.store.close()


def _draft(body: bytes) -> Any:
    return Draft("demo", 0, body, b"")


def everything(core: Core) -> list[Any]:
    from coherer._record.layout import decode

    at, end = core.store.queue_range("demo", 0)
    records: list[Any] = []
    while at < end:
        found = core.store.read("demo", 0, at, max_bytes=1 << 22, max_count=10_000)
        records += [decode(bytes(record)) for record in found.records]
        at = found.next_offset
    return records


@pytest.mark.parametrize("seed", range(6))
async def test_the_first_messages_of_a_new_topic(
    power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """With async flush nobody reads them before the topic is saved."""
    chance, clock = random.Random(seed), ManualClock()
    files = power_files()
    files.adopt(tmp_path / "disk")
    node = BrokerHarness(tmp_path / "disk", clock, sync_flush=False, files=files)
    await node.start()
    reader = await node.dial()
    for number in range(10):
        node.core.topics.put(Topic(name=f"new{number}", read_queues=1, write_queues=1), 0)
        assert (await reader.send(b"first", b=f"new{number}", e="0")).code == 0
        assert node.core.store.queue_range(f"new{number}", 0) == (0, 1)
        files.cut(tmp_path / "disk", tmp_path / f"image{number}", chance)
    await node.stop()
    for number in range(10):
        after = BrokerHarness(tmp_path / f"image{number}", clock, sync_flush=False)
        if not after.core.store.queue_range(f"new{number}", 0)[1]:
            [result] = after.core.store.append([Draft(f"new{number}", 0, b"other", b"")])
            assert result.queue_offset > 0
        after.core.store.close()
