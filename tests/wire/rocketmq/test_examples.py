"""The examples of docs/protocol/rocketmq.md, section 13, which were checked with Java 4.9.3."""

from __future__ import annotations

import zlib

from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.acl import content, sign, signer, verify
from coherer._wire.rocketmq.bodies import (
    ConsumerData,
    DataVersion,
    HeartbeatData,
    ProducerData,
    RegisterBody,
    ResetOffset,
    SubscriptionData,
    TopicConfig,
    TopicConfigs,
    TopicRoute,
    crc,
)
from coherer._wire.rocketmq.command import RESPONSE, Command, encode
from coherer._wire.rocketmq.headers import SendHeader, read_send
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.sending import SendEncoder
from coherer._wire.rocketmq.session import Session

ROUTE_REQUEST = bytes.fromhex(
    """
    00000089000000857b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f
    70696354657374227d2c22666c6167223a302c226c616e6775616765223a22505954484f4e222c226f706171
    7565223a372c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273
    696f6e223a3339397d
    """
)
"""13.1: 105 with a JSON header."""
ROUTE_REQUEST_BINARY = bytes.fromhex(
    """
    0000002d01000029006903018f000000070000000000000000000000140005746f70696300000009546f7069
    6354657374
    """
)
"""13.2: the same with a binary header."""
ROUTE_RESPONSE = bytes.fromhex(
    """
    0000014b0000005f7b22636f6465223a302c22666c6167223a312c226c616e6775616765223a224a41564122
    2c226f7061717565223a372c2273657269616c697a655479706543757272656e74525043223a224a534f4e22
    2c2276657273696f6e223a3339397d7b2262726f6b65724461746173223a5b7b2262726f6b65724164647273
    223a7b303a2231302e302e302e313a3130393131227d2c2262726f6b65724e616d65223a2262726f6b65722d
    61222c22636c7573746572223a2244656661756c74436c7573746572227d5d2c2266696c7465725365727665
    725461626c65223a7b7d2c2271756575654461746173223a5b7b2262726f6b65724e616d65223a2262726f6b
    65722d61222c227065726d223a362c227265616451756575654e756d73223a342c22746f706963537973466c
    6167223a302c22777269746551756575654e756d73223a347d5d7d
    """
)
"""13.3: its answer, with a number as key."""
SEND = bytes.fromhex(
    """
    00000169000001607b22636f6465223a3331302c226578744669656c6473223a7b2261223a225049445f6465
    6d6f222c2262223a22546f70696354657374222c2263223a22544257313032222c2264223a2234222c226522
    3a2231222c2266223a2230222c2267223a2231363530303030303030303030222c2268223a2230222c226922
    3a224b4559535c75303030316b315c7530303032554e49515f4b45595c753030303130413030303030393130
    393230303030303030313044314532463341303030305c7530303032574149545c7530303031747275655c75
    30303032544147535c753030303154616741222c226a223a2230222c226b223a2266616c7365222c226d223a
    2266616c7365227d2c22666c6167223a302c226c616e6775616765223a22505954484f4e222c226f70617175
    65223a392c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c227665727369
    6f6e223a3339397d68656c6c6f
    """
)
"""13.5: 310."""
HEARTBEAT_START = bytes.fromhex(
    """
    000002a8000000627b22636f6465223a33342c22666c6167223a302c226c616e6775616765223a2250595448
    4f4e222c226f7061717565223a382c2273657269616c697a655479706543757272656e74525043223a224a53
    4f4e222c2276657273696f6e223a3339397d7b22636c69656e744944223a2231302e302e302e394034323432
    222c22636f6e73756d657244617461536574223a5b7b22636f6e7375
    """
)
"""13.4: the first 160 bytes of 34."""
REGISTER_PLAIN = bytes.fromhex(
    """
    000000277b22636f756e746572223a312c2274696d657374616d70223a313635303030303030303030307d00
    0000010000001a546f706963546573742034203420362053494e474c455f544147000000025b5d
    """
)
"""13.12: a compressed registration before zlib."""
REGISTER_ZLIB = bytes.fromhex(
    """
    78da63606050af564ace2fcd2b492d52b232d4512ac9cc4d2d2e49cc2d00f2cc4c0de0a0968181811188a542
    f20b329343806a144c80d04c21d8d3cfddc7353ec4d11d28cb141d0b0080861458
    """
)
"""13.12: the same after Java's zlib."""
RESET_JAVA = bytes.fromhex(
    """
    7b226f66667365745461626c65223a7b7b2262726f6b65724e616d65223a2262726f6b65722d61222c227175
    6575654964223a302c22746f706963223a22546f70696354657374227d3a357d7d
    """
)
"""13.16: offsets by queue."""
RESET_C = bytes.fromhex(
    """
    7b226f66667365745461626c65223a5b7b2262726f6b65724e616d65223a2262726f6b65722d61222c226f66
    66736574223a352c2271756575654964223a302c22746f706963223a22546f70696354657374227d5d7d
    """
)
"""13.16: the same for clients in C++."""
HEARTBEAT = (
    b'{"clientID":"10.0.0.9@4242","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAS'
    b'T_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"GID_demo","messageModel":"C'
    b'LUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expr'
    b'essionType":"TAG","subString":"TagA","subVersion":1650000000000,"tagsSet":["TagA"],"'
    b'topic":"TopicTest"},{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","su'
    b'bString":"*","subVersion":1650000000000,"tagsSet":[],"topic":"%RETRY%GID_demo"}],"un'
    b'itMode":false}],"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)
"""13.4: the body of a heartbeat."""


PROPERTIES = (
    "KEYS\x01k1\x02UNIQ_KEY\x010A0000091092000000010D1E2F3A0000\x02WAIT\x01true\x02TAGS\x01TagA"
)


def received(frame: bytes) -> Command:
    [command] = Session().receive(frame)
    return command


def test_route_request() -> None:
    command = Command(105, 7, fields={"topic": "TopicTest"})
    assert encode(command) == ROUTE_REQUEST
    assert received(ROUTE_REQUEST) == command


def test_route_request_in_binary() -> None:
    command = Command(105, 7, fields={"topic": "TopicTest"})
    assert encode(command, binary=True) == ROUTE_REQUEST_BINARY
    assert received(ROUTE_REQUEST_BINARY) == command


def test_route_response() -> None:
    answer = received(ROUTE_RESPONSE)
    assert (answer.code, answer.opaque, answer.flag, answer.language) == (0, 7, RESPONSE, "JAVA")
    assert encode(answer) == ROUTE_RESPONSE
    route = TopicRoute.decode(answer.body)
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert (route.queue_datas[0].write_queue_nums, route.queue_datas[0].perm) == (4, 6)
    assert route.encode() == answer.body
    assert fastjson.dumps(fastjson.loads(answer.body)) == answer.body


def test_heartbeat() -> None:
    version = 1650000000000
    heartbeat = HeartbeatData(
        client_id="10.0.0.9@4242",
        producer_data_set=[ProducerData(group_name="CLIENT_INNER_PRODUCER")],
        consumer_data_set=[
            ConsumerData(
                group_name="GID_demo",
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[
                    SubscriptionData(
                        topic="TopicTest",
                        sub_string="TagA",
                        tags_set=["TagA"],
                        code_set=[2598919],
                        sub_version=version,
                    ),
                    SubscriptionData(topic="%RETRY%GID_demo", sub_string="*", sub_version=version),
                ],
            )
        ],
    )
    assert heartbeat.encode() == HEARTBEAT
    assert HeartbeatData.decode(HEARTBEAT) == heartbeat
    assert encode(Command(34, 8, body=HEARTBEAT)).startswith(HEARTBEAT_START)
    assert crc(HEARTBEAT) == 2053393313


def test_send() -> None:
    encoder = SendEncoder("PID_demo", "TopicTest")
    assert encoder.encode(9, 1, b"hello", PROPERTIES, born_ms=1650000000000) == SEND
    command = received(SEND)
    assert encode(command) == SEND
    header = read_send(command.code, command.fields)
    assert header == SendHeader(
        "PID_demo", "TopicTest", "TBW102", 4, 1, 0, 1650000000000, 0, PROPERTIES
    )
    assert header.fields() == command.fields
    assert read_send(10, header.long_fields()) == header


def test_signature() -> None:
    fields = {"consumerGroup": "GID_demo", "topic": "TopicTest", "queueId": "0"}
    signed = signer("accesskey123", "secretkey456")(fields, b"hello")
    assert signed["Signature"] == "Q19VUaLzgH2vvkCGJ2Xjh5We0xM="
    assert content(signed, b"hello") == b"accesskey123GID_demo0TopicTesthello"
    assert sign(content(signed, b""), "secretkey456") == "ulJdcLl9g7l4LgoZBAVtgK2GG3I="
    ons = {**signed, "OnsChannel": "ALIYUN"}
    assert sign(content(ons, b"hello"), "secretkey456") == "vB0mv19sH6f8U9VdP5T5/ur8JFs="
    assert verify({**signed, "_UNIQUE_KEY_QUERY": "true"}, b"hello", "secretkey456")
    assert not verify(ons, b"hello", "secretkey456")


def test_registration() -> None:
    body = RegisterBody(
        topic_config_serialize_wrapper=TopicConfigs(
            data_version=DataVersion(counter=1, timestamp=1650000000000),
            topic_config_table={
                "TopicTest": TopicConfig(
                    topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4
                )
            },
        )
    )
    plain = body.encode()
    assert (len(plain), crc(plain), crc(REGISTER_ZLIB)) == (276, 542215206, 204337167)
    assert RegisterBody.read(plain, compressed=False) == body
    assert RegisterBody.read(REGISTER_ZLIB, compressed=True) == body
    assert zlib.decompress(body.compressed()) == REGISTER_PLAIN


def test_reset_offset() -> None:
    body = ResetOffset(offset_table={Queue("TopicTest", "broker-a", 0): 5})
    assert (body.encode(), body.encode_for_c()) == (RESET_JAVA, RESET_C)
    assert ResetOffset.read(RESET_JAVA) == ResetOffset.read(RESET_C) == body
