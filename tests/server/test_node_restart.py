"""A node is killed and restarted while TubeMQ's consumers are connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coherer._server.node.node import Node
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import SubscribeInfo
from coherer.testing import ManualClock
from tests.server.node_harness import WHO, get, message, options, register, to_broker, to_master
from tests.server.raw_client import RawClient

SLOW, NEXT = (f"g_127.0.0.1-{number}-2-3-Pull-coherer1.0" for number in (1, 2))


async def join(asker: RawClient, client_id: str) -> Any:
    request = pb.RegisterRequestC2M(
        clientId=client_id, groupName="g", hostName="127.0.0.1", topicList=["demo"]
    )
    return await asker.ask(methods.CONSUMER_REGISTER, request)


async def told(asker: RawClient, client_id: str) -> list[int]:
    """The partitions that the master's next event gives."""
    request = pb.HeartRequestC2M(clientId=client_id, groupName="g", reportSubscribeInfo=False)
    answer = await asker.ask(methods.CONSUMER_HEARTBEAT, request)
    assert answer.success, answer
    return sorted(SubscribeInfo.parse(text).partition.id for text in answer.event.subscribeInfo)


async def test_a_consumer_that_was_declared_dead_reads_nothing_more(
    tmp_path: Path,
) -> None:
    """The master waits 2 s for a consumer that reports often; the broker has the last word."""
    clock = ManualClock()
    slow, following = {"clientId": SLOW}, {"clientId": NEXT}
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        node.create_topic("demo", 2)
        master, broker = await to_master(node), await to_broker(node)
        assert (await join(master, SLOW)).success
        assert await told(master, SLOW) == [0, 1]
        assert (await register(broker, **slow)).success
        assert (await broker.ask(methods.SEND_MESSAGE, message())).success
        assert (await get(broker, **slow)).success
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        master, broker = await to_master(node), await to_broker(node)
        assert (await join(master, NEXT)).success
        node.tubemq.tick()
        assert await told(master, NEXT) == [], "the other may come back"
        clock.advance(2_000)
        assert await told(master, NEXT) == [0, 1]
        assert (await register(broker, **following)).success
        got = await get(broker, **following)
        assert got.success, "what was not confirmed comes again"
        # The slow consumer continues undisturbed.
        late = await to_broker(node)
        assert (await get(late, **slow)).errCode == ResultCode.DUPLICATE_PARTITION
        assert (await register(late, **slow)).errCode == ResultCode.PARTITION_OCCUPIED
        commit = pb.CommitOffsetRequestC2B(**{**WHO, **slow, "lastPackConsumed": True})
        answer = await late.ask(methods.COMMIT_OFFSET, commit)
        assert answer.errCode == ResultCode.UNAUTHORIZED
        assert (await broker.ask(methods.SEND_MESSAGE, message(b"more"))).success
        got = await get(broker, **following)
        assert [bytes(one.payLoadData)[-4:] for one in got.messages] == [b"more"]
