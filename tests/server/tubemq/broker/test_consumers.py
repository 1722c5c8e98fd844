"""Methods 15 and 16: registration, starting offsets and leases of consumers."""

from __future__ import annotations

from typing import Any

import pytest

from coherer import limits
from coherer._record.properties import java_hash
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.consumers import tag_codes
from coherer.testing import ManualClock
from tests.server.broker_harness import BrokerClient, bodies


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": "", "topicName": ""}, 400),
        ({"topicName": "", "groupName": ""}, 400),
        ({"topicName": "unknown", "groupName": ""}, 403),
        ({"groupName": "", "opType": 33}, 400),
        ({"groupName": "g" * 1025}, 400),
        ({"opType": 33}, 400),
        ({"partitionId": 3}, 403),
        ({"filterCondStr": ["f" * 257]}, 400),
        ({"filterCondStr": ["f"] * 501}, 400),
    ],
)
async def test_refused_registrations(
    client: BrokerClient, fields: dict[str, Any], code: int
) -> None:
    refused = client.register(**fields)
    assert (refused.success, refused.errCode, refused.currOffset) == (False, code, -1)


async def test_where_reading_starts(client: BrokerClient, broker: Broker) -> None:
    for _ in range(5):
        await client.send()
    first = client.register(groupName="first")
    assert (first.currOffset, first.maxOffset, first.offsetStep) == (0, 5, 1)
    assert client.register(groupName="latest", readStatus=1).currOffset == 5
    assert client.register(groupName="named", readStatus=1, currOffset=3).currOffset == 3
    assert client.register(groupName="beyond", currOffset=99).currOffset == 5
    assert client.register(groupName="always", readStatus=2, currOffset=3).currOffset == 5
    assert client.register(groupName="odd", readStatus=9).currOffset == 5
    assert client.unregister(groupName="first", readStatus=1).success
    assert client.register(groupName="first", readStatus=1).currOffset == 0, (
        "the group has an offset"
    )
    assert len(broker.state.leases) == 6


async def test_a_named_offset_is_the_position_of_the_group(
    client: BrokerClient, clock: ManualClock
) -> None:
    """Also before its first commit: consumers that lose a partition do not name it again."""
    for _ in range(5):
        await client.send()
    for group, lose in (
        ("given up", lambda: client.unregister(groupName="given up", readStatus=1)),
        ("timed out", lambda: clock.advance(30_000)),
    ):
        assert client.register(groupName=group, currOffset=3).currOffset == 3
        assert len(bodies(client.get(groupName=group))) == 2
        lose()
        assert client.register(groupName=group).currOffset == 3
        assert len(bodies(client.get(groupName=group))) == 2


async def test_where_the_messages_of_a_time_start(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    """A question of Coherer's clients; others neither ask nor are answered."""
    times: list[int] = []
    for _ in range(4):
        times.append(broker.state.wall_ms())
        await client.send()
        clock.advance(1_000)
    for number, time in enumerate(times):
        found = client.register(groupName="g", sinceTime=time)
        assert (found.sinceOffset, found.currOffset) == (number, 0)
    assert client.register(groupName="g", sinceTime=times[1] + 1).sinceOffset == 2
    assert client.register(groupName="g", sinceTime=times[3] + 1).sinceOffset == 4
    assert client.register(groupName="g", sinceTime=0).sinceOffset == 0
    assert not client.register(groupName="g").HasField("sinceOffset")


async def test_a_group_that_runs_misses_nothing(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    """What Coherer's clients say of a partition that has come to their group."""
    for _ in range(4):
        await client.send()
        clock.advance(1_000)

    def begin(group: str, age_ms: int, **fields: Any) -> int:
        answer = client.register(groupName=group, **{"readStatus": 1, **fields}, startAge=age_ms)
        assert answer.maxOffset == 4
        return answer.currOffset

    ages = (0, 1_000, 1_001, 3_001, 60_000)
    assert [begin(f"g{age_ms}", age_ms) for age_ms in ages] == [4, 4, 3, 1, 0]
    assert begin("g1001", 60_000) == 3, "the group has an offset"
    assert begin("exact", 1_001, currOffset=4) == 4
    assert begin("end", 60_000, readStatus=2) == 4
    assert begin("begin", 0, readStatus=0) == 0


async def test_one_consumer_of_a_group_at_a_time(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    other = BrokerClient(broker)
    await client.send()
    assert client.register().success
    assert len(bodies(client.get())) == 1
    refused = other.register(clientId="c2")
    assert (refused.errCode, "c1" in refused.errMsg) == (410, True)
    assert other.register(clientId="c2", groupName="h").success
    clock.advance(29_999)
    assert other.register(clientId="c2").errCode == 410
    clock.advance(1)
    assert other.register(clientId="c2").success, "unlike Java, at the first attempt"
    assert bodies(other.get(clientId="c2")) == [b"hello"], "the uncommitted read is repeated"
    assert client.get().errCode == 412
    assert client.commit().errCode == 401


async def test_registering_again_drops_the_uncommitted_read(client: BrokerClient) -> None:
    await client.send()
    client.register()
    assert len(bodies(client.get())) == 1
    assert client.register().currOffset == 0
    assert client.commit().currOffset == 0
    assert len(bodies(client.get())) == 1


async def test_giving_up_a_partition(client: BrokerClient, broker: Broker) -> None:
    await client.send()
    await client.send()
    assert client.unregister().errCode == 411
    client.register()
    assert BrokerClient(broker).unregister(clientId="c2").errCode == 412
    assert len(bodies(client.get())) == 2
    assert client.unregister(readStatus=1).currOffset == 0
    client.register()
    assert len(bodies(client.get())) == 2
    gone = client.unregister(readStatus=0)
    assert (gone.success, gone.currOffset, gone.maxOffset) == (True, 2, 2)
    assert client.get().errCode == 411
    assert len(broker.state.leases) == 0
    assert not broker.consumers


async def test_leases_are_limited(client: BrokerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASES_MAX", 2)
    assert client.register(groupName="a").success
    assert client.register(groupName="b").success
    assert client.register(groupName="c").errCode == 503
    assert client.register(groupName="b").success


# -- method 16


async def test_heartbeats_renew_and_report(
    client: BrokerClient, broker: Broker, clock: ManualClock
) -> None:
    client.register()
    BrokerClient(broker).register(clientId="c2", partitionId=1)
    clock.advance(20_000)
    texts = [f"7:h:8123#demo:{number}" for number in (0, 1, 2)]
    answer = client.heartbeat(*texts, "nonsense", qryPriorityId=303)
    assert (answer.success, answer.errCode, answer.hasPartFailure) == (True, 200, True)
    assert list(answer.failureInfo) == [f"412:{texts[1]}", f"411:{texts[2]}"]
    assert not answer.requireAuth
    [reader] = broker.state.leases.held_by("c1")
    assert reader.priority == 303
    clock.advance(20_000)
    broker.tick()
    assert [reader.holder for reader in broker.state.leases] == ["c1"]
    assert not client.heartbeat(texts[0]).hasPartFailure
    clock.advance(30_000)
    assert list(client.heartbeat(texts[0]).failureInfo) == [f"411:{texts[0]}"]
    assert client.heartbeat(groupName="").errCode == 400


def test_filters_become_hash_codes() -> None:
    assert tag_codes([]) is None
    assert tag_codes(["", "  "]) is None
    assert tag_codes(["é😀 ", "é😀"]) == frozenset({java_hash("é😀")})
