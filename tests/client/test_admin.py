"""The administration client, against answers in the form of Java's servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from coherer import _net as net
from coherer._client.tubemq.administration.admin import Admin
from coherer.admin import Broker, Member, Partition, Topic
from coherer.errors import (
    ConnectError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)

Json = dict[str, object]


class FakeCluster:
    """A master and a broker behind one port; `answers` are JSON by method, or make it."""

    def __init__(self) -> None:
        self.answers: dict[str, Json | Callable[[dict[str, str]], Json]] = {}
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.listener: net.Listener
        self.broker_web_port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.port}"

    def called(self, method: str) -> list[dict[str, str]]:
        return [form for name, form in self.calls if name == method]

    def answer(self, path: str, form: dict[str, str]) -> Json:
        method = form.pop("method")
        self.calls.append((method, form))
        if method == "admin_query_broker_configure":
            assert path == "/webapi.htm"
            return self.brokers()
        answer = self.answers[method]
        return answer(form) if callable(answer) else answer

    def brokers(self) -> Json:
        broker = {"brokerId": 1, "brokerIp": "127.0.0.1", "brokerPort": 8123, "brokerTLSPort": 8124,
                  "brokerWebPort": self.broker_web_port, "manageStatus": "online"}  # fmt: skip
        draft = {"brokerId": 2, "brokerIp": "10.0.0.2", "brokerPort": 8123, "brokerWebPort": -2,
                 "manageStatus": "draft"}  # fmt: skip
        return ok(draft, broker)


class Served:
    def __init__(self, cluster: FakeCluster, connection: net.Connection) -> None:
        self.cluster = cluster
        self.connection = connection
        self.data = b""

    def received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        verb, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        if not end or (verb == "POST" and not body):
            return
        parts = urlsplit(target)
        form = {name: value[0] for name, value in parse_qs(parts.query + body.decode()).items()}
        answer = json.dumps(self.cluster.answer(parts.path, form))
        self.connection.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}".encode())
        self.connection.close()

    def closed(self, error: Exception | None) -> None:
        pass


def ok(*records: Json) -> Json:
    return {
        "result": True, "errCode": 0, "errMsg": "OK", "data": list(records), "count": len(records)
    }  # fmt: skip


def told(*records: Json) -> Json:
    return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": list(records)}


def item(code: int = 200, text: str = "Ok!", topic: str = "t") -> Json:
    return {
        "brokerId": 1, "topicName": topic, "success": code == 200, "errCode": code, "errInfo": text
    }  # fmt: skip


def topic(name: str, *, stores: int = 1, partitions: int = 2, status: int = 0) -> Json:
    return {
        "topicName": name,
        "maxMsgSizeInMB": 1,
        "topicInfo": [
            {"topicName": name, "brokerId": 1, "topicStatusId": status, "numTopicStores": stores,
             "numPartitions": partitions, "acceptPublish": True, "runInfo": {}}
        ],
        "isSrvAcceptPublish": True,
        "isSrvAcceptSubscribe": True,
    }  # fmt: skip


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.listener = await net.listen("127.0.0.1", 0, lambda c: Served(cluster, c))
    cluster.broker_web_port = cluster.listener.port
    cluster.answers = {
        "admin_query_topic_info": ok(topic("t"), topic("s", stores=2), topic("gone", status=2)),
        "admin_query_broker_run_status": ok(
            {"brokerId": 1, "runStatus": "running", "subStatus": "idle", "acceptPublish": "true",
             "acceptSubscribe": "false", "isConfChanged": "false", "brokerVersion": "-"},
            {"brokerId": 2, "runStatus": "notRegister", "acceptPublish": "true"},
        ),
        "admin_query_sub_info": ok({"consumeGroup": "g", "topicSet": ["t"], "consumerNum": 1}),
        "admin_query_consume_group_detail": {
            **ok({"consumerId": "g_1", "receivedFrom": "127.0.0.9", "parCount": 0, "parInfo": []}),
            "topicSet": ["t"],
        },
        "admin_query_pubinfo": told(
            {"topicName": "t", "offsetInfo": [
                {"partitionId": 0, "offsetMin": 28, "offsetMax": 196, "dataMin": 0},
                {"partitionId": 1, "offsetMin": 0, "offsetMax": 0}], "itemCount": 2}),
        "admin_query_offset": told(
            {"groupName": "g", "subInfo": [{"topicName": "t", "offsets": [
                {"partitionId": 0, "curOffset": 84, "offsetLag": 112, "curDataOffset": -2}]}]},
            {"groupName": "old", "subInfo": [{"topicName": "s", "offsets": [
                {"partitionId": 10001, "curOffset": -2}]}]},
            {"groupName": "coherer_reader_1_0", "subInfo": [{"topicName": "s", "offsets": [
                {"partitionId": 0, "curOffset": 28}]}]}),
        "admin_query_consumer_regmap": told(
            {"Partition": "g:t:1", "Consumer": "g_1", "index": 1}),
    }  # fmt: skip
    yield cluster
    await cluster.listener.close()


@pytest.fixture
async def admin(cluster: FakeCluster) -> Admin:
    return Admin(cluster.url, "secret", user="tester")


async def test_topics(cluster: FakeCluster, admin: Admin) -> None:
    s, t = await admin.topics.list()
    assert t == Topic("t", 2, {"1": 2}, writable=True, readable=True)
    assert (s.partitions, s.brokers) == (4, {"1": 4}), "it has two stores"
    await admin.topics.list("a", "b")
    assert cluster.called("admin_query_topic_info") == [{}, {"topicName": "a,b"}]


async def test_brokers(cluster: FakeCluster, admin: Admin) -> None:
    one, two = await admin.brokers.list()
    assert one == Broker(
        "1", 1, "127.0.0.1:8123", "broker", "running", writable=True, readable=False,
        managed="online", web_port=cluster.listener.port,
    )  # fmt: skip
    assert two == Broker(
        "2", 2, "10.0.0.2:8123", "broker", "stopped", writable=False, readable=False,
        managed="draft",
    )  # fmt: skip


async def test_create_a_topic_on_all_that_are_online(cluster: FakeCluster, admin: Admin) -> None:
    cluster.answers["admin_add_new_topic_record"] = ok(item())
    await admin.topics.create("t", 4)
    await admin.topics.create("t", 4, brokers=["2", 1])
    first, second = cluster.called("admin_add_new_topic_record")
    assert first == {
        "topicName": "t",
        "brokerId": "1",
        "numPartitions": "4",
        "numTopicStores": "1",
        "confModAuthToken": "secret",
        "createUser": "tester",
        "modifyUser": "tester",
    }
    assert second["brokerId"] == "1,2"


async def test_what_is_there_is_said_or_pardoned(cluster: FakeCluster, admin: Admin) -> None:
    cluster.answers["admin_add_new_topic_record"] = ok(item(402, "Existed record (1:t)!"))
    with pytest.raises(RefusedError, match=r"Existed record \(1:t\)\. ") as caught:
        await admin.topics.create("t", 4)
    assert (caught.value.code, caught.value.topic) == (402, "t")
    await admin.topics.create("t", 4, exist_ok=True)


async def test_no_broker_and_no_partitions(cluster: FakeCluster, admin: Admin) -> None:
    with pytest.raises(UsageError, match="0 partitions"):
        await admin.topics.create("t", 0)
    cluster.brokers = ok  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="No broker is online"):
        await admin.topics.create("t", 1)
    assert [method for method, _ in cluster.calls] == ["admin_query_broker_configure"]


async def test_wait_until_a_topic_can_be_used(cluster: FakeCluster, admin: Admin) -> None:
    states = iter([ok(), ok({**topic("t"), "isSrvAcceptPublish": False}), ok(topic("t"))])
    cluster.answers["admin_add_new_topic_record"] = ok(item())
    cluster.answers["admin_query_topic_info"] = lambda _: next(states)
    await admin.topics.create("t", 2, wait_ms=10_000)
    assert next(states, None) is None
    cluster.answers["admin_query_topic_info"] = ok()
    with pytest.raises(RequestTimeoutError, match="cannot be used after 30 ms"):
        await admin.topics.wait_usable("t", timeout_ms=30)


async def test_delete(cluster: FakeCluster, admin: Admin) -> None:
    cluster.answers["admin_delete_topic_info"] = ok(item())
    cluster.answers["admin_remove_topic_info"] = ok(item())
    await admin.topics.delete("t")
    assert [method for method, _ in cluster.calls] == [
        "admin_query_topic_info",
        "admin_delete_topic_info",
        "admin_remove_topic_info",
    ]


async def test_java_wants_a_topic_closed_first(cluster: FakeCluster, admin: Admin) -> None:
    closed: list[dict[str, str]] = []

    def close(form: dict[str, str]) -> Json:
        closed.append(form)
        return ok(item())

    cluster.answers["admin_delete_topic_info"] = lambda _: ok(
        item() if closed else item(406, "acceptPublish and acceptSubscribe must be false!")
    )
    cluster.answers["admin_modify_topic_info"] = close
    cluster.answers["admin_remove_topic_info"] = ok(item())
    await admin.topics.delete("t")
    assert closed[0]["acceptPublish"] == closed[0]["acceptSubscribe"] == "false"
    assert len(cluster.called("admin_delete_topic_info")) == 2
    assert len(cluster.called("admin_remove_topic_info")) == 1


async def test_a_deletion_that_stopped_half_way_goes_on(cluster: FakeCluster, admin: Admin) -> None:
    cluster.answers["admin_query_topic_info"] = ok(topic("t", status=1))
    cluster.answers["admin_remove_topic_info"] = ok(item())
    await admin.topics.delete("t")
    assert not cluster.called("admin_delete_topic_info")
    cluster.answers["admin_query_topic_info"] = ok(topic("t", status=2))
    with pytest.raises(RefusedError, match="no such topic"):
        await admin.topics.delete("t")


async def test_partitions(admin: Admin) -> None:
    assert await admin.topics.partitions("t") == [
        Partition("t", "1", 0, 28, 196, offset_step=28),
        Partition("t", "1", 1, 0, 0, offset_step=28),
    ]


async def test_groups_and_lag(cluster: FakeCluster, admin: Admin) -> None:
    g, old = await admin.groups.list()
    assert (g.name, g.topics, g.members) == (
        "g",
        ("t",),
        (Member("g_1", "g", address="127.0.0.9"),),
    )
    first, second = g.partitions
    step = 28  # bytes a message
    assert first == Partition("t", "1", 0, 28, 196, committed=84, lag=4, offset_step=step)
    assert second == Partition("t", "1", 1, 0, 0, lag=0, owner="g_1", offset_step=step)
    assert g.lag == 4
    assert (old.name, old.members, old.lag) == ("old", (), None)
    await admin.groups.list("g", "h")
    assert cluster.called("admin_query_offset")[-1] == {"groupName": "g,h"}
    assert cluster.called("admin_query_sub_info")[-1] == {"groupName": "g,h"}


async def test_a_group_that_javas_broker_cannot_answer_for(
    cluster: FakeCluster, admin: Admin
) -> None:
    """It fails for all groups if one of them has members but was never given a message."""
    offsets = cluster.answers["admin_query_offset"]
    assert isinstance(offsets, dict)
    names = ["coherer_reader_1_0", "g", "idle", "old", *(f"x{n}" for n in range(250))]
    known = {one["groupName"]: one for one in offsets["dataSet"]}

    def of_some(form: dict[str, str]) -> Json:
        wanted = form["groupName"].split(",") if "groupName" in form else names
        if "idle" in wanted:
            return {"result": False, "errCode": 400, "errMsg": "Bad request from server: null"}
        return told(*(known[name] for name in wanted if name in known))

    cluster.answers["admin_query_offset"] = of_some
    cluster.answers["admin_query_group"] = told({"groupName": names})
    g, idle, old = await admin.groups.list()
    assert (g.lag, old.name) == (4, "old")
    assert (idle.name, idle.topics, idle.lag, idle.silent) == ("idle", (), None, ())
    assert await admin.topics.groups("s") == ["old"]
    assert idle in await admin.groups.list("idle")
    asked = [
        form["groupName"] for form in cluster.called("admin_query_offset") if form.get("groupName")
    ]
    assert max(len(one.split(",")) for one in asked) <= 100, "Java's servers take no more"


async def test_many_names_are_asked_for_in_parts(cluster: FakeCluster, admin: Admin) -> None:
    names = [f"t{n:03}" for n in range(250)]
    cluster.answers["admin_query_topic_info"] = lambda form: ok(
        *(topic(name) for name in form["topicName"].split(","))
    )
    assert [one.name for one in await admin.topics.list(*names)] == names
    asked = [form["topicName"] for form in cluster.called("admin_query_topic_info")]
    assert [len(one.split(",")) for one in asked] == [100, 100, 50]


async def test_groups_of_readers_are_shown_only_by_name(admin: Admin) -> None:
    """Java's brokers keep their offsets for ever."""
    name = "coherer_reader_1_0"
    assert name not in [group.name for group in await admin.groups.list()]
    assert name in [group.name for group in await admin.groups.list(name)]
    assert await admin.topics.groups("s") == ["old"]


