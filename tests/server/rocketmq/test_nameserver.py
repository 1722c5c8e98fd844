"""The name server over sockets.

See docs/protocol/rocketmq.md, sections 2.15 and 9. The examples are those of sections 13.1
to 13.3 and 13.12.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from coherer import _net as net
from coherer._rules.rocketmq.routes import EXPIRE_MS
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.rocketmq.namesrv.nameserver import SCAN_MS, NameServer
from coherer._server.rocketmq.namesrv.settings import NameServerOptions
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import V4_9_3, V4_9_4, V5_0_0
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command, encode
from tests.server.rocketmq_caller import Caller

BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":'
    b'1650000000000},"topicConfigTable":{"TopicTest":{"order":false,"perm":6,"readQueueNums":4,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}}}}'
)
COMPRESSED = bytes.fromhex(
    "78da63606050af564ace2fcd2b492d52b232d4512ac9cc4d2d2e49cc2d00f2cc4c0de0a0968181811188a542"
    "f20b329343806a144c80d04c21d8d3cf ddc7353ec4d11d28cb141d0b008086 1458".replace(" ", "")
)
CRC, COMPRESSED_CRC = "542215206", "204337167"
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":'
    b'"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
NO_ROUTE = (
    "No topic route info in name server for the topic: TopicTest\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)


class Harness:
    """A name server on a free port, its files in a dict, its clock by hand."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.now_ms = 0
        self.server: NameServer
        self.listener: net.Listener

    async def start(self, *, order_messages: bool = False) -> None:
        self.server = NameServer(
            NameServerOptions(order_messages=order_messages, directory="/store/config"),
            self.files.get,
            DeferredSaver(self.files.__setitem__),
            now_ms=lambda: self.now_ms,
        )
        self.listener = await net.listen("127.0.0.1", 0, self.server.make)

    async def caller(self) -> Caller:
        return await Caller.dial(self.listener.port)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.server.tick()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    await harness.start()
    yield harness
    await harness.listener.close()


@pytest.fixture
async def caller(harness: Harness) -> Caller:
    return await harness.caller()


def header(broker: str = "broker-a", broker_id: int = 0, **more: str) -> dict[str, str]:
    return {
        "brokerName": broker,
        "brokerAddr": f"10.0.0.{broker_id + 1}:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": f"10.0.0.{broker_id + 1}:10912",
        "brokerId": str(broker_id),
        **more,
    }


async def register(
    caller: Caller, broker: str = "broker-a", broker_id: int = 0, body: bytes = BODY, **more: str
) -> Command:
    answer = await caller.ask(Code.REGISTER_BROKER, header(broker, broker_id, **more), body)
    assert answer.code == 0, answer.remark
    return answer


async def route(caller: Caller, topic: str = "TopicTest") -> Command:
    return await caller.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


async def test_routes_are_those_of_the_worked_example(caller: Caller) -> None:
    none = await route(caller)
    assert (none.code, none.remark) == (17, NO_ROUTE)
    assert zlib.crc32(BODY) & 0x7FFFFFFF == int(CRC)
    answer = await register(caller, bodyCrc32=CRC, compressed="false")
    assert (answer.fields, bytes(answer.body)) == ({}, b"")
    found = await route(caller)
    assert found.code == 0
    assert fastjson.loads(found.body) == fastjson.loads(ROUTE)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in bytes(found.body)  # Go's clients split this


async def test_newer_clients_get_standard_json(caller: Caller) -> None:
    await register(caller, bodyCrc32=CRC, compressed="false")
    code, topic = Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicTest"}
    standard = {**topic, "acceptStandardJsonOnly": "true"}
    older = await caller.ask_as(V4_9_3, code, topic)
    with pytest.raises(ValueError, match="property name"):
        json.loads(older.body)
    for version, fields in [(V4_9_3, standard), (V4_9_4, topic)]:
        found = await caller.ask_as(version, code, fields)
        assert json.loads(found.body) == json.loads(ROUTE.replace(b"{0:", b'{"0":'))
    newest = await caller.ask_as(V5_0_0, code, topic)
    [broker] = json.loads(newest.body)["brokerDatas"]
    assert broker["enableActingMaster"] is False  # Rust's client reads no route without it


