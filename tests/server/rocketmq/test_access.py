"""Access control over sockets, and its files (docs/protocol/rocketmq.md, sections 2.16 and 10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from coherer._server.node.node import Node, NodeOptions
from coherer._server.rocketmq.acl import RELOAD_MS, Access, tools_account
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.acl import signer
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.codes import ResponseCode as Result
from coherer._wire.rocketmq.command import Command
from coherer.errors import UsageError
from coherer.testing import ManualClock
from tests.private import write_private
from tests.server.client_harness import consumer, heartbeat, tags
from tests.server.rocket_harness import (
    SUBSCRIPTION,
    SUSPEND,
    BrokerHarness,
    Client,
    pull_fields,
    running,
    send_fields,
)
from tests.waiting import until

EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
# The example of section 10.3, with an administrator and without this machine's address.
FILE = """\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: operator
  secretKey: 87654321
  admin: true
dataVersion:
- counter: 1
  timestamp: 1650000000000
"""
USER, OPERATOR = ("RocketMQ", "12345678"), ("operator", "87654321")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    write_private(conf / "plain_acl.yml", FILE)
    return conf


@pytest.fixture
async def harness(tmp_path: Path, conf: Path, clock: ManualClock) -> AsyncIterator[BrokerHarness]:
    access = Access(conf.parent, clock.now_ms())
    async with running(tmp_path / "store", clock, access=access) as harness:
        yield harness


@pytest.fixture
async def client(harness: BrokerHarness) -> Client:
    return await harness.dial()


async def ask(
    client: Client,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    account: tuple[str, str] = USER,
) -> Command:
    return await client.ask(code, signer(*account)(fields or {}, body), body)


async def beat(client: Client, group: str, *topics: str) -> Command:
    data = heartbeat("me", [consumer(group, *map(tags, topics))])
    return await ask(client, Code.HEART_BEAT, body=msgspec.json.encode(data))


def fault(answer: Command) -> str:
    """The responses of access control."""
    assert answer.code == Result.SYSTEM_ERROR
    assert (answer.remark or "").startswith(EXCEPTION)
    return (answer.remark or "").removeprefix(EXCEPTION)


def send(topic: str) -> dict[str, str]:
    return send_fields(b=topic)


async def test_signed_requests_with_permission(client: Client) -> None:
    assert (await ask(client, Code.SEND_MESSAGE_V2, send("topicB"), b"x")).code == 0
    fields = pull_fields(topic="topicB", consumerGroup="groupB")
    assert (await ask(client, Code.PULL_MESSAGE, fields)).code == 0
    assert (await beat(client, "groupB", "topicB", "%RETRY%groupB")).code == 0
    # Of overviews only the signature is looked at.
    assert (await ask(client, Code.GET_ALL_TOPIC_CONFIG)).code == 0


async def test_everything_that_is_refused(client: Client) -> None:
    assert fault(await client.send()) == "No accessKey is configured"
    answer = await ask(
        client, Code.SEND_MESSAGE_V2, send("topicB"), account=("who_else", "12345678")
    )
    assert fault(answer) == "No acl config for who_else"
    answer = await ask(client, Code.SEND_MESSAGE_V2, send("topicB"), account=(USER[0], "x"))
    assert fault(answer) == "Check signature failed for accessKey=RocketMQ"
    signed = signer(*USER)(send("topicB"), b"x")
    answer = await client.ask(Code.SEND_MESSAGE_V2, {**signed, "later": "1"}, b"x")
    assert fault(answer) == "Check signature failed for accessKey=RocketMQ"
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
        answer = await ask(client, code, send("topicA"), b"x")
        assert fault(answer) == "No default permission for topic:topicA"
    answer = await ask(client, Code.SEND_MESSAGE, {"topic": "other"}, b"x")
    assert fault(answer) == "No default permission for topic:other"
    fields = pull_fields(topic="topicB", consumerGroup="groupA")
    answer = await ask(client, Code.PULL_MESSAGE, fields)
    assert fault(answer) == "No default permission for group:groupA"
    assert fault(await beat(client, "groupA")) == "No default permission for group:groupA"
    assert fault(await beat(client, "groupB", "x")) == "No default permission for topic:x"
    answer = await ask(client, Code.DELETE_TOPIC_IN_BROKER, {"topic": "topicB"})
    assert fault(answer) == (
        "Need admin permission for request code=215, but accessKey=RocketMQ is not"
    )
    answer = await ask(client, Code.HEART_BEAT, body=b"{")
    assert "JSON" in fault(answer)


async def test_one_way_requests_are_dropped_in_silence(
    harness: BrokerHarness, client: Client
) -> None:
    client.send_oneway(Code.SEND_MESSAGE_V2, send("topicB"), b"x")
    client.send_oneway(Code.SEND_MESSAGE_V2, signer(*USER)(send("topicB"), b"y"), b"y")
    await ask(client, Code.GET_MAX_OFFSET, {"topic": "topicB", "queueId": "0"})
    await harness.stored()
    assert [bytes(record.body) for record in harness.records("topicB")] == [b"y"]


async def test_administrators_may_do_everything(client: Client) -> None:
    answer = await ask(client, Code.SEND_MESSAGE_V2, send("topicA"), b"x", OPERATOR)
    assert answer.code == 0
    answer = await ask(client, Code.DELETE_TOPIC_IN_BROKER, {"topic": "topicA"}, b"", OPERATOR)
    assert answer.code == 0


async def test_trusted_addresses_need_no_account(tmp_path: Path, clock: ManualClock) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    write_private(conf / "plain_acl.yml", "globalWhiteRemoteAddresses: [127.0.0.1]")
    async with running(tmp_path, clock, access=Access(tmp_path, 0)) as harness:
        assert (await (await harness.dial()).send()).code == 0


async def test_a_node_with_accounts(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", FILE)
    options = NodeOptions(
        directory=tmp_path,
        protocols=frozenset({"rocketmq"}),
        admin_port=None,
        rocketmq_port=0,
        namesrv_port=0,
        rocketmq_access=True,
    )
    async with Node(options) as node:
        client = await Client.dial(node.rocketmq_port)
        assert isinstance(client, Client)
        assert fault(await client.send()) == "No accessKey is configured"
        assert (await ask(client, Code.SEND_MESSAGE_V2, send("topicB"), b"x")).code == 0
    write_private(tmp_path / "conf" / "plain_acl.yml", "accounts: [{accessKey: short}]")
    with pytest.raises(UsageError):
        await Node(options).start()


# -- files


async def test_a_changed_file_holds_after_a_moment(
    harness: BrokerHarness, client: Client, conf: Path
) -> None:
    async def allowed() -> bool:
        return (await ask(client, Code.SEND_MESSAGE_V2, send("topicA"), b"x")).code == 0

    write_private(conf / "plain_acl.yml", FILE.replace("topicA=DENY", "topicA=PUB"))
    harness.broker.tick()
    assert not await allowed()
    harness.clock.advance(RELOAD_MS)
    harness.broker.tick()
    assert await allowed()
    for broken in ("", "accounts: [", "accounts: 5", "- a", "accounts: [{accessKey: short}]"):
        write_private(conf / "plain_acl.yml", broken)
        harness.clock.advance(RELOAD_MS)
        harness.broker.tick()
        assert await allowed(), broken


def test_further_files(conf: Path) -> None:
    (conf / "acl" / "deep").mkdir(parents=True)
    account = "accounts: [{accessKey: %s, secretKey: secret99, admin: true}]"
    write_private(conf / "acl" / "deep" / "a.yaml", account % "deep_one")
    write_private(conf / "acl" / "b.yml", account % "RocketMQ")
    (conf / "acl" / "c.txt").write_text("accounts: [")
    write_private(conf / "tools.yml", "accessKey: x")
    access = Access(conf.parent, 0)
    named = [(account.access_key, account.secret_key) for account in access.accounts]
    assert named == [
        ("RocketMQ", "secret99"), ("deep_one", "secret99"), USER, OPERATOR,
    ]  # fmt: skip
    assert access.trusted == ["10.10.103.*"]
    assert len(access.versions) == 3


@pytest.mark.parametrize(
    "text",
    ["", "accounts:", "- a", "accounts: [{accessKey: RocketMQ}]", "accounts: {a: b}", "a: [", "%",
     "globalWhiteRemoteAddresses: [nowhere]",
     "accounts: [{accessKey: RocketMQ, secretKey: 12345678, topicPerms: [x]}]",
     "dataVersion: [x]\na: 1"],
)  # fmt: skip
def test_an_invalid_file_fails_the_start(conf: Path, text: str) -> None:
    write_private(conf / "plain_acl.yml", text)
    if text == "accounts:":
        assert Access(conf.parent, 0).accounts == []
        return
    with pytest.raises(UsageError):
        Access(conf.parent, 0)


def test_without_files_there_are_no_accounts(tmp_path: Path) -> None:
    assert Access(tmp_path, 0).accounts == []


# -- administration


async def everything(client: Client) -> bodies.AclConfig:
    answer = await ask(client, Code.GET_BROKER_CLUSTER_ACL_CONFIG, account=OPERATOR)
    return bodies.AclConfig.decode(answer.body)


async def test_an_account_is_made_changed_and_deleted(
    harness: BrokerHarness, client: Client, conf: Path
) -> None:
    new = ("new_user", "new_secret")
    fields = {
        "accessKey": new[0],
        "secretKey": new[1],
        "admin": "false",
        "topicPerms": "a=PUB,b=SUB",
    }
    answer = await ask(client, Code.UPDATE_AND_CREATE_ACL_CONFIG, fields, account=OPERATOR)
    assert answer.code == 0
    assert (await ask(client, Code.SEND_MESSAGE_V2, send("a"), b"x", new)).code == 0
    assert fault(await ask(client, Code.SEND_MESSAGE_V2, send("b"), b"x", new))
    # Missing fields keep their value.
    fields = {"accessKey": new[0], "defaultTopicPerm": "PUB", "groupPerms": "g=SUB"}
    await ask(client, Code.UPDATE_AND_CREATE_ACL_CONFIG, fields, account=OPERATOR)
    assert (await ask(client, Code.SEND_MESSAGE_V2, send("c"), b"x", new)).code == 0
    [shown] = [
        each
        for each in (await everything(client)).plain_access_configs
        if each.access_key == new[0]
    ]
    assert shown == bodies.PlainAccessConfig(
        access_key=new[0],
        secret_key=new[1],
        white_remote_address="",
        default_topic_perm="PUB",
        topic_perms=["a=PUB", "b=SUB"],
        group_perms=["g=SUB"],
    )
    written = yaml.safe_load((conf / "plain_acl.yml").read_text())
    assert written["dataVersion"] == [{"counter": 3, "timestamp": harness.clock.now_ms()}]
    assert [account["accessKey"] for account in written["accounts"]] == [
        USER[0], OPERATOR[0], new[0],
    ]  # fmt: skip
    assert Access(conf.parent, 0).accounts == harness.broker.access.accounts  # type: ignore[union-attr]
    answer = await ask(client, Code.DELETE_ACL_CONFIG, {"accessKey": new[0]}, account=OPERATOR)
    assert answer.code == 0
    answer = await ask(client, Code.SEND_MESSAGE_V2, send("c"), b"x", new)
    assert fault(answer) == "No acl config for new_user"
    answer = await ask(client, Code.DELETE_ACL_CONFIG, {"accessKey": new[0]}, account=OPERATOR)
    assert (answer.code, answer.remark) == (
        Result.DELETE_ACL_CONFIG_FAILED,
        "The accesskey[new_user] corresponding to accessConfig has been deleted failed.",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"accessKey": "new_user"},
        {"accessKey": "short", "secretKey": "new_secret"},
        {"secretKey": "new_secret"},
        {"accessKey": "new_user", "secretKey": "new_secret", "topicPerms": "a"},
        {"accessKey": "new_user", "secretKey": "new_secret", "groupPerms": "a=ALL"},
        {"accessKey": "new_user", "secretKey": "new_secret", "whiteRemoteAddress": "nowhere"},
        {"accessKey": "RocketMQ", "secretKey": "x"},
    ],
)
async def test_accounts_that_cannot_be(client: Client, conf: Path, fields: dict[str, str]) -> None:
    answer = await ask(client, Code.UPDATE_AND_CREATE_ACL_CONFIG, fields, account=OPERATOR)
    assert answer.code == Result.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert answer.remark
    assert (conf / "plain_acl.yml").read_text() == FILE
    assert (await ask(client, Code.GET_MAX_OFFSET, {"topic": "topicB", "queueId": "0"})).code == 0


async def test_trusted_addresses_are_replaced(client: Client, conf: Path) -> None:
    fields = {"globalWhiteAddrs": "10.0.0.1,10.0.1.*"}
    answer = await ask(client, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields, account=OPERATOR)
    assert answer.code == 0
    assert (await everything(client)).global_white_addrs == ["10.0.0.1", "10.0.1.*"]
    fields = {"globalWhiteAddrs": "nowhere"}
    answer = await ask(client, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields, account=OPERATOR)
    assert answer.code == Result.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    fields = {"globalWhiteAddrs": "127.0.0.1"}
    await ask(client, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields, account=OPERATOR)
    assert (await client.send()).code == 0


async def test_a_file_without_trusted_addresses_gets_none(
    tmp_path: Path, clock: ManualClock
) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    write_private(
        conf / "plain_acl.yml",
        "accounts: [{accessKey: operator, secretKey: 87654321, admin: true}]",
    )
    async with running(tmp_path, clock, access=Access(tmp_path, 0)) as harness:
        client, fields = await harness.dial(), {"globalWhiteAddrs": "127.0.0.1"}
        answer = await ask(client, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields, account=OPERATOR)
        assert (answer.code, answer.remark) == (
            Result.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
            "The globalWhiteAddresses[127.0.0.1] has been updated failed.",
        )


async def test_versions_of_the_files(client: Client, conf: Path) -> None:
    answer = await ask(client, Code.GET_BROKER_CLUSTER_ACL_INFO)
    version = {"counter": 1, "timestamp": 1650000000000}
    assert json.loads(answer.fields["version"]) == version
    assert json.loads(answer.fields["allAclFileVersion"]) == {str(conf / "plain_acl.yml"): version}
    assert answer.fields["brokerName"] == "broker-a"
    assert answer.fields["clusterName"] == "DefaultCluster"


async def test_only_administrators_change_or_see_accounts(client: Client) -> None:
    for code in (50, 51, 53, 54):
        assert fault(await ask(client, code)) == (
            f"Need admin permission for request code={code}, but accessKey=RocketMQ is not"
        )


async def test_without_access_control(peer: Client) -> None:
    codes = {
        Code.UPDATE_AND_CREATE_ACL_CONFIG: Result.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
        Code.DELETE_ACL_CONFIG: Result.DELETE_ACL_CONFIG_FAILED,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Result.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
        Code.GET_BROKER_CLUSTER_ACL_INFO: Result.SYSTEM_ERROR,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG: Result.SYSTEM_ERROR,
    }
    for code, result in codes.items():
        assert (await peer.ask(code)).code == result


async def test_a_broker_asks_others_with_its_own_account(
    harness: BrokerHarness, conf: Path
) -> None:
    address = f"127.0.0.1:{harness.port}"
    assert tools_account(conf.parent) is None
    plain = RemotingClient()
    answer = await plain.ask(address, Code.GET_ALL_TOPIC_CONFIG)
    assert fault(answer) == "No accessKey is configured"
    plain.close()
    write_private(conf / "tools.yml", "accessKey: operator\nsecretKey: 87654321\n")
    account = tools_account(conf.parent)
    assert account is not None
    signing = RemotingClient(sign=signer(*account))
    assert (await signing.ask(address, Code.GET_ALL_TOPIC_CONFIG)).code == 0
    assert (
        await signing.ask(address, Code.GET_MAX_OFFSET, {"topic": "topicB", "queueId": "0"})
    ).code == 0
    signing.close()


@pytest.mark.parametrize("text", ["", "- a", "accessKey: operator", "a: ["])
def test_an_account_of_its_own_that_cannot_be_read(conf: Path, text: str) -> None:
    write_private(conf / "tools.yml", text)
    with pytest.raises(UsageError):
        tools_account(conf.parent)


@pytest.mark.parametrize("change", ["removed", "denied", "another secret", "file"])
async def test_a_pull_that_waits_is_refused(
    harness: BrokerHarness, client: Client, conf: Path, change: str
) -> None:
    """Not only the next one: it would still get the next message."""
    fields = pull_fields(topic="topicB", consumerGroup="groupB", sysFlag=SUBSCRIPTION | SUSPEND)
    assert (await ask(client, Code.SEND_MESSAGE_V2, send("topicB"), b"x")).code == 0
    fields |= {"queueOffset": "1"}
    other = await harness.dial()
    waiting = asyncio.ensure_future(ask(client, Code.PULL_MESSAGE, fields))
    staying = asyncio.ensure_future(ask(other, Code.PULL_MESSAGE, fields, account=OPERATOR))
    await until(lambda: len(harness.broker.pulls.suspended) == 2)
    account = {"accessKey": USER[0], "secretKey": USER[1]}
    if change == "removed":
        await ask(other, Code.DELETE_ACL_CONFIG, account, account=OPERATOR)
    elif change == "denied":
        account["topicPerms"] = "topicB=DENY"
        await ask(other, Code.UPDATE_AND_CREATE_ACL_CONFIG, account, account=OPERATOR)
    elif change == "another secret":
        account["secretKey"] = "another-secret"
        await ask(other, Code.UPDATE_AND_CREATE_ACL_CONFIG, account, account=OPERATOR)
    else:
        write_private(conf / "plain_acl.yml", FILE.replace("topicB=PUB|SUB", "topicB=PUB"))
        assert harness.broker.access is not None
        harness.broker.access.reload()
    await ask(other, Code.SEND_MESSAGE_V2, send("topicB"), b"secret", account=OPERATOR)
    assert fault(await waiting)
    assert b"secret" in (await staying).body
    assert not len(harness.broker.pulls.suspended)


async def test_a_pull_that_waits_without_an_account_is_refused(
    harness: BrokerHarness, client: Client
) -> None:
    """Its address was trusted."""
    access, now_ms = harness.broker.access, harness.clock.now_ms()
    assert access is not None
    assert access.trust(["127.0.0.1"], now_ms)
    assert (await client.ask(Code.SEND_MESSAGE_V2, send("topicB"), b"x")).code == 0
    fields = pull_fields(topic="topicB", sysFlag=SUBSCRIPTION | SUSPEND, queueOffset="1")
    waiting = asyncio.ensure_future(client.ask(Code.PULL_MESSAGE, fields))
    await until(lambda: len(harness.broker.pulls.suspended) == 1)
    assert access.trust(["127.0.0.1", "10.9.8.7"], now_ms)
    assert len(harness.broker.pulls.suspended) == 1
    assert access.trust(["10.9.8.7"], now_ms)
    assert fault(await waiting) == "No accessKey is configured"
