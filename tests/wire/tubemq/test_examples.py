"""The worked examples of the protocol page (appendix A), byte for byte, both ways."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from coherer._record.properties import decode_time
from coherer._wire.tubemq import credentials, methods, payload, sending
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.delivery import MessageBatch, delivered_head, get_reply
from coherer._wire.tubemq.frame import FrameDecoder
from coherer._wire.tubemq.methods import METHODS, parse
from coherer._wire.tubemq.names import BrokerInfo, SubscribeInfo, TopicInfo
from coherer._wire.tubemq.session import (
    JAVA_EXCEPTION,
    STANDBY,
    ClientSession,
    Failure,
    Request,
    Response,
    ServerSession,
)

EXAMPLES = {
    "A1": (
        "ff7ff4fe00000001000000010000006802080004080110035f080110904e1a580a243132372e302e"
        "302e312d343332312d313730303030303030303030302d372d322e352e30120464656d6f18ffffff"
        "ffffffffffff0122093132372e302e302e31320731372e302e31353a0b08feffffffffffffffff01"
    ),
    "A2": (
        "ff7ff4fe00000001000000010000005402080104080018034b08011247080110c8011a034f4b2120"
        "80d095ffbc312a0d313a3132372e302e302e313a202a0f323a31302e302e302e323a383132353207"
        "08fbd095ffbc313a0b0881d095ffbc3110808040"
    ),
    "A3": (
        "ff7ff4fe00000002000000010000004a0208010408001803410802123d080110c8011a034f4b2120"
        "80d095ffbc312a1864656d6f23313a333a322c323a333a312331303438353736420708fbd095ffbc"
        "314a070881d095ffbc31"
    ),
    "A4": (
        "ff7ff4fe0000000300000001000000a302080004080310039901080d10904e1a91010a243132372e"
        "302e302e312d343332312d313730303030303030303030302d372d322e352e30120464656d6f1891"
        "4e223200000029246d736754797065243d74312c246d736754696d65243d32303234303130323033"
        "30342c6b313d763168656c6c6f280130ffffffffffffffffff0138818080f807420274314a0c3230"
        "32343031303230333034520708fbd095ffbc31"
    ),
    "A5": (
        "ff7ff4fe00000003000000010000003b020801040800180332080d122e080110c8011a1231323334"
        "3536373839303132333435363738200028cee6c3b1bae9a6db0130f4d395ffbc313800"
    ),
    "A6": (
        "ff7ff4fe000000040000000100000069020800040802100360080f10904e1a59081f122d6772705f"
        "3132372e302e302e312d343332312d313730303030303030303030302d392d50756c6c2d322e352e"
        "301a03677270220464656d6f28914e30013a02743160feffffffffffffffff016a0708fbd095ffbc"
        "31"
    ),
    "A7": (
        "ff7ff4fe00000005000000010000005302080004080210034a081110904e1a430a2d6772705f3132"
        "372e302e302e312d343332312d313730303030303030303030302d392d50756c6c2d322e352e3010"
        "914e1a03677270220464656d6f280030003800"
    ),
    "A8": (
        "ff7ff4fe00000005000000010000008602080104080018037d08111279080110c8011a034f4b2122"
        "4608cee6c3b1bae9a6db0110f5dec2ae031a3200000029246d736754797065243d74312c246d7367"
        "54696d65243d3230323430313032303330342c6b313d763168656c6c6f2001221908cfe6c3b1bae9"
        "a6db0110cfc581c9011a05706c61696e2000280030003800400048005038"
    ),
    "A9": (
        "ff7ff4fe0000000600000001000000ab0208010408011803a1010a3b6f72672e6170616368652e69"
        "6e6c6f6e672e747562656d712e636f72657270632e657863657074696f6e2e5374616e6462794578"
        "63657074696f6e12623132372e302e302e313a38373135206973206e6f74206d6173746572206e6f"
        "772e2074686520636f6e6e656374696e6720636c69656e74206964206973203132372e302e302e31"
        "2d343332312d313730303030303030303030302d372d322e352e30"
    ),
    "A10": (
        "ff7ff4fe00000007000000010000007702080104080018036e0805126a080110c8011a034f4b2122"
        "530805100a224d6772705f3132372e302e302e312d343332312d313730303030303030303030302d"
        "392d50756c6c2d322e352e304067727023313a3132372e302e302e313a383132332364656d6f3a31"
        "3030303128006a0708fbd095ffbc31"
    ),
    "A11": (
        "ff7ff4fe00000008000000010000010f02080004080110038502080510904e1afd010a2d6772705f"
        "3132372e302e302e312d343332312d313730303030303030303030302d392d50756c6c2d322e352e"
        "3012036772701a4d6772705f3132372e302e302e312d343332312d31373030303030303030303030"
        "2d392d50756c6c2d322e352e304067727023313a3132372e302e302e313a383132332364656d6f3a"
        "313030303120012a550805100a1802224d6772705f3132372e302e302e312d343332312d31373030"
        "3030303030303030302d392d50756c6c2d322e352e304067727023313a3132372e302e302e313a38"
        "3132332364656d6f3a313030303130feffffffffffffffff0138feffffffffffffffff0148feffff"
        "ffffffffffff01"
    ),
    "A12": (
        "0a330a0561646d696e1080d095ffbc3118b96022002a1e477a49456e336a4948515a615a654b466b"
        "7935493833324b437a67253344"
    ),
    "A14": (
        "ff7ff4fe00000001000000010000005c020800040801100353080710904e1a4c0a16313a3132372e"
        "302e302e313a383132333a322e352e30100018002000280030003800420058feffffffffffffffff"
        "0160feffffffffffffffff0168bc3f7a0b08feffffffffffffffff01"
    ),
    "A16": (
        "ff7ff4fe0000000900000003000020000208000408031003d89c01080d10904e1acf9c010a016312"
        "0464656d6f180022a09c0178787878787878787878787878"
    ),
    "A17": (
        "ff7ff4fe0000000a0000000100000058020801020802510a136a6176612e6c616e672e4578636570"
        "74696f6e123a495043207365727665722068616e646c652072657175657374206572726f72203a55"
        "6e737570706f72746564206d6574686f64204944203a3131"
    ),
}

PRODUCER = "127.0.0.1-4321-1700000000000-7-2.5.0"
CONSUMER = "grp_127.0.0.1-4321-1700000000000-9-Pull-2.5.0"
SUBSCRIPTION = f"{CONSUMER}@grp#1:127.0.0.1:8123#demo:10001"
LOOPBACK = 2130706433
MESSAGE_ID = 123456789012345678
AUTHORIZED = pb.MasterAuthorizedInfo(visitAuthorizedToken=1700000000123)
DATA = bytes.fromhex("00000029") + b"$msgType$=t1,$msgTime$=202401020304,k1=v1hello"

REQUESTS: dict[str, tuple[int, Message]] = {
    "A1": (
        methods.PRODUCER_REGISTER,
        pb.RegisterRequestP2M(
            clientId=PRODUCER,
            topicList=["demo"],
            brokerCheckSum=-1,
            hostName="127.0.0.1",
            jdkVersion="17.0.15",
            appdConfig=pb.ApprovedClientConfig(configId=-2),
        ),
    ),
    "A4": (
        methods.SEND_MESSAGE,
        pb.SendMessageRequestP2B(
            clientId=PRODUCER,
            topicName="demo",
            partitionId=10001,
            data=DATA,
            flag=1,
            checkSum=-1,
            sentAddr=LOOPBACK,
            msgType="t1",
            msgTime="202401020304",
            authInfo=pb.AuthorizedInfo(visitAuthorizedToken=1700000000123),
        ),
    ),
    "A6": (
        methods.PARTITION_REGISTER,
        pb.RegisterRequestC2B(
            opType=methods.REGISTER,
            clientId=CONSUMER,
            groupName="grp",
            topicName="demo",
            partitionId=10001,
            readStatus=1,
            filterCondStr=["t1"],
            qryPriorityId=-2,
            authInfo=pb.AuthorizedInfo(visitAuthorizedToken=1700000000123),
        ),
    ),
    "A7": (
        methods.GET_MESSAGES,
        pb.GetMessageRequestC2B(
            clientId=CONSUMER,
            partitionId=10001,
            groupName="grp",
            topicName="demo",
            lastPackConsumed=False,
            manualCommitOffset=False,
            escFlowCtrl=False,
        ),
    ),
    "A11": (
        methods.CONSUMER_HEARTBEAT,
        pb.HeartRequestC2M(
            clientId=CONSUMER,
            groupName="grp",
            subscribeInfo=[SUBSCRIPTION],
            reportSubscribeInfo=True,
            event=pb.EventProto(rebalanceId=5, opType=10, status=2, subscribeInfo=[SUBSCRIPTION]),
            defFlowCheckId=-2,
            groupFlowCheckId=-2,
            qryPriorityId=-2,
        ),
    ),
    "A14": (
        methods.BROKER_REGISTER,
        pb.RegisterRequestB2M(
            clientId="1:127.0.0.1:8123:2.5.0",
            brokerOnline=False,
            enableTls=False,
            readStatusRpt=0,
            writeStatusRpt=0,
            curBrokerConfId=0,
            confCheckSumId=0,
            brokerDefaultConfInfo="",
            flowCheckId=-2,
            qryPriorityId=-2,
            tlsPort=8124,
            clsConfig=pb.ClusterConfig(configId=-2),
        ),
    ),
}

ANSWERS: dict[str, tuple[int, Message]] = {
    "A2": (
        methods.PRODUCER_REGISTER,
        pb.RegisterResponseM2P(
            success=True,
            errCode=200,
            errMsg="OK!",
            brokerCheckSum=1700000000000,
            brokerInfos=[
                BrokerInfo(1, "127.0.0.1", 8123).text(),
                BrokerInfo(2, "10.0.0.2", 8125).text(),
            ],
            authorizedInfo=AUTHORIZED,
            appdConfig=pb.ApprovedClientConfig(configId=1700000000001, maxMsgSize=1 << 20),
        ),
    ),
    "A3": (
        methods.PRODUCER_HEARTBEAT,
        pb.HeartResponseM2P(
            success=True,
            errCode=200,
            errMsg="OK!",
            brokerCheckSum=1700000000000,
            topicInfos=[TopicInfo("demo", {1: (3, 2), 2: (3, 1)}, 1 << 20).text()],
            authorizedInfo=AUTHORIZED,
            appdConfig=pb.ApprovedClientConfig(configId=1700000000001),
        ),
    ),
    "A5": (
        methods.SEND_MESSAGE,
        pb.SendMessageResponseB2P(
            success=True,
            errCode=200,
            errMsg=str(MESSAGE_ID),
            requireAuth=False,
            messageId=MESSAGE_ID,
            appendTime=1700000000500,
            appendOffset=0,
        ),
    ),
    "A8": (
        methods.GET_MESSAGES,
        pb.GetMessageResponseB2C(
            success=True,
            errCode=200,
            errMsg="OK!",
            messages=[
                pb.TransferedMessage(
                    messageId=MESSAGE_ID, checkSum=902868853, payLoadData=DATA, flag=1
                ),
                pb.TransferedMessage(
                    messageId=MESSAGE_ID + 1, checkSum=421552847, payLoadData=b"plain", flag=0
                ),
            ],
            currOffset=0,
            minLimitTime=0,
            escFlowCtrl=False,
            currDataDlt=0,
            requireSlow=False,
            maxOffset=56,
        ),
    ),
    "A10": (
        methods.CONSUMER_HEARTBEAT,
        pb.HeartResponseM2C(
            success=True,
            errCode=200,
            errMsg="OK!",
            event=pb.EventProto(
                rebalanceId=5,
                opType=10,
                subscribeInfo=[SubscribeInfo.parse(SUBSCRIPTION).text()],
            ),
            notAllocated=False,
            authorizedInfo=AUTHORIZED,
        ),
    ),
}


def example(name: str) -> bytes:
    return bytes.fromhex(EXAMPLES[name])


def serial_of(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(name: str) -> None:
    frame, (method, message) = example(name), REQUESTS[name]
    client = ClientSession()
    for _ in range(serial_of(frame) - 1):
        client.next_serial()
    assert client.request(method, message, timeout_ms=10000) == (serial_of(frame), frame)

    [request], answers = ServerSession().receive(frame)
    assert not answers
    assert request.serial == serial_of(frame)
    assert request.service == METHODS[method].service
    assert (request.method, request.timeout_ms, request.version) == (method, 10000, 3)
    assert parse(type(message), request.body) == message


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    frame, (method, message) = example(name), ANSWERS[name]
    request = Request(serial_of(frame), METHODS[method].service, method, 10000, 3, b"")
    assert ServerSession().reply(request, message) == frame
    assert ServerSession().reply_raw(request, message.SerializeToString()) == frame

    [answer] = ClientSession().receive(frame)
    assert isinstance(answer, Response)
    assert (answer.serial, answer.method) == (serial_of(frame), method)
    assert parse(type(message), answer.body) == message


def test_a4_through_the_hot_path() -> None:
    attributes = payload.encode_attributes("t1", decode_time("202401020304"), {"k1": "v1"})
    data, flag = payload.encode_payload(b"hello", attributes)
    assert (data, flag, payload.checksum(data)) == (DATA, 1, 902868853)
    encoder = sending.SendEncoder(PRODUCER, "demo", 10001, LOOPBACK)
    token = pb.AuthorizedInfo(visitAuthorizedToken=1700000000123).SerializeToString()
    frame = encoder.encode(3, data, flag, "t1", "202401020304", token, 10000)
    assert frame == example("A4")


def test_a5_through_the_hot_path() -> None:
    assert sending.send_reply(3, MESSAGE_ID, 1700000000500, 0) == example("A5")
    [answer] = ClientSession().receive(example("A5"))
    assert isinstance(answer, Response)
    assert sending.parse_send_reply(answer.body) == sending.SendReply(
        True, 200, "", MESSAGE_ID, 1700000000500, 0
    )


def test_a8_through_the_hot_path() -> None:
    chunks: list[bytes | memoryview] = []
    for id_, data, flag in ((MESSAGE_ID, DATA, 1), (MESSAGE_ID + 1, b"plain", 0)):
        before, after = delivered_head(id_, payload.checksum(data), len(data), flag)
        chunks += [before, memoryview(data), after]
    frame = get_reply(5, chunks, offset=0, backlog_bytes=0, max_offset=56, require_slow=False)
    assert frame == example("A8")

    [answer] = ClientSession().receive(frame)
    assert isinstance(answer, Response)
    batch = MessageBatch(
        answer.body, topic="demo", broker="1", partition=10001, exact_offsets=False
    )
    first, second = batch
    assert (first.body, first.tag, first.properties) == (b"hello", "t1", {"k1": "v1"})
    assert (second.body, second.tag, second.id) == (b"plain", None, str(MESSAGE_ID + 1))
    assert (batch.offset, batch.max_offset, batch.skipped) == (0, 56, 0)


def test_a9_a_standby_master() -> None:
    frame = example("A9")
    text = f"127.0.0.1:8715 is not master now. the connecting client id is {PRODUCER}"
    request = Request(6, 1, methods.PRODUCER_REGISTER, 10000, 3, b"")
    assert ServerSession().error(request, STANDBY, text) == frame
    assert ClientSession().receive(frame) == [Failure(6, False, STANDBY, text)]
    assert Failure(6, False, STANDBY, text).standby


def test_a12_a_signature() -> None:
    info = credentials.authenticate_info("admin", "secret", 1700000000000, 12345)
    assert pb.MasterCertificateInfo(authInfo=info).SerializeToString() == example("A12")
    assert parse(pb.MasterCertificateInfo, example("A12")).authInfo == info
    token = credentials.broker_token("admin", "secret", 1700000000000, 12345)
    assert token == "admin 1700000000000 12345 GzIEn3jIHQZaZeKFky5I832KCzg%3D"


def test_a16_three_blocks() -> None:
    encoder = sending.SendEncoder("c", "demo", 0, LOOPBACK)
    token = pb.AuthorizedInfo(visitAuthorizedToken=-2).SerializeToString()
    frame = encoder.encode(9, b"x" * 20000, 0, None, None, token, 10000)
    assert frame[:64] == example("A16")
    assert len(frame) == 20091
    assert frame[8208:8212].hex() == "00002000"
    assert frame[16404:16408].hex() == "00000e63"
    [(serial, joined)] = FrameDecoder().feed(frame)
    assert (serial, len(joined)) == (9, 20067)
    [request], _ = ServerSession().receive(frame)
    assert parse(pb.SendMessageRequestP2B, request.body).data == b"x" * 20000


def test_a17_a_reserved_method() -> None:
    client, server = ClientSession(), ServerSession()
    asked = bytearray(client.request(methods.SEND_MESSAGE, REQUESTS["A4"][1], 10000)[1])
    asked[4:8] = (10).to_bytes(4, "big")
    asked[asked.index(b"\x08\x0d") + 1] = 11
    requests, answers = server.receive(bytes(asked))
    assert (requests, answers) == ([], [example("A17")])
    text = "IPC server handle request error :Unsupported method ID :11"
    assert client.receive(answers[0]) == [Failure(10, True, JAVA_EXCEPTION, text)]
