"""Bodies: the texts of docs/protocol/rocketmq.md, and the lenient reading of other forms.

See docs/protocol/rocketmq.md, sections 1.8 and 9.2.
"""

from __future__ import annotations

import json
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.bodies import (
    Body,
    BrokerConsumeStats,
    BrokerStats,
    ClusterInfo,
    Connection,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumerOffsets,
    ConsumerStatus,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    KVTable,
    LockBatch,
    OffsetMoved,
    OffsetWrapper,
    RegisterBody,
    ResetOffset,
    RunningInfo,
    StatsItem,
    SubscriptionData,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
    TopicOffset,
    TopicRoute,
    TopicStats,
)
from coherer._wire.rocketmq.bodies.admin import offset_in
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError

KINDS = [
    kind
    for kind in (getattr(bodies, name) for name in bodies.__all__)
    if isinstance(kind, type) and issubclass(kind, Body) and kind is not Body
]
Q = Queue("T1", "broker-a", 0)


def same(body: Body, text: str) -> None:
    assert body.encode().decode() == text
    assert type(body).decode(text.encode()) == body


def test_texts_of_the_protocol_page() -> None:
    same(ConsumerOffsets(offset_table={"T1@g": {0: 5, 1: 7}}), '{"offsetTable":{"T1@g":{0:5,1:7}}}')
    same(
        TopicConfigs(
            data_version=DataVersion(counter=4, timestamp=1650000000000),
            topic_config_table={
                "T1": TopicConfig(topic_name="T1", read_queue_nums=8, write_queue_nums=8)
            },
        ),
        '{"dataVersion":{"counter":4,"timestamp":1650000000000},"topicConfigTable":{"T1":'
        '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T1","topicSysFlag":0,"writeQueueNums":8}}}',
    )
    same(
        SubscriptionGroups(subscription_group_table={"g": SubscriptionGroup(group_name="g")}),
        '{"dataVersion":{"counter":0,"timestamp":0},"subscriptionGroupTable":{"g":{"brokerId":0,'
        '"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        '"groupName":"g","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
        '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}',
    )
    same(
        TopicStats(
            offset_table={Q: TopicOffset(last_update_timestamp=1650000000000, max_offset=10)}
        ),
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:'
        '{"lastUpdateTimestamp":1650000000000,"maxOffset":10,"minOffset":0}}}',
    )
    same(
        ConsumeStats(offset_table={Q: OffsetWrapper(broker_offset=10, consumer_offset=7)}),
        '{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:'
        '{"brokerOffset":10,"consumerOffset":7,"lastTimestamp":0}}}',
    )
    same(
        BrokerConsumeStats(broker_addr="b:1", consume_stats_list=[{"g": []}], total_diff=15),
        '{"brokerAddr":"b:1","consumeStatsList":[{"g":[]}],"totalDiff":15}',
    )
    same(
        BrokerStats(stats_day=StatsItem(sum=3)),
        '{"statsDay":{"avgpt":0.0,"sum":3,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":0.0,"sum":0,"tps":0.0}}',
    )
    same(
        ConsumerConnection(
            connection_set=[
                Connection(client_id="c@1", client_addr="h:1", language="GO", version=9)
            ],
            consume_type="CONSUME_PASSIVELY",
        ),
        '{"connectionSet":[{"clientAddr":"h:1","clientId":"c@1","language":"GO","version":9}],'
        '"consumeType":"CONSUME_PASSIVELY","subscriptionTable":{}}',
    )
    same(
        LockBatch(client_id="c", consumer_group="g", queues=[Q]),
        '{"clientId":"c","consumerGroup":"g","mqSet":'
        '[{"brokerName":"broker-a","queueId":0,"topic":"T1"}]}',
    )
    same(
        ConsumeDirectlyResult(consume_result="CR_SUCCESS", spent_time_mills=3),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
    )
    same(
        OffsetMoved(consumer_group="g", message_queue=Q, offset_request=9),
        '{"consumerGroup":"g","messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T1"},'
        '"offsetNew":0,"offsetRequest":9}',
    )
    same(KVTable({"a": "b"}), '{"table":{"a":"b"}}')


def test_running_info_of_a_java_consumer() -> None:
    found = RunningInfo.decode(
        b'{"jstack":"x","mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:{'
        b'"cachedMsgCount":0,"cachedMsgSizeInMiB":2,"commitOffset":5,"droped":false,'
        b'"locked":true,"news":[]}},"properties":{"PROP_CONSUMEORDERLY":"false"},"statusTable":'
        b'{"T1":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.5,"consumeRT":0.0,'
        b'"pullRT":0.0,"pullTPS":0.0}},"subscriptionSet":[{"topic":"T1","subString":"*"}]}'
    )
    assert (found.mq_table[Q].commit_offset, found.mq_table[Q].cached_msg_size_in_mib) == (5, 2)
    assert found.status_table["T1"].consume_ok_tps == 1.5
    assert RunningInfo.decode(found.encode()) == found