async def test_compressed_registration(caller: Caller) -> None:
    await register(caller, body=COMPRESSED, bodyCrc32=COMPRESSED_CRC, compressed="true")
    found = await route(caller)
    assert fastjson.loads(found.body) == fastjson.loads(ROUTE)


async def test_registration_of_old_brokers_has_another_body(caller: Caller) -> None:
    wrapper = msgspec.json.encode(msgspec.json.decode(BODY)["topicConfigSerializeWrapper"])
    request = Command(Code.REGISTER_BROKER, 77, version=36, fields=header(), body=wrapper)
    answer = caller.expect(77)
    caller.connection.write(encode(request))
    assert (await answer).code == 0
    assert fastjson.loads((await route(caller)).body) == fastjson.loads(ROUTE)


async def test_wrong_registrations_are_refused(caller: Caller) -> None:
    wrong = await caller.ask(Code.REGISTER_BROKER, header(bodyCrc32="1"), BODY)
    assert (wrong.code, wrong.remark) == (1, "crc32 not match")
    unreadable = await caller.ask(Code.REGISTER_BROKER, header(), b"{")
    assert unreadable.code == 1
    assert (unreadable.remark or "").startswith("Failed to decode RegisterBrokerBody")
    nobody = await caller.ask(Code.REGISTER_BROKER, {}, BODY)
    assert nobody.code == 1
    assert (await route(caller)).code == 17


async def test_a_slave_learns_the_address_of_its_master(caller: Caller) -> None:
    first = await register(caller, broker_id=1)
    assert first.fields == {}
    await register(caller)
    again = await register(caller, broker_id=1)
    assert again.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


async def test_the_master_is_listed_first(caller: Caller) -> None:
    for broker_id in (2, 1, 0):
        await register(caller, "broker-a", broker_id)
    body = bytes((await route(caller)).body)
    assert re.findall(rb"(\d):\"", body) == [b"0", b"1", b"2"]


async def test_brokers_go_with_their_connections(harness: Harness, caller: Caller) -> None:
    broker = await harness.caller()
    await register(broker)
    await broker.hang_up()
    assert (await route(caller)).code == 17


async def test_unregistering_a_broker(caller: Caller) -> None:
    await register(caller)
    assert (await caller.ask(Code.UNREGISTER_BROKER, header())).code == 0
    assert (await route(caller)).code == 17


