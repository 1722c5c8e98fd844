"""One set of accounts protects all services of a node, and secrets stay secret."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import coherer
from coherer import Message
from coherer._client.tubemq.administration.admin import Admin
from coherer._net import TlsOptions
from coherer._record.ids import decode_offset_id
from coherer._server.node.node import Node
from coherer._server.rocketmq.acl import Access as BrokerAccess
from coherer._server.rocketmq.broker import admin_settings
from coherer._store.secret_files import changing
from coherer._wire.rocketmq import acl
from coherer._wire.rocketmq.bodies import RegisterBody
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import CohererError, RefusedError, UsageError
from tests.private import write_private
from tests.server.node_harness import message, options, producer, to_broker, to_master
from tests.server.rocketmq_caller import Caller
from tests.waiting import until

ANN = {"user": "ann", "password": "secret"}
FILE = """\
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: reader-1
  secretKey: reader-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [open=PUB|SUB]
"""
OPERATOR = {"user": "operator", "password": "operator-secret"}
READER = {"user": "reader-1", "password": "reader-secret"}
NO_ACCOUNT: dict[str, str] = {}


def guarded(directory: Path, **given: Any) -> Node:
    usual: dict[str, Any] = {"admin_port": 0, "users": {"ann": "secret"}}
    return Node(options(directory, **{**usual, **given}))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with guarded(tmp_path) as node:
        node.create_topic("demo", 1)
        yield node


async def send_over_tubemq(node: Node, account: dict[str, str]) -> None:
    async with (
        coherer.tubemq.connect(node.url, timeout_ms=5_000, **account) as client,  # type: ignore[arg-type]
        client.producer("demo") as sender,
    ):
        await sender.send(Message("demo", b"x"))


async def send_over_rocketmq(node: Node, account: dict[str, str], topic: str = "demo") -> str:
    async with (
        coherer.rocketmq.connect(node.rocketmq_url, timeout_ms=5_000, **account) as client,  # type: ignore[arg-type]
        client.producer("senders") as sender,
    ):
        return (await sender.send(Message(topic, b"x"))).id


async def query_over_http(node: Node, account: dict[str, str], token: str | None = None) -> None:
    await Admin(f"http://127.0.0.1:{node.admin_port}", token, **account).topics.list()


async def change_over_http(node: Node, account: dict[str, str], token: str | None = None) -> None:
    admin = Admin(f"http://127.0.0.1:{node.admin_port}", token, **account)
    await admin.groups.set_offsets("readers", {"1:demo:0": 0})
    await admin.topics.create("demo", 1, [1], exist_ok=True)


EVERYTHING = [send_over_tubemq, send_over_rocketmq, query_over_http, change_over_http]


@pytest.mark.parametrize("use", EVERYTHING)
async def test_users_protect_everything(node: Node, use: Any) -> None:
    for wrong in (NO_ACCOUNT, {**ANN, "password": "guess"}, {"user": "bob", "password": "secret"}):
        with pytest.raises(RefusedError):
            await use(node, wrong)
    await use(node, ANN)


@pytest.mark.parametrize("use", EVERYTHING)
async def test_accounts_of_the_file_protect_everything(tmp_path: Path, use: Any) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", FILE)
    async with guarded(tmp_path, users={}, rocketmq_access=True) as node:
        node.create_topic("demo", 1)
        for wrong in (NO_ACCOUNT, READER):  # TubeMQ and HTTP know no permissions
            with pytest.raises(RefusedError):
                await use(node, wrong)
        await use(node, OPERATOR)


async def test_with_accounts_the_well_known_token_does_not_work(tmp_path: Path, node: Node) -> None:
    with pytest.raises(RefusedError, match="unauthorized"):
        await change_over_http(node, NO_ACCOUNT, "abc")
    async with guarded(tmp_path / "other", admin_token="chosen") as other:
        other.create_topic("demo", 1)
        with pytest.raises(RefusedError, match="unauthorized"):
            await change_over_http(other, NO_ACCOUNT, "abc")
        await change_over_http(other, NO_ACCOUNT, "chosen")


async def test_without_accounts_a_brokers_changes_need_the_token(tmp_path: Path) -> None:
    async with guarded(tmp_path, users={}) as node:
        node.create_topic("demo", 1)
        with pytest.raises(RefusedError, match="unauthorized"):
            await change_over_http(node, NO_ACCOUNT, "wrong")
        await change_over_http(node, NO_ACCOUNT, "abc")


@pytest.mark.parametrize(
    ("part", "use"),
    [
        ("tubemq", send_over_tubemq),
        ("rocketmq", send_over_rocketmq),
        ("admin", query_over_http),
    ],
)
async def test_unprotected_parts_are_named(tmp_path: Path, part: str, use: Any) -> None:
    async with guarded(tmp_path, unprotected=frozenset({part})) as node:
        node.create_topic("demo", 1)
        await use(node, NO_ACCOUNT)
        for other in EVERYTHING:
            if other is not use:
                with pytest.raises(RefusedError):
                    await other(node, NO_ACCOUNT)


async def test_a_broker_asks_for_the_token_from_the_first_moment(node: Node) -> None:
    """Java's brokers let everybody pass for two minutes after they have registered."""
    asker = await to_broker(node)
    given = pb.AuthorizedInfo(visitAuthorizedToken=1, authAuthorizedToken="x")
    answer = await asker.ask(methods.SEND_MESSAGE, message(authInfo=given, partitionId=0))
    assert answer.errCode == 415


