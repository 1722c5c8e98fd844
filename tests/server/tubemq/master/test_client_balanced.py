"""Client-balanced consumers: methods 20 to 22."""

from __future__ import annotations

from typing import Any

import pytest

from coherer._wire.tubemq import credentials, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from tests.server.master_harness import Broker, Consumer, MasterHarness

CODE = ResultCode


@pytest.fixture
def harness() -> MasterHarness:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic("flights", 3)
    broker.sync()
    return harness


def register(harness: MasterHarness, name: str = "a", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "clientId": name,
        "groupName": "g",
        "hostName": "10.0.0.9",
        "sourceCount": -2,
        "nodeId": -2,
        "topicList": ["flights"],
        "subRepInfo": pb.ClientSubRepInfo(brokerConfigId=-2, topicMetaInfoId=-2),
        "opsTaskInfo": pb.OpsTaskInfo(),
        **changes,
    }
    return harness.ask(methods.CONSUMER_REGISTER_V2, pb.RegisterRequestC2MV2(**fields))


def heartbeat(harness: MasterHarness, name: str = "a", auth: Any = None, **report: Any) -> Any:
    held = pb.ClientSubRepInfo(**{"brokerConfigId": -2, "topicMetaInfoId": -2, **report})
    request = pb.HeartRequestC2MV2(
        clientId=name, groupName="g", subRepInfo=held, authInfo=auth, opsTaskInfo=pb.OpsTaskInfo()
    )
    return harness.ask(methods.CONSUMER_HEARTBEAT_V2, request)


def partitions(harness: MasterHarness, brokers: int = -2, meta: int = -2, auth: Any = None) -> Any:
    request = pb.GetPartMetaRequestC2M(
        clientId="a", groupName="g", brokerConfigId=brokers, topicMetaInfoId=meta, authInfo=auth
    )
    return harness.ask(methods.GET_PARTITION_META, request)


def test_a_client_balanced_consumer_gets_lists_that_have_changed(harness: MasterHarness) -> None:
    answer = register(harness)
    assert (answer.errCode, answer.errMsg) == (200, "OK!")
    assert list(answer.brokerConfigList) == ["1:10.0.0.1: "]
    held = pb.ClientSubRepInfo(brokerConfigId=answer.brokerConfigId, topicMetaInfoId=-2)
    assert not register(harness, subRepInfo=held).brokerConfigList
    found = partitions(harness)
    assert list(found.topicMetaInfoList) == ["flights#1:1:3:1"]
    assert list(found.brokerConfigList) == ["1:10.0.0.1: "]
    again = partitions(harness, found.brokerConfigId, found.topicMetaInfoId)
    assert not again.topicMetaInfoList
    assert not again.brokerConfigList


def test_client_balanced_consumers_do_not_create_topics() -> None:
    harness = MasterHarness(auto_create_topics=True)
    harness.broker()
    assert register(harness, topicList=["nowhere"]).errCode == CODE.TOPIC_NOT_DEPLOYED
    assert Consumer(harness, "a", topicList=["nowhere"]).register().success


def test_malformed_partitions_are_ignored(harness: MasterHarness) -> None:
    register(harness)
    before = partitions(harness).topicMetaInfoId
    Broker(harness, 1).close()
    found = partitions(harness, meta=before)
    assert found.topicMetaInfoId > before
    assert list(found.topicMetaInfoList) == ["flights#1:1:3:0"]


def test_heartbeats_bring_partitions_after_the_update_period(harness: MasterHarness) -> None:
    register(harness)
    report = {
        "reportSubInfo": True,
        "partSubInfo": ["flights#1:0,1:1", "nonsense", "flights#1:99"],
        "lstAssignedTime": harness.now_ms,
    }
    assert not heartbeat(harness, **report).HasField("topicMetaInfoId")
    assert harness.master.state.groups.get("g").members["a"].held  # type: ignore[union-attr]
    harness.now_ms += 180_001
    answer = heartbeat(harness, **report)
    assert list(answer.topicMetaInfoList) == ["flights#1:1:3:1"]
    known = heartbeat(harness, **report, topicMetaInfoId=answer.topicMetaInfoId)
    assert known.topicMetaInfoId == answer.topicMetaInfoId
    assert not known.topicMetaInfoList


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"clientId": ""}, CODE.BAD_REQUEST),
        ({"sourceCount": 2, "nodeId": 2}, CODE.BAD_REQUEST),
        ({"sourceCount": 2, "nodeId": -2}, CODE.BAD_REQUEST),
        ({"topicList": ["unknown"]}, CODE.TOPIC_NOT_DEPLOYED),
        ({"topicList": ["flights"], "topicCondition": ["x"]}, CODE.BAD_REQUEST),
        ({"topicList": ["flights"], "topicCondition": ["weather#UA"]}, CODE.BAD_REQUEST),
    ],
)
def test_invalid_client_balanced_registrations(
    harness: MasterHarness, changes: dict[str, Any], code: ResultCode
) -> None:
    assert register(harness, **changes).errCode == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sourceCount": 3, "nodeId": 1}, CODE.CLIENT_INCONSISTENT_SOURCECOUNT),
        ({"sourceCount": 2, "nodeId": 0}, CODE.CLIENT_DUPLICATE_INDEXID),
        ({"sourceCount": 2, "nodeId": 1}, CODE.SUCCESS),
        (
            {"sourceCount": 2, "nodeId": 1, "topicCondition": ["flights#UA"]},
            CODE.CLIENT_INCONSISTENT_FILTERSET,
        ),
    ],
)
def test_members_of_a_client_balanced_group_must_agree(
    harness: MasterHarness, changes: dict[str, Any], code: ResultCode
) -> None:
    assert register(harness, sourceCount=2, nodeId=0).errCode == CODE.SUCCESS
    assert register(harness, "b", **changes).errCode == code