async def test_silent_brokers_are_removed_and_disconnected(
    harness: Harness, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await harness.caller()
    await register(broker)
    harness.pass_ms(EXPIRE_MS)
    assert (await route(caller)).code == 0
    with caplog.at_level(logging.WARNING, "coherer"):
        harness.pass_ms(SCAN_MS)
    assert (await route(caller)).code == 17
    await broker.lost.wait()


async def test_asking_whether_to_register(harness: Harness, caller: Caller) -> None:
    version = bodies.DataVersion(counter=1, timestamp=1650000000000)
    unknown = await caller.ask(Code.QUERY_DATA_VERSION, header(), version.encode())
    assert (unknown.fields, bytes(unknown.body)) == ({"changed": "true"}, b"")
    await register(caller)
    same = await caller.ask(Code.QUERY_DATA_VERSION, header(), version.encode())
    assert same.fields == {"changed": "false"}
    assert bodies.DataVersion.decode(same.body) == version
    newer = bodies.DataVersion(counter=2, timestamp=1650000000000).encode()
    assert (await caller.ask(Code.QUERY_DATA_VERSION, header(), newer)).fields == {
        "changed": "true"
    }


async def test_permission_to_write(caller: Caller) -> None:
    await register(caller)
    wiped = await caller.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.fields == {"wipeTopicCount": "1"}
    assert b'"perm":4' in bytes((await route(caller)).body)
    added = await caller.ask(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.fields == {"addTopicCount": "1"}
    assert b'"perm":6' in bytes((await route(caller)).body)
    unknown = await caller.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"})
    assert unknown.fields == {"wipeTopicCount": "0"}


async def test_clusters_and_lists_of_topics(caller: Caller) -> None:
    empty = await caller.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert bytes(empty.body) == b'{"topicList":[]}'
    await register(caller)
    info = bodies.ClusterInfo.decode((await caller.ask(Code.GET_BROKER_CLUSTER_INFO)).body)
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    for code, fields, names in (
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, ["TopicTest"]),
        (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, ["TopicTest"]),
        (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "other"}, []),
        (Code.GET_TOPICS_BY_CLUSTER, {}, []),
        (Code.GET_UNIT_TOPIC_LIST, {}, []),
        (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, []),
        (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, []),
    ):
        answer = await caller.ask(code, dict(fields))
        assert (answer.code, bodies.TopicList.decode(answer.body).topic_list) == (0, names)
    system = await caller.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert (
        bytes(system.body)
        == b'{"brokerAddr":"10.0.0.1:10911","topicList":["DefaultCluster","broker-a"]}'
    )
    assert (await caller.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicTest"})).code == 0
    assert (await caller.ask(Code.DELETE_TOPIC_IN_NAMESRV, {})).code == 0
    assert (await route(caller)).code == 17


async def test_values_kept_for_others(harness: Harness, caller: Caller) -> None:
    item = {"namespace": "n", "key": "k"}
    none = await caller.ask(Code.GET_KV_CONFIG, item)
    assert (none.code, none.remark) == (22, "No config item, Namespace: n Key: k")
    nowhere = await caller.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert (nowhere.code, nowhere.remark) == (22, "No config item, Namespace: n")
    assert (await caller.ask(Code.PUT_KV_CONFIG, {**item, "value": "v"})).code == 0
    assert (await caller.ask(Code.GET_KV_CONFIG, item)).fields == {"value": "v"}
    listed = await caller.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert bytes(listed.body) == b'{"table":{"k":"v"}}'
    assert harness.files["kvConfig.json"] == b'{"configTable":{"n":{"k":"v"}}}'
    incomplete = await caller.ask(Code.PUT_KV_CONFIG, {"namespace": "n"})
    assert (incomplete.code, incomplete.remark) == (1, "namespace or key is null")
    assert (await caller.ask(Code.DELETE_KV_CONFIG, item)).code == 0
    assert (await caller.ask(Code.DELETE_KV_CONFIG, item)).code == 0
    listed = await caller.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert bytes(listed.body) == b'{"table":{}}'


async def test_order_configuration_in_routes(harness: Harness, caller: Caller) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicTest", "value": "broker-a:4"}
    await caller.ask(Code.PUT_KV_CONFIG, order)
    answer = await register(caller)
    assert bytes(answer.body) == b'{"table":{"TopicTest":"broker-a:4"}}'
    assert b"orderTopicConf" not in bytes((await route(caller)).body)
    changed = await caller.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nx=1\n")
    assert changed.code == 0
    assert b'"orderTopicConf":"broker-a:4"' in bytes((await route(caller)).body)
    shown = bytes((await caller.ask(Code.GET_NAMESRV_CONFIG)).body).decode()
    assert "orderMessageEnable=true\n" in shown
    assert "kvConfigPath=/store/config/kvConfig.json\n" in shown
    assert "x=1" not in shown
    for body in (b"", b"\xff"):
        assert (await caller.ask(Code.UPDATE_NAMESRV_CONFIG, body=body)).code == 0
    malformed = await caller.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=\\u00zz")
    assert (malformed.code, malformed.remark) == (1, "string2Properties error")
    await harness.listener.close()
    await harness.start()
    again = await harness.caller()
    await register(again)
    assert b'"orderTopicConf":"broker-a:4"' in bytes((await route(again)).body)


async def test_an_invalid_file_is_logged_and_ignored(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.listener.close()
    harness.files["kvConfig.json"] = b"{"
    harness.files["namesrv.properties"] = b"orderMessageEnable=\\u"
    with caplog.at_level(logging.WARNING, "coherer"):
        await harness.start()
    assert "kvConfig.json is invalid" in caplog.text
    assert "namesrv.properties cannot be read" in caplog.text


async def test_unknown_codes_get_no_answer(caller: Caller) -> None:
    unheard = caller.begin(Code.SEND_MESSAGE, {"topic": "t"})
    await route(caller)
    assert not unheard.done()