def test_queues_as_keys_may_be_text() -> None:
    """The form that Java takes from others (section 1.8)."""
    inner = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T1"})
    assert ResetOffset.read(json.dumps({"offsetTable": {inner: 5}}).encode()) == ResetOffset(
        offset_table={Q: 5}
    )
    assert ResetOffset.read(b"") == ResetOffset()


def test_tables_may_share_an_object() -> None:
    found = ConsumerStatus.decode(
        b'{"consumerTable":{"c1":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:5},'
        b'"cid2":{"$ref":"$.consumerTable.c1"}},"messageQueueTable":{}}'
    )
    assert found == ConsumerStatus(consumer_table={"c1": {Q: 5}, "cid2": {Q: 5}})


@pytest.mark.parametrize(
    "keys", ['{"0":"a:1","1":"b:1"}', '{0:"a:1",1:"b:1"}', '{0 : "a:1",\n1:"b:1"}']
)
def test_routes_with_quoted_or_unquoted_numbers(keys: str) -> None:
    text = f'{{"brokerDatas":[{{"brokerAddrs":{keys},"brokerName":"b","cluster":"c"}}]}}'
    assert TopicRoute.decode(text.encode()).broker_datas[0].broker_addrs == {0: "a:1", 1: "b:1"}
    info = f'{{"brokerAddrTable":{{"b":{{"brokerAddrs":{keys}}}}}}}'
    assert ClusterInfo.decode(info.encode()).broker_addr_table["b"].broker_addrs[1] == "b:1"


def test_missing_null_unknown_and_text_members() -> None:
    found = SubscriptionData.decode(
        b'{"topic":"T","subVersion":null,"codeSet":["5",null],"filterClassSource":"x","tagsSet":null}'
    )
    assert found == SubscriptionData(topic="T", code_set=[5])
    assert DataVersion.decode(b'{"counter":"12"}') == DataVersion(counter=12)
    assert HeartbeatData.decode(b"{}") == HeartbeatData()


def test_unknown_names_of_enums_are_none() -> None:
    found = ConsumerData.decode(
        b'{"groupName":"g","consumeType":"CONSUME_POP","messageModel":"BROADCASTING",'
        b'"consumeFromWhere":"X"}'
    )
    assert (found.consume_type, found.message_model, found.consume_from_where) == (
        None,
        "BROADCASTING",
        None,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_reverses_encoding(kind: type[Body]) -> None:
    assert kind.decode(kind().encode()) == kind()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"5",
        b"{",
        b'"x"',
        b"\xff",
        b"{" * 9999,
        b'{"$ref":"$"}',
    ],
)
def test_invalid_bodies_are_refused(kind: type[Body], data: bytes) -> None:
    with pytest.raises(ProtocolError):
        kind.decode(data)


@settings(max_examples=20)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_bytes_are_a_body_or_a_protocol_error(kind: type[Body], data: st.DataObject) -> None:
    names = [each.encode_name for each in msgspec.structs.fields(kind)]
    inner = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    deep = st.recursive(
        inner, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(), v, max_size=2)
    )
    value = data.draw(st.dictionaries(st.sampled_from(names), deep, max_size=4))
    try:
        found = kind.decode(json.dumps(value).encode())
    except ProtocolError:
        return
    assert isinstance(found, kind)


@pytest.mark.parametrize("name", ["offsetTable", "x"])
@pytest.mark.parametrize("kind", KINDS)
def test_bodies_of_any_depth_are_read_or_refused(kind: type[Body], name: str) -> None:
    for depth in (63, 64, 65, 300, 500, 900, 5000):
        try:
            found = kind.decode(b'{"%b":%b%b}' % (name.encode(), b"[" * depth, b"]" * depth))
        except ProtocolError:
            continue
        assert found == kind()


def test_compressed_registrations() -> None:
    topics = {
        "T": TopicConfig(topic_name="T", read_queue_nums=2, topic_sys_flag=1, order=True),
    }
    body = RegisterBody(
        topic_config_serialize_wrapper=TopicConfigs(topic_config_table=topics),
        filter_server_list=["h:1"],
    )
    found = RegisterBody.read(body.compressed(), compressed=True)
    assert found.filter_server_list == ["h:1"]
    # The short form has no room for these two (section 9.2).
    assert found.topic_config_serialize_wrapper.topic_config_table == {
        "T": TopicConfig(topic_name="T", read_queue_nums=2)
    }


@given(st.binary(max_size=50))
def test_any_bytes_are_a_registration_or_a_protocol_error(data: bytes) -> None:
    for each in (data, zlib.compress(data)):
        with pytest.raises(ProtocolError):
            RegisterBody.read(each, compressed=True)


@given(st.data())
def test_damaged_compressed_registrations_are_refused(data: st.DataObject) -> None:
    plain = bytearray(zlib.decompress(RegisterBody().compressed()))
    plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = RegisterBody.read(zlib.compress(bytes(plain)), compressed=True)
    except ProtocolError:
        return
    assert isinstance(found, RegisterBody)