def test_a_group_that_began_without_a_count_does_not_count(harness: MasterHarness) -> None:
    assert register(harness).errCode == CODE.SUCCESS
    for name in "bc":
        assert register(harness, name, sourceCount=3, nodeId=0).errCode == CODE.SUCCESS


def test_client_balanced_and_other_consumers_do_not_share_a_group(harness: MasterHarness) -> None:
    register(harness)
    assert Consumer(harness, "b").register().errCode == CODE.CLIENT_INCONSISTENT_CONSUMETYPE


def test_unknown_producers_must_register(harness: MasterHarness) -> None:
    assert heartbeat(harness).errCode == CODE.HB_NO_NODE
    assert partitions(harness).errCode == CODE.HB_NO_NODE


def test_client_balanced_consumers_unregister(harness: MasterHarness) -> None:
    register(harness)
    assert Consumer(harness, "a").close().success
    assert harness.master.groups() == {}
    register(harness)
    harness.wait(30_000)
    assert heartbeat(harness).errCode == CODE.HB_NO_NODE


def test_flow_rules_and_orders_are_sent(harness: MasterHarness) -> None:
    state = harness.master.state
    state.catalog.set_cluster({"flow_enabled": True, "flow_rules": "[0]"}, state.change("me"))
    tasks = register(harness).opsTaskInfo
    assert tasks.defFlowControlInfo == "[0]"
    assert not tasks.HasField("csmFrmMaxOffsetCtrlId")
    held = pb.OpsTaskInfo(defFlowCheckId=tasks.defFlowCheckId)
    assert not register(harness, opsTaskInfo=held).opsTaskInfo.HasField("defFlowControlInfo")
    state.catalog.set_cluster({"flow_enabled": False}, state.change("me"))
    tasks = register(harness, opsTaskInfo=held).opsTaskInfo
    assert (tasks.defFlowCheckId, tasks.defFlowControlInfo) == (-2, " ")
    rules = {"flow_enabled": True, "flow_rules": "[1]", "priority": 303}
    state.catalog.control_group("g", rules, state.change("me"))
    tasks = heartbeat(harness).opsTaskInfo
    assert (tasks.groupFlowControlInfo, tasks.qryPriorityId) == ("[1]", 303)
    group = state.groups.get("g")
    assert group is not None
    group.from_max_id = 7
    assert heartbeat(harness).opsTaskInfo.csmFrmMaxOffsetCtrlId == 7
    done = pb.OpsTaskInfo(csmFrmMaxOffsetCtrlId=7)
    assert not register(harness, opsTaskInfo=done).opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")


def test_client_balanced_consumers_are_asked_to_sign() -> None:
    harness = MasterHarness(authenticate_consumers=True, users={"ann": "secret"})
    broker = harness.broker()
    harness.topic()
    broker.sync()
    assert register(harness).opsTaskInfo.requireAuth
    assert partitions(harness).errCode == CODE.CERTIFICATE_FAILURE
    assert heartbeat(harness).opsTaskInfo.requireAuth
    info = credentials.authenticate_info("ann", "secret", harness.now_ms, 1)
    auth = pb.MasterCertificateInfo(authInfo=info)
    assert partitions(harness, auth=auth).topicMetaInfoList, "Java's client signs this one first"
    assert heartbeat(harness).opsTaskInfo.requireAuth, "that answer has no field for a token"
    answer = heartbeat(harness, auth=auth)
    assert not answer.opsTaskInfo.HasField("requireAuth")
    assert answer.authorizedInfo.authAuthorizedToken
    assert harness.master.groups() == {"g": ["a"]}
