"""A node that stops while both protocols are busy, and one that cannot start."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer import _net as net
from coherer._record.layout import decode
from coherer._server.node.node import Node, NodeOptions
from coherer._store import Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.sending import parse_send_response
from coherer._wire.tubemq.session import Response
from coherer.errors import CohererError, StoreError, StoreFullError
from tests.server.node_harness import options
from tests.server.raw_client import RawClient
from tests.server.rocket_harness import Client, pull_fields, send_fields
from tests.waiting import until

SEND, PULL, NOT_FOUND = 310, 11, 19

Acknowledged = dict[tuple[int, int], bytes]


async def rocketmq_sends(node: Node, acknowledged: Acknowledged) -> None:
    """Send over RocketMQ, 50 at a time, until the connection ends."""
    client = await Client.dial(node.rocketmq_port)
    number = 0
    while not client.connection.closed:
        bodies = [b"r%d" % (number + n) for n in range(50)]
        number += len(bodies)
        answers = [client.begin(SEND, send_fields(b="demo"), body) for body in bodies]
        for body, answer in zip(bodies, answers, strict=True):
            try:
                said = await answer
            except asyncio.CancelledError:
                if not client.lost.is_set():
                    raise
                return
            if said.code == 0:
                acknowledged[0, int(said.fields["queueOffset"])] = body


async def tubemq_sends(node: Node, acknowledged: Acknowledged) -> None:
    """The same over TubeMQ."""
    asker = await net.dial("127.0.0.1", node.broker_port, RawClient)
    gone = asyncio.ensure_future(asker.gone.wait())
    number = 0
    while not gone.done():
        sends: dict[asyncio.Future[Any], bytes] = {}
        for _ in range(50):
            number += 1
            body = b"t%d" % number
            message = pb.SendMessageRequestP2B(
                clientId="p", topicName="demo", partitionId=1, data=body, flag=0, checkSum=-1,
                sentAddr=0x7F000001,
            )  # fmt: skip
            sends[asker.post(methods.SEND_MESSAGE, message)] = body
        await asyncio.wait([asyncio.gather(*sends), gone], return_when=asyncio.FIRST_COMPLETED)
        for answer, body in sends.items():
            if not answer.done():
                continue
            response = answer.result()
            reply = parse_send_response(response.body) if isinstance(response, Response) else None
            if reply is not None and reply.success:
                acknowledged[1, reply.offset] = body


def stored(directory: Path) -> Acknowledged:
    """The messages of a store that was closed."""
    with Store.open(directory, now_ms=lambda: time.time_ns() // 10**6) as store:
        assert store.recovery.clean
        assert store.recovery.replayed == 0
        found: Acknowledged = {}
        for queue in (0, 1):
            offset, end = store.queue_range("demo", queue)
            while offset < end:
                read = store.read("demo", queue, offset, max_bytes=1 << 20, max_count=1 << 16)
                for number, record in zip(read.offsets, read.records, strict=True):
                    found[queue, number] = bytes(decode(record).body)
                offset = read.next_offset
        return found


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_messages_acknowledged_over_both_protocols_survive_a_stop(
    tmp_path: Path, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(options(tmp_path, flush=flush))
    await node.start()
    node.create_topic("demo", 4)
    acknowledged: Acknowledged = {}
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(30):
            tasks = [
                asyncio.create_task(rocketmq_sends(node, acknowledged)),
                asyncio.create_task(tubemq_sends(node, acknowledged)),
            ]
            waiter = await Client.dial(node.rocketmq_port)
            held = waiter.begin(PULL, pull_fields(topic="demo", queueId="3", sysFlag="6"))
            await until(
                lambda: {at for at, _ in acknowledged} == {0, 1} and len(acknowledged) >= 500
            )
            assert not held.done()
            await node.stop()
            await asyncio.gather(*tasks)
            assert (await held).code == NOT_FOUND
            await waiter.lost.wait()
    assert [record.getMessage() for record in caplog.records] == []
    assert not (tmp_path / "abort").exists()
    found = stored(tmp_path)
    assert {key: found.get(key) for key in acknowledged} == acknowledged


async def test_slow_peers_of_many_ports_are_waited_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = most = 0

    async def close(self: net.Listener, *, timeout_ms: int = 2000) -> None:
        nonlocal closing, most
        closing += 1
        most = max(most, closing)
        await asyncio.sleep(0.01)
        closing -= 1
        await real(self, timeout_ms=timeout_ms)

    real = net.Listener.close
    monkeypatch.setattr(net.Listener, "close", close)
    async with Node(options(tmp_path)):
        pass
    assert most == 5


# -- failing starts


@pytest.fixture
def refused() -> Callable[[NodeOptions], Any]:
    async def start(given: NodeOptions) -> CohererError:
        with pytest.raises(CohererError) as caught:
            await Node(given).start()
        return caught.value

    return start


ROLES = [frozenset({"master"}), frozenset({"master", "broker"})]


@pytest.mark.parametrize("roles", ROLES)
async def test_a_directory_that_is_a_file(tmp_path: Path, refused: Any, roles: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    error = await refused(options(tmp_path / "file" / "node", roles=roles))
    assert isinstance(error, StoreError)


@pytest.mark.parametrize("roles", ROLES)
async def test_a_directory_in_use(tmp_path: Path, refused: Any, roles: Any) -> None:
    async with Node(options(tmp_path, roles=roles)):
        error = await refused(options(tmp_path, roles=roles))
    assert "in use" in str(error)


@pytest.mark.parametrize(
    "name",
    ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json",
     "tubemqMaster.json"],
)  # fmt: skip
@pytest.mark.parametrize("content", [b"\xff{", b"{", b"[1]", b'"x"', b"[" * 5_000])
async def test_invalid_files(tmp_path: Path, refused: Any, name: str, content: bytes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_bytes(content)
    assert isinstance(await refused(options(tmp_path)), StoreError)
    (tmp_path / "config" / name).unlink()
    async with Node(options(tmp_path)):
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()


# -- a disk without room


async def test_a_full_disk_over_rocketmq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Node(options(tmp_path)) as node:
        assert node.core is not None
        client = await Client.dial(node.rocketmq_port)
        assert (await client.send(b"before")).code == 0
        write, full = node.core.store.append, True

        def append(drafts: Any) -> Any:
            if full:
                raise StoreFullError("No room on the disk to write the log.")
            return write(drafts)

        monkeypatch.setattr(node.core.store, "append", append)
        for _ in range(2):
            answer = await client.send(b"refused")
            assert answer.code == 14
            assert (answer.remark or "").startswith("service not available now")
        found = await client.pull(topic="demo")
        assert found.code == 0, "what is there can be read"
        full = False
        assert (await client.send(b"after")).code == 0
