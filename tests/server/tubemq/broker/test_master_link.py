"""A broker and its master: configuration, removed topics, and changing masters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import cast

import pytest
from google.protobuf.message import Message

from coherer import _net as net
from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.master_link import (
    EmbeddedMasterLink,
    MasterClient,
    MasterExchange,
    RemoteMasterLink,
)
from coherer._store import Draft, Store, StoreOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import BrokerDefaults, TopicSettings
from coherer._wire.tubemq.session import STANDBY, Request, ServerSession
from coherer.errors import ProtocolError, RefusedError
from coherer.testing import ManualClock

DEFAULTS = BrokerDefaults(partitions=2).text()
OPTIONS = BrokerOptions(broker_id=7, host="10.0.0.7", port=8123)


class Script:
    """A master with scripted answers that records its requests."""

    def __init__(self) -> None:
        self.id = 1
        self.topics: list[TopicSettings] = []
        self.removing: list[TopicSettings] = []
        self.known = False
        self.refuse = ""
        self.heard: list[Message] = []

    def handle(self, method: int, message: Message, peer_host: str, secure: bool) -> Message:
        assert (peer_host, secure) == ("10.0.0.7", False)
        return self.answer(method, message)

    def answer(self, method: int, message: Message) -> Message:
        self.heard.append(message)
        if method == methods.BROKER_CLOSE:
            self.known = False
            return pb.CloseResponseM2B(success=True, errCode=200, errMsg="OK!")
        if method == methods.BROKER_REGISTER:
            return self._register(cast("pb.RegisterRequestB2M", message))
        assert method == methods.BROKER_HEARTBEAT
        return self._heartbeat(cast("pb.HeartRequestB2M", message))

    def _register(self, request: pb.RegisterRequestB2M) -> pb.RegisterResponseM2B:
        self.known = not self.refuse
        answer = pb.RegisterResponseM2B(
            success=self.known,
            errCode=400 if self.refuse else 200,
            errMsg=self.refuse or "OK!",
            stopRead=False,
            stopWrite=False,
            takeConfInfo=self.known and request.curBrokerConfId != self.id,
            enableBrokerInfo=pb.EnableBrokerFunInfo(
                enableConsumeAuthenticate=False,
                enableConsumeAuthorize=False,
                enableProduceAuthenticate=True,
                enableProduceAuthorize=False,
            ),
            brokerAuthorizedInfo=pb.MasterBrokerAuthorizedInfo(visitAuthorizedToken="1,2"),
            clsConfig=pb.ClusterConfig(configId=3, maxMsgSize=2_000_000),
        )
        self.configure(answer)
        return answer

    def _heartbeat(self, request: pb.HeartRequestB2M) -> pb.HeartResponseM2B:
        differs = request.curBrokerConfId != self.id
        answer = pb.HeartResponseM2B(
            success=self.known,
            errCode=200 if self.known else 411,
            errMsg="OK!",
            stopRead=False,
            stopWrite=False,
            curBrokerConfId=self.id,
            confCheckSumId=self.id,
            needReportData=differs,
            takeConfInfo=differs,
            takeRemoveTopicInfo=True,
            removeTopicConfInfo=[topic.text() for topic in self.removing],
        )
        self.configure(answer)
        return answer

    def configure(self, answer: pb.RegisterResponseM2B | pb.HeartResponseM2B) -> None:
        if answer.takeConfInfo:
            answer.curBrokerConfId = self.id
            answer.confCheckSumId = self.id
            answer.brokerDefaultConfInfo = DEFAULTS
            answer.brokerTopicSetConfInfo.extend(topic.text() for topic in self.topics)

    def last(self) -> pb.HeartRequestB2M:
        message = self.heard[-1]
        assert isinstance(message, pb.HeartRequestB2M)
        return message


@pytest.fixture
def store(tmp_path: Path) -> Iterable[Store]:
    options = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(tmp_path, options, now_ms=ManualClock().now_ms) as store:
        yield store


@pytest.fixture
async def broker(store: Store) -> AsyncIterator[Broker]:
    broker = Broker(OPTIONS, Core(store, ManualClock().now_ms))
    yield broker
    broker.close()
    await broker.core.close()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def link(broker: Broker, script: Script) -> EmbeddedMasterLink:
    exchange = MasterExchange(broker.state, broker.configuration)
    return EmbeddedMasterLink(exchange, script.handle, "10.0.0.7")


def partitions(broker: Broker) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in broker.state.topics}


async def test_the_life_of_a_configuration(
    broker: Broker, script: Script, link: EmbeddedMasterLink, store: Store
) -> None:
    script.topics = [TopicSettings(topic="a"), TopicSettings(topic="b", partitions=5, stores=2)]
    link.sync()
    first = script.heard[0]
    assert isinstance(first, pb.RegisterRequestB2M)
    assert first.clientId.startswith("7:10.0.0.7:8123:")
    assert not first.brokerOnline
    assert (first.curBrokerConfId, first.brokerDefaultConfInfo) == (0, "")
    reports = [m for m in script.heard if isinstance(m, pb.HeartRequestB2M) and m.takeConfInfo]
    assert list(reports[0].brokerTopicSetConfInfo) == [topic.text() for topic in script.topics]
    assert script.last().brokerOnline
    assert not script.last().takeConfInfo
    state = broker.state
    assert state.serving
    assert state.message_bytes_max == 2_000_000
    assert not state.access.open
    assert partitions(broker) == {"a": 2, "b": 5}
    assert state.topics["b"].stores == 2
    await broker.core.files.flush()
    assert b'"b"' in (store.read_config("topics.json", bytes) or b"")
    script.heard.clear()
    link.sync()
    assert len(script.heard) == 1, "one heartbeat without changes"

    script.id, script.topics = 2, [TopicSettings(topic="a", status=1, max_message_bytes=9)]
    link.sync()
    assert partitions(broker) == {"a": 2}
    assert (state.topics["a"].status, state.topics["a"].message_bytes_max) == (1, 9)
    assert len(script.heard) == 4, "the change, the report, and its acknowledgement"


async def test_a_removed_topic_is_reported_until_acknowledged(
    broker: Broker, script: Script, link: EmbeddedMasterLink, store: Store
) -> None:
    script.topics = [TopicSettings(topic="a"), TopicSettings(topic="b")]
    link.sync()
    await broker.state.core.files.flush()
    store.append([Draft("a", 0, b"x", b""), Draft("b", 0, b"x", b"")])
    script.removing = [TopicSettings(topic="a", status=2), TopicSettings(topic="b", status=1)]
    script.id, script.topics = 2, [TopicSettings(topic="b")]
    link.sync()
    assert store.queue_range("a", 0) == (0, 0)
    assert store.queue_range("b", 0) == (0, 1)
    assert script.last().takeRemovedTopicInfo
    assert list(script.last().removedTopicsInfo) == ["a"]
    script.removing = []
    link.sync()
    link.sync()
    assert not script.last().takeRemovedTopicInfo
    assert partitions(broker) == {"b": 2}


async def test_an_answer_on_its_way_does_not_bring_a_deleted_topic_back(
    broker: Broker, script: Script, link: EmbeddedMasterLink
) -> None:
    script.topics = [TopicSettings(topic="a"), TopicSettings(topic="b")]
    link.sync()
    answer = script.answer

    def deleting(method: int, message: Message) -> Message:
        script.answer = answer  # type: ignore[method-assign]
        answered = answer(method, message)
        broker.core.topics.remove("a", 1)
        broker.core.remove_topic("a")
        return answered

    script.answer, script.id = deleting, 2  # type: ignore[method-assign]
    link.sync()
    assert partitions(broker) == {"b": 2}
    told = [list(m.deletedTopics) for m in script.heard if isinstance(m, pb.HeartRequestB2M)]
    assert told[-3:] == [[], ["a"], []]


async def test_a_topic_that_was_created_again_keeps_its_new_messages(
    broker: Broker, script: Script, store: Store
) -> None:
    exchange = MasterExchange(broker.state, broker.configuration)
    script.topics = [TopicSettings(topic="a")]
    while exchange.handle_answer(script.answer(*exchange.next_request())):
        pass
    topics = broker.core.topics
    topics.remove("a", 1)
    broker.core.remove_topic("a")
    method, report = exchange.next_request()
    assert isinstance(report, pb.HeartRequestB2M)
    assert list(report.deletedTopics) == ["a"]
    topics.put(Topic(name="a"), 2)
    await broker.core.files.flush()
    store.append([Draft("a", 0, b"x", b"")])
    script.id, script.topics = 2, []
    script.removing = [TopicSettings(topic="a", status=2)]
    exchange.handle_answer(script.answer(method, report))
    assert "a" in topics
    assert store.queue_range("a", 0) == (0, 1)
    _, report = exchange.next_request()
    assert isinstance(report, pb.HeartRequestB2M)
    assert list(report.removedTopicsInfo) == ["a"]


async def test_the_log_says_whether_messages_stay(
    script: Script, link: EmbeddedMasterLink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    script.topics = [TopicSettings(topic="a"), TopicSettings(topic="b")]
    link.sync()
    script.removing = [TopicSettings(topic="a", status=2)]
    script.id, script.topics = 2, []
    link.sync()
    assert "Topic b is no longer served; its messages stay" in caplog.text
    assert "Topic a is no longer served" not in caplog.text
    assert "Topic a removed" in caplog.text


async def test_a_master_that_forgot_the_broker(
    broker: Broker, script: Script, link: EmbeddedMasterLink
) -> None:
    script.topics = [TopicSettings(topic="a")]
    link.sync()
    script.known = False
    script.heard.clear()
    link.sync()
    again = script.heard[1]
    assert isinstance(again, pb.RegisterRequestB2M)
    assert again.brokerOnline
    assert again.curBrokerConfId == 1
    assert list(again.brokerTopicSetConfInfo) == [script.topics[0].text()]
    link.close()
    assert isinstance(script.heard[-1], pb.CloseRequestB2M)
    assert script.heard[-1].brokerId == "7"
    script.heard.clear()
    link.close()
    assert script.heard == []


async def test_a_rejected_broker_serves_no_requests(
    broker: Broker, script: Script, link: EmbeddedMasterLink, caplog: pytest.LogCaptureFixture
) -> None:
    script.refuse = "Not found broker configure info"
    link.sync()
    link.sync()
    assert not broker.state.serving
    assert caplog.text.count("Not found broker configure info") == 1, "logged once"
    link.close()
    script.refuse = ""
    caplog.set_level("INFO")
    link.sync()
    assert broker.state.serving
    assert "Connected to a master again" in caplog.text


async def test_a_change_while_the_broker_reports(
    broker: Broker, script: Script, link: EmbeddedMasterLink
) -> None:
    link.sync()
    answer = script.answer

    def changing(method: int, message: Message) -> Message:
        script.answer = answer  # type: ignore[method-assign]
        answered = answer(method, message)
        script.id, script.topics = 5, [TopicSettings(topic="late")]
        link.sync()  # as the master's watcher does
        return answered

    script.answer = changing  # type: ignore[method-assign]
    link.sync()
    assert partitions(broker) == {"late": 2}


async def test_invalid_configurations_change_nothing(
    broker: Broker, script: Script, link: EmbeddedMasterLink, caplog: pytest.LogCaptureFixture
) -> None:
    script.topics = [TopicSettings(topic="a")]
    link.sync()

    def broken(text: str, topics: Iterable[str]) -> Callable[[Message], None]:
        def configure(answer: Message) -> None:
            assert isinstance(answer, pb.RegisterResponseM2B | pb.HeartResponseM2B)
            if answer.takeConfInfo:
                answer.curBrokerConfId = 2
                answer.brokerDefaultConfInfo = text
                answer.brokerTopicSetConfInfo.extend(topics)
            if isinstance(answer, pb.HeartResponseM2B):
                answer.removeTopicConfInfo.append("nonsense")
            answer.flowCheckId, answer.flowControlInfo = 9, "nonsense"

        return configure

    script.id = 2
    for text, topics in ((" ", ["b"]), (DEFAULTS, ["b:c"])):
        script.configure = broken(text, topics)  # type: ignore[assignment, method-assign]
        link.sync()
        assert partitions(broker) == {"a": 2}
    assert "invalid configuration from the master" in caplog.text
    assert "invalid flow rules from the master" in caplog.text
    assert "invalid topic to be removed" in caplog.text


async def test_stops_and_flow_rules_are_applied(
    broker: Broker, script: Script, link: EmbeddedMasterLink
) -> None:
    link.sync()

    def configure(answer: pb.HeartResponseM2B) -> None:
        answer.stopRead, answer.qryPriorityId, answer.flowCheckId = True, 303, 4
        answer.flowControlInfo = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]'

    script.configure = configure  # type: ignore[assignment, method-assign]
    link.sync()
    assert (broker.state.stop_read, broker.state.stop_write) == (True, False)
    assert broker.state.flow.frequency_limits
    link.sync()
    told = script.last()
    assert (told.readStatusRpt, told.flowCheckId, told.qryPriorityId) == (1, 4, 303)


async def test_requests_are_signed(broker: Broker, script: Script) -> None:
    certificate = pb.MasterCertificateInfo(authorizedToken="x")
    exchange = MasterExchange(broker.state, broker.configuration, lambda: certificate)
    link = EmbeddedMasterLink(exchange, script.handle, "10.0.0.7")
    link.sync()
    link.close()
    assert [message.authInfo for message in script.heard] == [certificate] * len(script.heard)  # type: ignore[attr-defined]
    kinds = {type(message).__name__ for message in script.heard}
    assert kinds == {"RegisterRequestB2M", "HeartRequestB2M", "CloseRequestB2M"}


async def test_an_answer_of_an_unexpected_type(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = MasterExchange(broker.state, broker.configuration)
    with pytest.raises(ProtocolError):
        exchange.handle_answer(pb.CloseResponseM2B())
    assert exchange.close_request() is None


# -- over sockets


def said(text: str) -> asyncio.Event:
    """Set when the link logs this text."""
    event = asyncio.Event()

    def look(record: logging.LogRecord) -> bool:
        if text in record.getMessage():
            event.set()
        return True

    logging.getLogger("coherer._server.tubemq.broker.master_link").addFilter(look)
    return event


class ScriptedMaster:
    """A scripted master behind a port."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.standby = False
        self.mute = False
        self.garbage = b""
        self.asked = asyncio.Event()
        self.listener: net.Listener

    async def open(self, port: int = 0) -> int:
        self.listener = await net.listen(
            "127.0.0.1", port, lambda connection: _Visitor(self, connection)
        )
        return self.listener.port