async def test_our_brokers_count_messages(cluster: FakeCluster, admin: Admin) -> None:
    pubinfo = cluster.answers["admin_query_pubinfo"]
    assert isinstance(pubinfo, dict)
    cluster.answers["admin_query_pubinfo"] = {**pubinfo, "offsetStep": 1}
    g, _ = await admin.groups.list()
    assert g.partitions[0].lag == 112


async def test_a_broker_that_is_down_makes_numbers_unknown(
    cluster: FakeCluster, admin: Admin
) -> None:
    gone = await net.listen("127.0.0.1", 0, lambda c: Served(cluster, c))
    await gone.close()
    cluster.broker_web_port = gone.port
    (g,) = await admin.groups.list()
    assert (g.silent, g.lag) == (("1",), None)
    assert [(p.partition, p.max_offset, p.committed) for p in g.partitions] == [
        (0, None, None),
        (1, None, None),
    ]
    with pytest.raises(UnavailableError, match="does not send"):
        await admin.groups.reset_offsets("g", "t", "earliest")


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", {"1:t:0": 28, "1:t:1": 0}),
        ("latest", {"1:t:0": 196, "1:t:1": 0}),
        (56, {"1:t:0": 56, "1:t:1": 0}),
        (1_000, {"1:t:0": 196, "1:t:1": 0}),
    ],
)
async def test_reset(cluster: FakeCluster, admin: Admin, to: int, offsets: dict[str, int]) -> None:
    cluster.answers["admin_set_offset"] = {"result": True, "errCode": 0, "errMsg": "OK"}
    assert await admin.groups.reset_offsets("g", "t", to) == offsets
    (form,) = cluster.called("admin_set_offset")
    assert json.loads(form.pop("offsetJsonInfo")) == offsets
    assert form == {
        "groupName": "g", "modifyUser": "tester", "manualSet": "true", "confModAuthToken": "secret"
    }  # fmt: skip