async def test_registering_a_broker_needs_an_account(tmp_path: Path, node: Node) -> None:
    stranger = guarded(
        tmp_path / "b", roles=frozenset({"broker"}), master=node.url, users={}, broker_id=2
    )
    async with stranger:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stranger.tubemq.ready()
    friend = guarded(
        tmp_path / "c",
        roles=frozenset({"broker"}),
        master=node.url,
        namesrv=node.rocketmq_url.removeprefix("rocketmq://"),
        broker_name="broker-c",
        broker_id=3,
    )
    async with friend, asyncio.timeout(10):
        await friend.ready()
    answer = await (await to_master(node)).ask(methods.PRODUCER_REGISTER, producer("demo"))
    assert answer.errCode == 415


NAME_SERVER_CHANGES = [
    (Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
    (Code.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
    (Code.REGISTER_BROKER, {"brokerName": "x", "brokerAddr": "127.0.0.1:1", "clusterName": "c",
                            "haServerAddr": "127.0.0.1:2", "brokerId": "0"}),
    (Code.UNREGISTER_BROKER, {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:1",
                              "clusterName": "DefaultCluster", "brokerId": "0"}),
    (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "demo"}),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    (Code.UPDATE_NAMESRV_CONFIG, {}),
]  # fmt: skip


async def test_a_name_server_is_changed_by_administrators_only(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", FILE)
    async with guarded(tmp_path) as node:
        caller = await Caller.dial(node.namesrv_port)
        signers = {
            "nobody": dict,
            "reader": acl.signer("reader-1", "reader-secret"),
            "ann": acl.signer("ann", "secret"),
        }
        for code, fields in NAME_SERVER_CHANGES:
            body = RegisterBody().encode() if code == Code.REGISTER_BROKER else b"a=b"
            for name in ("nobody", "reader"):
                sign: Any = signers[name]
                signed = sign(fields) if sign is dict else sign(fields, body)
                answer = await caller.ask(code, signed, body)
                assert answer.code == 1, (code, name)
                assert "AclException" in (answer.remark or "")
            signed = acl.signer("ann", "secret")(fields, body)
            answer = await caller.ask(code, signed, body)
            assert "AclException" not in (answer.remark or ""), code
        for code in (Code.QUERY_DATA_VERSION, Code.GET_NAMESRV_CONFIG):
            answer = await caller.ask(code)
            assert "AclException" in (answer.remark or ""), code


NAME_SERVER_QUERIES: dict[int, dict[str, str]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: {"topic": "TBW102"},
    Code.GET_BROKER_CLUSTER_INFO: {},
    Code.GET_KV_CONFIG: {"namespace": "ORDER_TOPIC_CONFIG", "key": "x"},
    Code.GET_KVLIST_BY_NAMESPACE: {"namespace": "ORDER_TOPIC_CONFIG"},
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {},
    Code.GET_TOPICS_BY_CLUSTER: {"cluster": "DefaultCluster"},
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: {},
    Code.GET_UNIT_TOPIC_LIST: {},
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: {},
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: {},
}


@pytest.mark.parametrize("strict", [False, True])
async def test_queries_to_a_name_server_need_a_signature_only_if_wanted(
    tmp_path: Path, strict: bool
) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", FILE)
    async with guarded(tmp_path, namesrv_signed_queries=strict) as node:
        caller = await Caller.dial(node.namesrv_port)
        sign = acl.signer("reader-1", "reader-secret")
        for code, fields in NAME_SERVER_QUERIES.items():
            unsigned = await caller.ask(code, fields)
            assert ("AclException" in (unsigned.remark or "")) == strict, code
            signed = await caller.ask(code, sign(fields, b""))
            assert "AclException" not in (signed.remark or ""), code


async def test_java_brokers_may_be_let_in_to_the_name_server(tmp_path: Path) -> None:
    async with guarded(tmp_path, unprotected=frozenset({"namesrv"})) as node:
        caller = await Caller.dial(node.namesrv_port)
        assert (await caller.ask(Code.GET_BROKER_CLUSTER_INFO)).code == 0


async def test_reading_a_message_by_id_needs_permission_for_its_topic(
    tmp_path: Path,
) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", FILE)
    async with guarded(tmp_path) as node:
        ids = {topic: await send_over_rocketmq(node, ANN, topic) for topic in ("open", "closed")}
        caller = await Caller.dial(node.rocketmq_port)
        sign = acl.signer("reader-1", "reader-secret")
        for topic, wanted in (("open", 0), ("closed", 1)):
            fields = {"offset": str(decode_offset_id(ids[topic]).physical_offset)}
            answer = await caller.ask(Code.VIEW_MESSAGE_BY_ID, sign(fields, b""))
            assert answer.code == wanted
        assert "No default permission for topic:closed" in (answer.remark or "")
        fields = {"topic": "closed", "queueId": "0", "index": "0", "count": "1"}
        answer = await caller.ask(Code.QUERY_CONSUME_QUEUE, sign(fields, b""))
        assert "No default permission" in (answer.remark or "")


async def test_replication_does_not_trust_addresses_of_signed_requests(tmp_path: Path) -> None:
    async with guarded(tmp_path, ha_port=0) as node:
        caller = await Caller.dial(node.rocketmq_port)
        signed = acl.signer("ann", "secret")({}, b"")
        assert (await caller.ask(Code.GET_ALL_TOPIC_CONFIG, signed)).code == 0
        slave = await Caller.dial(node.ha_port)
        slave.connection.write(bytes(8))
        async with asyncio.timeout(10):
            await slave.lost.wait()


async def test_the_log_is_replicated_to_a_trusted_address(tmp_path: Path) -> None:
    """Java's slaves do not sign; their address has to be trusted, as at Java's master."""
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", "globalWhiteRemoteAddresses: [127.0.0.1]")
    async with guarded(tmp_path, ha_port=0) as node:
        await Caller.dial(node.ha_port)
        assert node.rocketmq.replicator is not None
        assert node.rocketmq.replicator.master is not None
        master = node.rocketmq.replicator.master
        await until(lambda: master.slaves)


async def test_a_slave_follows_a_master_with_accounts(tmp_path: Path) -> None:
    async with guarded(tmp_path / "m", ha_port=0) as master:
        await send_over_rocketmq(master, ANN)
        slave = guarded(
            tmp_path / "s",
            role="SLAVE",
            rocketmq_broker_id=1,
            namesrv=master.rocketmq_url.removeprefix("rocketmq://"),
        )
        async with slave:
            assert slave.core is not None
            store = slave.core.store
            await until(lambda: store.end_offset)


def beside(first: Node, directory: Path, **given: Any) -> Node:
    """Another broker of RocketMQ at the name server of a node."""
    there: dict[str, Any] = {"namesrv": first.rocketmq_url.removeprefix("rocketmq://")}
    there |= {"roles": frozenset({"broker"}), "protocols": frozenset({"rocketmq"})}
    return guarded(directory, **there, **given)


def files_with(text: str, *homes: Path) -> list[str]:
    return [
        home.name for home in homes if text in (home / "conf" / "plain_acl.yml").read_text("utf-8")
    ]


async def test_an_account_is_changed_at_slaves_too(tmp_path: Path) -> None:
    """They serve consumers, with files of their own."""
    homes = tmp_path / "m", tmp_path / "s"
    async with (
        guarded(homes[0], ha_port=0) as master,
        beside(master, homes[1], role="SLAVE", rocketmq_broker_id=1) as slave,
        coherer.rocketmq.connect(master.rocketmq_url, **ANN) as client,
    ):
        await slave.ready()
        accounts = client.admin().accounts
        await accounts.set("reader-1", "reader-secret", topic_perms=["demo=SUB"])
        assert files_with("reader-secret", *homes) == ["m", "s"]
        await accounts.delete("reader-1")
        assert files_with("reader-secret", *homes) == []
        with pytest.raises(RefusedError, match="deleted failed"):
            await accounts.delete("reader-1")


async def test_an_account_that_one_broker_has(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path / "a") as first,
        beside(first, tmp_path / "b", broker_id=2, broker_name="broker-b") as second,
        coherer.rocketmq.connect(first.rocketmq_url, **ANN) as client,
    ):
        await second.ready()
        accounts = client.admin().accounts
        await accounts.set("reader-1", "reader-secret", brokers=["broker-b"])
        await accounts.delete("reader-1")
        assert await accounts.list("broker-b") == []


async def test_brokers_that_share_their_files(tmp_path: Path) -> None:
    """Those of `--brokers` do: what one of them has deleted is gone for all."""
    home = tmp_path / "a"
    async with (
        guarded(home) as first,
        beside(
            first, tmp_path / "b", broker_id=2, broker_name="broker-b", accounts_directory=home
        ) as second,
        coherer.rocketmq.connect(first.rocketmq_url, **ANN) as client,
    ):
        await second.ready()
        accounts = client.admin().accounts
        for _ in range(3):
            await accounts.set("reader-1", "reader-secret")
            await accounts.delete("reader-1")
        await accounts.set("reader-1", "reader-secret")
        for broker in ("broker-a", "broker-b"):  # as `mqadmin deleteAccessConfig -c` does
            await accounts.delete("reader-1", brokers=[broker])
            assert await accounts.list(broker) == []
        with pytest.raises(RefusedError, match="deleted failed"):
            await accounts.delete("reader-1", brokers=["broker-b"])


async def test_accounts_that_another_process_is_changing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker waits for it, and gives up."""
    async with (
        guarded(tmp_path) as node,
        coherer.rocketmq.connect(node.rocketmq_url, **ANN) as client,
    ):
        accounts = client.admin().accounts
        with changing(tmp_path / "conf"):
            waiting = asyncio.create_task(accounts.set("reader-1", "reader-secret"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        await waiting
        assert files_with("reader-secret", tmp_path)
        monkeypatch.setattr(admin_settings, "IN_USE_S", 0.02)
        with changing(tmp_path / "conf"), pytest.raises(RefusedError, match="Another process"):
            await accounts.delete("reader-1")
        await accounts.delete("reader-1")


async def test_a_file_of_accounts_stays_private(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "plain_acl.yml"
    path.write_text(FILE)
    for mode in (0o644, 0o640, 0o620):
        path.chmod(mode)
        with pytest.raises(UsageError, match="other users can read or change it"):
            async with guarded(tmp_path):
                pass
    for mode in (0o600, 0o400):
        path.chmod(mode)
        async with (
            guarded(tmp_path) as node,
            coherer.rocketmq.connect(node.rocketmq_url, **ANN) as client,
        ):
            await client.admin().accounts.set(f"account-{mode}", "long-secret")
        assert f"account-{mode}" in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == mode
    path.unlink()
    async with (
        guarded(tmp_path) as node,
        coherer.rocketmq.connect(node.rocketmq_url, **ANN) as client,
    ):
        await client.admin().accounts.set("first-one", "long-secret")
        with pytest.raises(RefusedError, match="is in the options"):
            await client.admin().accounts.set("ann", "long-secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# -- secrets

SECRET = "Sesame-Open-77"


def test_no_options_show_their_secrets(tmp_path: Path) -> None:
    from coherer._client.rocketmq.options import ClientOptions as RocketmqOptions
    from coherer._client.tubemq.cluster import ClientOptions as TubemqOptions
    from coherer._rules.rocketmq.acl import Account
    from coherer._server.options.tubemq import MasterOptions
    from coherer.cli.target import AdminTarget
    from coherer.spark.options import Access

    address = (("127.0.0.1", 1),)
    tls = TlsOptions(key_password=SECRET)
    shown = [
        options(
            tmp_path, users={"ann": SECRET}, broker_user="b", broker_password=SECRET,
            admin_token=SECRET, tls=tls,
        ),
        MasterOptions(
            users={"ann": SECRET}, broker_user="b", broker_password=SECRET, admin_token=SECRET
        ),
        tls,
        Account(access_key="operator", secret_key=SECRET),
        TubemqOptions(addresses=address, user="ann", password=SECRET, tls=tls),
        RocketmqOptions(addresses=address, user="ann", password=SECRET, token=SECRET, tls=tls),
        AdminTarget("tubemq://a", None, SECRET, "ann", SECRET),
        Access(url=f"tubemq://ann:{SECRET}@a", user="ann", password=SECRET, tls=tls),
        Admin("http://127.0.0.1:1", SECRET, user="ann", password=SECRET),
    ]  # fmt: skip
    for one in shown:
        assert SECRET not in repr(one), type(one)
        assert SECRET not in str(one), type(one)


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://ann:{SECRET}@10.0.0.1:8715",
        f"tubemq://ann:{SECRET}@10.0.0.1:x",
        f"rocketmq://ann:{SECRET}@10.0.0.1",
    ],
)
def test_errors_show_no_secret_of_a_url(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        coherer.connect(url)
    assert SECRET not in str(caught.value)


async def test_errors_show_no_secret_of_an_administration() -> None:
    with pytest.raises(UsageError) as caught:
        Admin(f"ftp://ann:{SECRET}@10.0.0.1")
    assert SECRET not in str(caught.value)


def test_errors_show_no_secret_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    write_private(tmp_path / "conf" / "plain_acl.yml", f"accounts:\n- secretKey: {SECRET}: [\n")
    with pytest.raises(CohererError) as caught:
        BrokerAccess(tmp_path, 0)
    assert SECRET not in str(caught.value)
    assert "line 2" in str(caught.value)


async def test_clients_continue_after_a_restart_with_accounts(tmp_path: Path) -> None:
    """A broker that asks for the token at once has to know those of the run before."""
    first = guarded(tmp_path, admin_port=None)
    await first.start()
    first.create_topic("demo", 1)
    ports = {"master_port": first.master_port, "broker_port": first.broker_port}
    async with (
        coherer.tubemq.connect(first.url, **ANN) as client,  # type: ignore[arg-type]
        client.producer("demo") as sender,
    ):
        await sender.send(Message("demo", b"before"))
        await first.stop()
        async with guarded(tmp_path, admin_port=None, **ports):
            await sender.send(Message("demo", b"after"))
