"""Consumers at the master: registration, events, agreement and rights."""

from __future__ import annotations

from typing import Any

import pytest

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import SubscribeInfo
from tests.server.master_harness import Broker, Consumer, MasterHarness, refused

CODE = ResultCode


@pytest.fixture
def harness() -> MasterHarness:
    return cluster()


def cluster(partitions: int = 8, **options: Any) -> MasterHarness:
    """One broker with topics flights and weather."""
    harness = MasterHarness(**options)
    broker = harness.broker()
    harness.topic("flights", partitions)
    harness.topic("weather", 2)
    broker.sync()
    return harness


def join(harness: MasterHarness, name: str, **fields: Any) -> Consumer:
    consumer = Consumer(harness, name, **fields)
    assert consumer.register().success
    return consumer


# -- balance as clients see it


def test_a_consumer_gets_all_partitions_with_its_first_heartbeat(harness: MasterHarness) -> None:
    consumer = join(harness, "a")
    answer = consumer.heartbeat()
    assert answer.event.opType == 10
    assert answer.event.subscribeInfo[0] == "a@g#1:10.0.0.1:8123#flights:0"
    assert consumer.numbers == list(range(8))
    assert answer.notAllocated
    assert answer.heartbeatMs < 500, "until it has reported, it should report soon"
    answer = consumer.heartbeat()
    assert not answer.HasField("event")
    assert not answer.notAllocated
    assert answer.heartbeatMs == 500