class _Visitor:
    def __init__(self, master: ScriptedMaster, connection: net.Connection) -> None:
        self.master, self.connection, self.session = master, connection, ServerSession()

    def received(self, data: bytes) -> None:
        for request in self.session.receive(data)[0]:
            self.master.asked.set()
            self.answer(request)

    def answer(self, request: Request) -> None:
        if self.master.mute:
            return
        if self.master.garbage:
            self.connection.write(self.session.reply_raw(request, self.master.garbage))
            return
        if self.master.standby:
            self.connection.write(self.session.error(request, STANDBY, "is not master"))
            return
        row = methods.METHODS[request.method]
        message = methods.parse(row.request, request.body)
        self.connection.write(
            self.session.reply(request, self.master.script.answer(row.id, message))
        )

    def closed(self, error: Exception | None) -> None:
        pass


async def test_the_link_finds_the_active_master_again(
    broker: Broker, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    script.topics = [TopicSettings(topic="a")]
    one, two = ScriptedMaster(script), ScriptedMaster(script)
    ports = [await one.open(), await two.open()]
    one.standby = True
    link = RemoteMasterLink(
        MasterExchange(broker.state, broker.configuration),
        MasterClient([("127.0.0.1", port) for port in ports], timeout_ms=1000),
        heartbeat_ms=1,
        retry_ms=1,
    )
    link.start()
    async with asyncio.timeout(10):
        await link.ready.wait()
        assert partitions(broker) == {"a": 2}
        one.standby, two.standby = False, True
        one.asked.clear()
        await one.asked.wait()
        troubled = said("retrying")
        await one.listener.close()
        await two.listener.close()
        await troubled.wait()
        assert not broker.state.access.in_contact
        assert broker.state.serving, "clients can go on"
        script.known = False
        healed = said("Connected to a master again")
        await one.open(ports[0])
        await healed.wait()
        assert script.known
        await link.close()
    assert not script.known
    await one.listener.close()


async def test_masters_that_do_not_answer(script: Script) -> None:
    master = ScriptedMaster(script)
    port = await master.open()
    masters = MasterClient([("127.0.0.1", port)])
    heartbeat = pb.CloseRequestB2M(brokerId="7")
    master.mute = True
    impatient = MasterClient([("127.0.0.1", port)], timeout_ms=20)
    with pytest.raises(TimeoutError):
        await impatient.call(methods.BROKER_CLOSE, heartbeat)
    impatient.close()
    master.mute, master.garbage = False, b"\xff"
    with pytest.raises(ProtocolError):
        await masters.call(methods.BROKER_CLOSE, heartbeat)
    master.garbage, master.standby = b"", True
    with pytest.raises(Exception, match="not master"):
        await masters.call(methods.BROKER_CLOSE, heartbeat)
    master.standby = False
    assert await masters.call(methods.BROKER_CLOSE, heartbeat)
    masters.close()
    await master.listener.close()


async def test_the_master_closes_the_connection(script: Script) -> None:
    class Rude(_Visitor):
        def answer(self, request: Request) -> None:
            self.connection.close()

    listener = await net.listen(
        "127.0.0.1", 0, lambda connection: Rude(ScriptedMaster(script), connection)
    )
    masters = MasterClient([("127.0.0.1", listener.port)])
    with pytest.raises(Exception, match="master closed the connection"):
        await masters.call(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId="7"))
    await listener.close()


async def test_unregistering_at_an_unreachable_master(
    broker: Broker, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    master = ScriptedMaster(script)
    port = await master.open()
    link = RemoteMasterLink(
        MasterExchange(broker.state, broker.configuration), MasterClient([("127.0.0.1", port)])
    )
    link.start()
    async with asyncio.timeout(10):
        await link.ready.wait()
        await master.listener.close()
        await link.close()
    assert "Unregistering the broker at the master failed" in caplog.text


def test_a_refusal_is_an_error(broker: Broker) -> None:
    exchange = MasterExchange(broker.state, broker.configuration)
    refusing = Script()
    refusing.refuse = "no"
    _, request = exchange.next_request()
    with pytest.raises(RefusedError, match="no"):
        exchange.handle_answer(refusing.answer(methods.BROKER_REGISTER, request))