async def test_offsets_of_what_is_not_there(cluster: FakeCluster, admin: Admin) -> None:
    with pytest.raises(UsageError, match="no broker 7"):
        await admin.groups.set_offsets("g", {"7:t:0": 1})
    for key in ("t:0", "x:t:0", "1:t:x", "1", ""):
        with pytest.raises(UsageError, match="not a valid partition key"):
            await admin.groups.set_offsets("g", {key: 1})
    with pytest.raises(UsageError, match=r"`to` is 'earliest' or 'latest' .*, not 'erliest'"):
        await admin.groups.reset_offsets("g", "t", "erliest")
    assert not cluster.called("admin_set_offset")
    cluster.answers["admin_query_topic_info"] = ok()
    with pytest.raises(RefusedError, match="no such topic"):
        await admin.groups.reset_offsets("g", "nosuch", "latest")


async def test_the_next_master_is_asked_and_kept(cluster: FakeCluster) -> None:
    gone = await net.listen("127.0.0.1", 0, lambda c: Served(cluster, c))
    await gone.close()
    down = f"127.0.0.1:{gone.port}"
    admin = Admin(f"http://{down},{cluster.url}")
    assert repr(admin) == f"Admin('{down},127.0.0.1:{cluster.listener.port}')"
    assert len(await admin.topics.list()) == 2
    assert repr(admin) == f"Admin('127.0.0.1:{cluster.listener.port},{down}')"
    with pytest.raises(ConnectError):
        await Admin(f"http://{down},{down}").topics.list()