def test_two_consumers_are_rebalanced(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    b = join(harness, "b")
    assert not b.heartbeat().HasField("event"), "a has to give up first"
    assert a.heartbeat().event.opType == 20
    assert not b.heartbeat().HasField("event"), "a has not acknowledged"
    a.heartbeat()
    assert b.heartbeat().event.opType == 10
    b.heartbeat()
    assert sorted(a.numbers + b.numbers) == list(range(8))
    assert len(a.numbers) == len(b.numbers) == 4
    assert b.close().success
    a.heartbeat()
    a.heartbeat()
    assert a.numbers == list(range(8))


def test_a_lost_event_is_sent_again(harness: MasterHarness) -> None:
    a = join(harness, "a")
    first = a.heartbeat().event
    a.held.clear()
    a.result = None  # the answer was lost
    assert not a.heartbeat().HasField("event")
    for _ in range(2):
        harness.wait(13_000)
        a.heartbeat()
    assert not a.held
    harness.wait(4_000)
    assert a.heartbeat().event == first
    assert a.numbers == list(range(8))


def test_a_second_acknowledgement_is_ignored(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    result = a.result
    a.heartbeat()
    join(harness, "b")
    event = a.heartbeat(event=result).event
    assert event.opType == 20
    assert event.rebalanceId > result.rebalanceId


def test_a_dead_consumers_partitions_go_to_the_others(harness: MasterHarness) -> None:
    a, b = join(harness, "a"), join(harness, "b")
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    assert len(a.numbers) == 4
    broker = Broker(harness, 1)
    for _ in range(3):
        harness.wait(10_000)
        broker.heartbeat()
        a.heartbeat()
    assert a.numbers == list(range(8))
    assert refused(b.heartbeat(), CODE.HB_NO_NODE)


def test_a_returning_consumer_reports_its_partitions(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    harness.wait(30_000)
    assert refused(a.heartbeat(), CODE.HB_NO_NODE)
    harness.now_ms += 1
    assert not a.register().notAllocated
    assert not a.heartbeat().HasField("event")
    assert a.numbers == list(range(8))


def test_after_a_restart_groups_wait_for_their_members(harness: MasterHarness) -> None:
    a, b = join(harness, "a"), join(harness, "b")
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    before = a.numbers, b.numbers
    broker = Broker(harness, 1)
    harness.wait(0)
    harness.restart()
    broker.start()
    broker.sync()
    assert refused(a.heartbeat(), CODE.HB_NO_NODE)
    a.register()
    assert not a.heartbeat().HasField("event")
    harness.wait(10_000)
    assert not a.heartbeat().HasField("event"), "b may still come"
    b.register()
    assert not b.heartbeat().HasField("event")
    assert (a.numbers, b.numbers) == before


def test_after_a_restart_groups_wait_for_a_limited_time(harness: MasterHarness) -> None:
    a, b = join(harness, "a"), join(harness, "b")
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    harness.wait(0)
    harness.restart()
    broker = Broker(harness, 1)
    broker.start()
    broker.sync()
    a.register()
    harness.wait(15_000)
    a.heartbeat()
    assert a.numbers == list(range(8))


def test_after_a_restart_groups_wait_a_short_time_for_coherers_consumers(
    harness: MasterHarness,
) -> None:
    """They report every half second, so one that died with the master is soon given up."""
    a, b = join(harness, "a"), join(harness, "g_10.0.0.9-1-2-3-Pull-coherer1.0")
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    harness.wait(0)
    harness.restart()
    broker = Broker(harness, 1)
    broker.start()
    broker.sync()
    a.register()
    harness.wait(0)
    harness.wait(1_999)
    assert not a.heartbeat().HasField("event")
    harness.wait(1)
    a.heartbeat()
    assert a.numbers == list(range(8))
    b.register()
    for _ in range(3):
        a.heartbeat()
        b.heartbeat()
    assert sorted(a.numbers + b.numbers) == list(range(8)), "the slow member has its share again"
    assert len(a.numbers) == 4


def test_after_a_restart_groups_do_not_wait_for_consumers_that_left(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    harness.wait(0)
    a.close()
    harness.master.close()
    harness.restart()
    broker = Broker(harness, 1)
    broker.start()
    broker.sync()
    b = join(harness, "b")
    b.heartbeat()
    assert b.numbers == list(range(8))


def test_outdated_members_are_not_expected(harness: MasterHarness) -> None:
    join(harness, "a")
    harness.wait(0)
    harness.now_ms += 3_600_000
    harness.restart()
    broker = Broker(harness, 1)
    broker.start()
    broker.sync()
    b = join(harness, "b")
    b.heartbeat()
    assert b.numbers == list(range(8))


def test_partitions_that_could_not_be_taken_are_assigned_again(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    taken = sorted(a.held)
    a.held = set(taken[:-1])
    assert not a.heartbeat().HasField("event")
    harness.wait(999)
    assert not a.heartbeat().HasField("event")
    harness.wait(1)
    assert list(a.heartbeat().event.subscribeInfo) == taken[-1:]


def test_a_consumer_gets_lost_partitions_again(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    a.held = set(sorted(a.held)[1:])
    answer = a.heartbeat(report=True)
    assert [SubscribeInfo.parse(t).partition.id for t in answer.event.subscribeInfo] == [0]


def test_reports_of_unknown_partitions_are_ignored(harness: MasterHarness) -> None:
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    a.held |= {"nonsense", "a@g#9:h:1#flights:0", "a@g#1:h:1#flights:8", "a@g#1:h:1#other:0"}
    assert not a.heartbeat(report=True).HasField("event")
    group = harness.master.state.groups.get("g")
    assert group is not None
    assert len(group.members["a"].held) == 8


def test_a_new_topic_or_partition_reaches_running_groups() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic("flights", 2)
    broker.sync()
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    state = harness.master.state
    state.catalog.update_topic("flights", 1, {"partitions": 3}, state.change("me"))
    state.apply_changes(harness.now_ms)
    broker.sync()
    a.heartbeat()
    assert a.numbers == [0, 1, 2]


def test_partitions_of_a_restarted_broker_have_to_be_registered_again(
    harness: MasterHarness,
) -> None:
    a = join(harness, "a")
    a.heartbeat()
    a.heartbeat()
    broker = Broker(harness, 1)
    broker.close()
    assert not a.heartbeat().HasField("event")
    assert a.numbers == list(range(8)), "no other member could read them now"
    a.held.clear()
    broker.start()
    broker.sync()
    a.heartbeat()
    assert a.numbers == list(range(8))


def test_over_tls_partitions_are_named_with_tls_ports(harness: MasterHarness) -> None:
    a = join(harness, "a", secure=True)
    assert "1:10.0.0.1:8124#" in a.heartbeat().event.subscribeInfo[0]


def test_closing_twice_is_harmless(harness: MasterHarness) -> None:
    a = join(harness, "a")
    assert a.close().success
    assert a.close().success
    assert refused(a.heartbeat(), CODE.HB_NO_NODE)
    assert harness.master.groups() == {}


def test_a_group_with_too_many_brokers_per_consumer_gets_nothing() -> None:
    harness = cluster(group_broker_rate_max=1)
    second = harness.broker(2, host="10.0.0.2")
    harness.topic("flights")
    second.sync()
    a = join(harness, "a")
    a.heartbeat()
    assert not a.held
    b = join(harness, "b")
    a.heartbeat()
    b.heartbeat()
    assert a.held
    assert b.held


# -- registration


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"clientId": ""}, CODE.BAD_REQUEST),
        ({"clientId": "x" * 1025}, CODE.BAD_REQUEST),
        ({"hostName": " "}, CODE.BAD_REQUEST),
        ({"groupName": ""}, CODE.BAD_REQUEST),
        ({"groupName": "x" * 1025}, CODE.BAD_REQUEST),
        ({"topicList": []}, CODE.BAD_REQUEST),
        ({"topicList": [" "]}, CODE.BAD_REQUEST),
        ({"topicList": [f"t{n}" for n in range(1025)]}, CODE.BAD_REQUEST),
        ({"topicList": ["flights", "unknown"]}, CODE.TOPIC_NOT_DEPLOYED),
        ({"topicCondition": ["no hash sign"]}, CODE.BAD_REQUEST),
        ({"topicCondition": ["weather#UA"]}, CODE.BAD_REQUEST),
        ({"topicCondition": ["flights#" + "x" * 257]}, CODE.BAD_REQUEST),
        ({"topicCondition": [f"flights#{','.join(map(str, range(501)))}"]}, CODE.BAD_REQUEST),
        ({"requireBound": True, "totalCount": 1}, CODE.BAD_REQUEST),
        ({"requireBound": True, "sessionKey": "k"}, CODE.BAD_REQUEST),
        (
            {
                "requireBound": True,
                "sessionKey": "k",
                "totalCount": 1,
                "requiredPartition": "1:flights:0",
            },
            CODE.BAD_REQUEST,
        ),
        (
            {
                "requireBound": True,
                "sessionKey": "k",
                "totalCount": 1,
                "requiredPartition": "1:weather:0=5",
            },
            CODE.BAD_REQUEST,
        ),
    ],
)
def test_invalid_consumer_registrations(
    harness: MasterHarness, changes: dict[str, Any], code: ResultCode
) -> None:
    assert refused(Consumer(harness, "a").register(**changes), code)
    assert harness.master.groups() == {}


BOUND: dict[str, Any] = {
    "requireBound": True,
    "sessionKey": "k",
    "totalCount": 2,
    "selectBig": True,
    "notAllocated": True,
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"requireBound": False}, CODE.CLIENT_INCONSISTENT_CONSUMETYPE),
        ({"topicList": ["flights", "weather"]}, CODE.CLIENT_INCONSISTENT_TOPICSET),
        ({"topicCondition": ["flights#UA"]}, CODE.CLIENT_INCONSISTENT_FILTERSET),
        ({"sessionKey": "x"}, CODE.CLIENT_INCONSISTENT_SESSIONKEY),
        ({"selectBig": False}, CODE.CLIENT_INCONSISTENT_SELECTBIG),
        ({"totalCount": 3}, CODE.CLIENT_INCONSISTENT_SOURCECOUNT),
    ],
)
def test_members_of_a_group_must_agree(
    harness: MasterHarness, change: dict[str, Any], code: ResultCode
) -> None:
    join(harness, "a", **BOUND)
    b = Consumer(harness, "b", **BOUND)
    assert refused(b.register(**change), code)
    assert b.register().success
    assert Consumer(harness, "a").register(groupName="other", **change).success


