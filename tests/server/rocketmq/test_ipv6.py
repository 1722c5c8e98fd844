"""A broker and a client with IPv6 addresses in records, ids and checks.

See docs/protocol/rocketmq.md, section 5.1.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from coherer import _net as net
from coherer._record.ids import decode_offset_id
from coherer._record.layout import BORN_HOST_V6, STORE_HOST_V6, Record
from coherer.testing import ManualClock
from tests.server.client_harness import consumer, heartbeat, tags
from tests.server.rocket_harness import SEND_BACK, BrokerHarness, Client, records_of

HEARTBEAT, VIEW, END, CHECK, DIRECTLY = 34, 33, 37, 39, 309
HOST = bytes(15) + b"\x01"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as made:
            made.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def harness(tmp_path: Path, clock: ManualClock) -> AsyncIterator[BrokerHarness]:
    made = BrokerHarness(tmp_path, clock, host="::1")
    listener = await net.listen("::1", 0, made.broker.remoting.make)
    made.port = listener.port
    yield made
    await listener.close()
    await made.stop()


@pytest.fixture
async def peer(harness: BrokerHarness) -> AsyncIterator[Client]:
    made = await net.dial("::1", harness.port, Client)
    yield made
    await made.hang_up()


def check_hosts(record: Record) -> None:
    assert record.sys_flag & BORN_HOST_V6
    assert record.sys_flag & STORE_HOST_V6
    assert (record.born_host[:16], record.store_host) == (HOST, HOST + (10911).to_bytes(4, "big"))


async def test_messages_on_all_ways(
    harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    sent = decode_offset_id((await peer.send(b"sent")).fields["msgId"])
    assert (sent.address, sent.port) == (HOST, 10911)
    await peer.send(b"delayed", i="DELAY\x011")
    clock.advance(1_500)
    harness.broker.tick()
    await peer.settle()
    half = (await peer.send(b"half", f=4, i=f"{HALF}U")).fields
    fields = {"producerGroup": "p", "commitOrRollback": "8"}
    fields["tranStateTableOffset"] = half["queueOffset"]
    fields["commitLogOffset"] = str(decode_offset_id(half["msgId"]).physical_offset)
    assert (await peer.ask(END, fields)).code == 0
    back = {"offset": str(sent.physical_offset), "group": "g", "delayLevel": "-1"}
    assert (await peer.ask(SEND_BACK, back)).code == 0
    found = records_of(await peer.pull())
    assert [record.body for record in found] == [b"sent", b"delayed", b"half"]
    for record in [*found, *harness.records("%DLQ%g")]:
        check_hosts(record)
    [seen] = records_of(await peer.ask(VIEW, {"offset": str(sent.physical_offset)}))
    assert seen.body == b"sent"


async def test_questions_to_a_client(
    harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    sent = (await peer.send(b"sent")).fields["msgId"]
    beat = heartbeat("me", [consumer("g", tags("demo"))], "p")
    assert (await peer.ask(HEARTBEAT, body=msgspec.json.encode(beat))).code == 0
    assert peer.asked.get_nowait().fields == {"consumerGroup": "g"}
    answer = asyncio.ensure_future(
        peer.ask(DIRECTLY, {"consumerGroup": "g", "clientId": "me", "msgId": sent})
    )
    asked = await peer.next_asked()
    [record] = records_of(asked)
    check_hosts(record)
    peer.answer(asked)
    assert (await answer).code == 0
    await peer.send(b"half", f=4, i=f"{HALF}U", g=clock.now_ms())
    clock.advance(61_000)
    harness.broker.tick()
    asked = await peer.next_asked()
    assert asked.code == CHECK
    assert len(asked.fields["offsetMsgId"]) == 56
    [record] = records_of(asked)
    check_hosts(record)
    assert (record.body, record.topic) == (b"half", "demo")