@pytest.mark.parametrize(
    "topic",
    [
        TopicConfig(topic_name="in two"),
        TopicConfig(topic_name="t", topic_filter_type="NO_TAG"),
        TopicConfig(topic_name="t", topic_filter_type=""),
    ],
)
def test_invalid_topics_in_a_compressed_registration_are_refused(topic: TopicConfig) -> None:
    body = RegisterBody(
        topic_config_serialize_wrapper=TopicConfigs(topic_config_table={"t": topic})
    )
    with pytest.raises(ProtocolError, match="truncated or invalid"):
        RegisterBody.read(body.compressed(), compressed=True)


def test_a_too_large_compressed_registration_is_refused() -> None:
    with pytest.raises(ProtocolError, match="has more than"):
        RegisterBody.read(zlib.compress(bytes(20 * 2**20)), compressed=True)


@pytest.mark.parametrize(
    ("kind", "text", "read"),
    [
        (ConsumeDirectlyResult, '{"consumeResult":5}', {"consume_result": "CR_RETURN_NULL"}),
        (ConsumeDirectlyResult, '{"consumeResult":"cr_later"}', {"consume_result": "CR_LATER"}),
        (ConsumeDirectlyResult, '{"consumeResult":"7"}', {"consume_result": None}),
        (ConsumeDirectlyResult, '{"remark":1.5,"order":"Y"}', {"remark": "1.5", "order": True}),
        (ConsumeDirectlyResult, '{"remark":{"a":[1]}}', {"remark": '{"a":[1]}'}),
        (ConsumeDirectlyResult, '{"spentTimeMills":"1,000"}', {"spent_time_mills": 1000}),
        (ConsumeDirectlyResult, '{"spentTimeMills":2.9}', {"spent_time_mills": 2}),
        (ConsumeDirectlyResult, '{"spentTimeMills":true}', {"spent_time_mills": 1}),
        (ConsumeDirectlyResult, '{"spentTimeMills":"","order":"null"}', {"order": False}),
        (Connection, '{"language":9,"version":"5.0"}', {"language": "GO", "version": 5}),
        (ConsumerConnection, '{"messageModel":1}', {"message_model": "CLUSTERING"}),
        (ConsumerData, '{"consumeFromWhere":"what"}', {"consume_from_where": None}),
        (TopicConfig, '{"topicFilterType":1,"order":0}', {"topic_filter_type": "MULTI_TAG"}),
        (KVTable, '{"table":{1:2,"a":true}}', {"table": {"1": "2", "a": "true"}}),
    ],
)
def test_members_are_coerced_as_in_java(
    kind: type[Body], text: str, read: dict[str, object]
) -> None:
    body = kind.decode(text.encode())
    assert {name: getattr(body, name) for name in read} == read


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConsumeDirectlyResult, '{"consumeResult":6}'),
        (ConsumeDirectlyResult, '{"consumeResult":1.0}'),
        (ConsumeDirectlyResult, '{"order":"5"}'),
        (ConsumeDirectlyResult, '{"spentTimeMills":"0x5"}'),
        (ConsumeDirectlyResult, '{"spentTimeMills":[]}'),
        (StatsItem, '{"tps":"fast"}'),
    ],
)
def test_members_that_java_refuses_are_refused(kind: type[Body], text: str) -> None:
    with pytest.raises(ProtocolError, match=f"Not a valid {kind.__name__}"):
        kind.decode(text.encode())


GROUP_OFFSETS = (
    b'{"dataVersion":{"counter":4},"offsetTable":{"flights@readers":{0:5,1:0,10:-1},'
    b'"flights@readers2":{0:6},"%RETRY%readers@readers":{0:7},"empty@readers":{}}}'
)
GROUP_OFFSETS_INDENTED = b'{ "offsetTable" : {\n\t"flights@readers" : {\n "0" : 5,\n "1":0 }\n}}'


@pytest.mark.parametrize(
    ("group", "topic", "queue", "offset"),
    [
        ("readers", "flights", 0, 5),
        ("readers", "flights", 1, 0),
        ("readers", "flights", 2, None),
        ("readers", "flights", 10, None),
        ("readers2", "flights", 0, 6),
        ("readers", "%RETRY%readers", 0, 7),
        ("readers", "empty", 0, None),
        ("reader", "flights", 0, None),
        ("readers", "light", 0, None),
    ],
)
def test_offset_in_a_table_of_all_groups(
    group: str, topic: str, queue: int, offset: int | None
) -> None:
    assert offset_in(GROUP_OFFSETS, group, topic, queue) == offset
    assert offset_in(memoryview(GROUP_OFFSETS), group, topic, queue) == offset


def test_offset_in_an_indented_table() -> None:
    assert [
        offset_in(GROUP_OFFSETS_INDENTED, "readers", "flights", queue) for queue in range(3)
    ] == [5, 0, None]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"offsetTable":{"flights@readers":7}}'])
def test_offset_in_an_invalid_table_fails(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        offset_in(body, "readers", "flights", 0)