def test_filters_of_a_topic_may_come_one_by_one(harness: MasterHarness) -> None:
    join(harness, "a", topicCondition=["flights#UA", " ", "flights#AA"])
    b = Consumer(harness, "b")
    assert refused(b.register(topicCondition=["flights#AA"]), CODE.CLIENT_INCONSISTENT_FILTERSET)
    assert b.register(topicCondition=["flights#AA,UA"]).success


def test_the_larger_offset_wins_by_default(harness: MasterHarness) -> None:
    """Java's master reads the missing field in the same way."""
    silent = {name: value for name, value in BOUND.items() if name != "selectBig"}
    join(harness, "a", **silent)
    assert refused(
        Consumer(harness, "b", **BOUND).register(selectBig=False),
        CODE.CLIENT_INCONSISTENT_SELECTBIG,
    )
    assert Consumer(harness, "b", **BOUND).register(selectBig=True).success


# -- bound groups


def test_a_bound_group_starts_at_the_named_offsets(harness: MasterHarness) -> None:
    a = join(harness, "a", **BOUND, requiredPartition="1:flights:7=70")
    assert not a.heartbeat().HasField("event")
    b = join(harness, "b", **BOUND, requiredPartition="1:flights:0=5,1:flights:1=6")
    answer = b.heartbeat()
    assert answer.notAllocated, "with this event it uses the offsets that it named"
    assert b.numbers == [0, 1]
    answer = a.heartbeat()
    assert answer.notAllocated
    assert a.numbers == [7]
    assert b.heartbeat().notAllocated, "a has not acknowledged"
    assert not a.heartbeat().notAllocated
    for _ in range(4):
        a.heartbeat()
        b.heartbeat()
    assert sorted(a.numbers + b.numbers) == list(range(8))
    assert 7 in a.numbers
    assert {0, 1} <= set(b.numbers)


def test_a_bound_group_that_continues_keeps_its_offsets(harness: MasterHarness) -> None:
    fields = {**BOUND, "notAllocated": False, "requiredPartition": "1:flights:7=70"}
    a = Consumer(harness, "a", **fields)
    assert not a.register().notAllocated
    a.heartbeat()
    assert a.numbers == list(range(8))


def test_exact_offsets_may_need_a_record() -> None:
    harness = cluster(start_offset_check=True)
    a = Consumer(harness, "a", **BOUND)
    assert refused(a.register(), CODE.BAD_REQUEST)
    state = harness.master.state
    state.catalog.control_group("g", {}, state.change("me"))
    assert a.register().success


def test_a_bound_group_may_have_too_few_members() -> None:
    harness = cluster(group_broker_rate_max=1)
    for number in (2, 3, 4):
        broker = harness.broker(number, host=f"10.0.0.{number}")
        harness.topic("flights")
        broker.sync()
    a = Consumer(harness, "a", **BOUND)
    assert refused(a.register(totalCount=2), CODE.BAD_REQUEST)
    state = harness.master.state
    changes = {"check_resources": True, "broker_rate_max": 2}
    state.catalog.control_group("g", changes, state.change("me"))
    assert a.register(totalCount=2).success


# -- rights and rules


def test_a_group_needs_permission_for_a_topic_with_authorization(harness: MasterHarness) -> None:
    catalog, change = harness.master.state.catalog, harness.master.state.change("me")
    catalog.control_topic("flights", {"authorize": True}, change)
    a = Consumer(harness, "a")
    assert refused(a.register(), CODE.CONSUME_GROUP_FORBIDDEN)
    catalog.control_consumption("flights", "g", {}, change)
    assert a.register().success


def test_a_group_may_be_restricted_to_filters(harness: MasterHarness) -> None:
    catalog, change = harness.master.state.catalog, harness.master.state.change("me")
    allowed = {"filtered": True, "filters": frozenset({"UA", "AA"})}
    catalog.control_consumption("flights", "g", allowed, change)
    a = Consumer(harness, "a")
    assert refused(a.register(), CODE.CONSUME_CONTENT_FORBIDDEN)
    assert refused(a.register(topicCondition=["flights#UA,DL"]), CODE.CONSUME_CONTENT_FORBIDDEN)
    assert a.register(topicCondition=["flights#UA"]).success


def test_a_group_gives_up_a_topic_it_may_no_longer_read(harness: MasterHarness) -> None:
    a = join(harness, "a", topics=("flights", "weather"))
    a.heartbeat()
    a.heartbeat()
    assert len(a.held) == 10
    state = harness.master.state
    state.catalog.control_consumption("weather", "g", {"enabled": False}, state.change("me"))
    harness.wait(0)
    assert a.heartbeat().event.opType == 20
    assert len(a.held) == 8


def test_flow_rules_come_when_they_are_new_and_asked_for(harness: MasterHarness) -> None:
    state = harness.master.state
    a = Consumer(harness, "a")
    answer = a.register()
    assert (answer.defFlowCheckId, answer.defFlowControlInfo) == (-2, " ")
    assert (answer.groupFlowCheckId, answer.groupFlowControlInfo) == (-2, " ")
    assert (answer.qryPriorityId, answer.ssdStoreId) == (-2, -2)
    state.catalog.set_cluster({"flow_enabled": True, "flow_rules": "[0]"}, state.change("me"))
    rules = {"flow_enabled": True, "flow_rules": "[1]", "priority": 303}
    state.catalog.control_group("g", rules, state.change("me"))
    answer = a.heartbeat()
    assert (answer.defFlowControlInfo, answer.groupFlowControlInfo) == ("[0]", "[1]")
    assert answer.qryPriorityId == 303
    again = a.heartbeat(
        defFlowCheckId=answer.defFlowCheckId, groupFlowCheckId=answer.groupFlowCheckId
    )
    assert (again.defFlowControlInfo, again.groupFlowControlInfo) == (" ", " ")
    state.catalog.control_group("g", {"flow_enabled": False}, state.change("me"))
    answer = a.heartbeat()
    assert (answer.groupFlowCheckId, answer.qryPriorityId) == (-2, 303)
    request = pb.HeartRequestC2M(clientId="a", groupName="g", reportSubscribeInfo=False)
    assert not harness.ask(5, request).HasField("defFlowCheckId")
