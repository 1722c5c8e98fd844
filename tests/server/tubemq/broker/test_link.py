"""A broker and its master: configuration, removals, and masters that come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import cast

import pytest
from google.protobuf.message import Message

from coherer import _net as net
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.link import EmbeddedLink, Registration, RemoteLink, RemoteMasters
from coherer._server.tubemq.broker.state import BrokerOptions
from coherer._store import Draft, Store, StoreOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import STANDBY, Request, ServerSession
from coherer._wire.tubemq.settings import BrokerDefaults, TopicSettings
from coherer.errors import ProtocolError, RefusedError
from coherer.testing import ManualClock

DEFAULTS = BrokerDefaults(partitions=2).text()
OPTIONS = BrokerOptions(broker_id=7, host="10.0.0.7", port=8123)


class Script:
    """A master that says what the test wants, and remembers what it heard."""

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
        self._configuration(answer)
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
        self._configuration(answer)
        return answer

    def _configuration(self, answer: pb.RegisterResponseM2B | pb.HeartResponseM2B) -> None:
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
def link(broker: Broker, script: Script) -> EmbeddedLink:
    registration = Registration(broker.state, broker.configuration)
    return EmbeddedLink(registration, script.handle, "10.0.0.7")


def partitions(broker: Broker) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in broker.state.topics}


async def test_the_life_of_a_configuration(
    broker: Broker, script: Script, link: EmbeddedLink, store: Store
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
    assert b'"b"' in (store.load_config("topics.json") or b"")
    script.heard.clear()
    link.sync()
    assert len(script.heard) == 1, "no news, one heartbeat"

    script.id, script.topics = 2, [TopicSettings(topic="a", status=1, max_message_bytes=9)]
    link.sync()
    assert partitions(broker) == {"a": 2}
    assert (state.topics["a"].status, state.topics["a"].message_bytes_max) == (1, 9)
    assert len(script.heard) == 4, "the news, the report, and that it was heard"


async def test_a_topic_is_removed_and_reported_until_heard(
    broker: Broker, script: Script, link: EmbeddedLink, store: Store
) -> None:
    script.topics = [TopicSettings(topic="a"), TopicSettings(topic="b")]
    link.sync()
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


async def test_a_master_that_forgot_the_broker(
    broker: Broker, script: Script, link: EmbeddedLink
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


async def test_a_refused_broker_serves_nothing(
    broker: Broker, script: Script, link: EmbeddedLink, caplog: pytest.LogCaptureFixture
) -> None:
    script.refuse = "Not found broker configure info"
    link.sync()
    link.sync()
    assert not broker.state.serving
    assert caplog.text.count("Not found broker configure info") == 1, "said once"
    link.close()
    script.refuse = ""
    caplog.set_level("INFO")
    link.sync()
    assert broker.state.serving
    assert "has this broker again" in caplog.text


async def test_a_change_while_the_broker_reports(
    broker: Broker, script: Script, link: EmbeddedLink
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


async def test_configurations_that_cannot_be_read_change_nothing(
    broker: Broker, script: Script, link: EmbeddedLink, caplog: pytest.LogCaptureFixture
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
        script._configuration = broken(text, topics)  # type: ignore[assignment, method-assign]
        link.sync()
        assert partitions(broker) == {"a": 2}
    assert "configuration is not used" in caplog.text
    assert "flow rules are not used" in caplog.text
    assert "to be removed cannot be read" in caplog.text


async def test_stops_and_flow_rules_are_taken(
    broker: Broker, script: Script, link: EmbeddedLink
) -> None:
    link.sync()

    def configure(answer: pb.HeartResponseM2B) -> None:
        answer.stopRead, answer.qryPriorityId, answer.flowCheckId = True, 303, 4
        answer.flowControlInfo = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]'

    script._configuration = configure  # type: ignore[assignment, method-assign]
    link.sync()
    assert (broker.state.stop_read, broker.state.stop_write) == (True, False)
    assert broker.state.flow.frequency_limits
    link.sync()
    told = script.last()
    assert (told.readStatusRpt, told.flowCheckId, told.qryPriorityId) == (1, 4, 303)


async def test_requests_are_signed(broker: Broker, script: Script) -> None:
    certificate = pb.MasterCertificateInfo(authorizedToken="x")
    registration = Registration(broker.state, broker.configuration, lambda: certificate)
    link = EmbeddedLink(registration, script.handle, "10.0.0.7")
    link.sync()
    link.close()
    assert [message.authInfo for message in script.heard] == [certificate] * len(script.heard)  # type: ignore[attr-defined]
    kinds = {type(message).__name__ for message in script.heard}
    assert kinds == {"RegisterRequestB2M", "HeartRequestB2M", "CloseRequestB2M"}


async def test_an_answer_of_another_kind(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    registration = Registration(broker.state, broker.configuration)
    with pytest.raises(ProtocolError):
        registration.answered(pb.CloseResponseM2B())
    assert registration.farewell() is None


# -- over sockets


def said(text: str) -> asyncio.Event:
    """Set when the link's log says this."""
    event = asyncio.Event()

    def look(record: logging.LogRecord) -> bool:
        if text in record.getMessage():
            event.set()
        return True

    logging.getLogger("coherer._server.tubemq.broker.link").addFilter(look)
    return event


class ScriptedMaster:
    """A script behind a port."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.standby = False
        self.mute = False
        self.garbage = b""
        self.asked = asyncio.Event()
        self.listener: net.Listener

    async def open(self, port: int = 0) -> int:
        self.listener = await net.listen("127.0.0.1", port, lambda wire: _Visitor(self, wire))
        return self.listener.port


class _Visitor:
    def __init__(self, master: ScriptedMaster, wire: net.Connection) -> None:
        self.master, self.wire, self.session = master, wire, ServerSession()

    def received(self, data: bytes) -> None:
        for request in self.session.receive(data)[0]:
            self.master.asked.set()
            self.answer(request)

    def answer(self, request: Request) -> None:
        if self.master.mute:
            return
        if self.master.garbage:
            self.wire.write(self.session.reply_raw(request, self.master.garbage))
            return
        if self.master.standby:
            self.wire.write(self.session.error(request, STANDBY, "is not master"))
            return
        row = methods.METHODS[request.method]
        message = methods.parse(row.request, request.body)
        self.wire.write(self.session.reply(request, self.master.script.answer(row.id, message)))

    def closed(self, error: Exception | None) -> None:
        pass


async def test_the_active_master_is_found_and_found_again(
    broker: Broker, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    script.topics = [TopicSettings(topic="a")]
    one, two = ScriptedMaster(script), ScriptedMaster(script)
    ports = [await one.open(), await two.open()]
    one.standby = True
    link = RemoteLink(
        Registration(broker.state, broker.configuration),
        RemoteMasters([("127.0.0.1", port) for port in ports], timeout_ms=1000),
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
        troubled = said("trying on")
        await one.listener.close()
        await two.listener.close()
        await troubled.wait()
        assert not broker.state.access.in_contact
        assert broker.state.serving, "clients can go on"
        script.known = False
        healed = said("has this broker again")
        await one.open(ports[0])
        await healed.wait()
        assert script.known
        await link.close()
    assert not script.known
    await one.listener.close()


async def test_masters_that_do_not_answer(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    master = ScriptedMaster(script)
    port = await master.open()
    masters = RemoteMasters([("127.0.0.1", port)])
    beat = pb.CloseRequestB2M(brokerId="7")
    master.mute = True
    with monkeypatch.context() as patch:
        patch.setattr(masters, "_timeout_ms", 20)
        with pytest.raises(TimeoutError):
            await masters.ask(methods.BROKER_CLOSE, beat)
    master.mute, master.garbage = False, b"\xff"
    with pytest.raises(ProtocolError):
        await masters.ask(methods.BROKER_CLOSE, beat)
    master.garbage, master.standby = b"", True
    with pytest.raises(Exception, match="not master"):
        await masters.ask(methods.BROKER_CLOSE, beat)
    master.standby = False
    assert await masters.ask(methods.BROKER_CLOSE, beat)
    masters.close()
    await master.listener.close()


async def test_a_master_that_hangs_up(script: Script) -> None:
    class Rude(_Visitor):
        def answer(self, request: Request) -> None:
            self.wire.close()

    listener = await net.listen("127.0.0.1", 0, lambda wire: Rude(ScriptedMaster(script), wire))
    masters = RemoteMasters([("127.0.0.1", listener.port)])
    with pytest.raises(Exception, match="master is gone"):
        await masters.ask(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId="7"))
    await listener.close()


async def test_good_bye_to_a_master_that_is_gone(
    broker: Broker, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    master = ScriptedMaster(script)
    port = await master.open()
    link = RemoteLink(
        Registration(broker.state, broker.configuration), RemoteMasters([("127.0.0.1", port)])
    )
    link.start()
    async with asyncio.timeout(10):
        await link.ready.wait()
        await master.listener.close()
        await link.close()
    assert "did not hear our good-bye" in caplog.text


def test_a_refusal_is_an_error(broker: Broker) -> None:
    registration = Registration(broker.state, broker.configuration)
    refusing = Script()
    refusing.refuse = "no"
    _, request = registration.request()
    with pytest.raises(RefusedError, match="no"):
        registration.answered(refusing.answer(methods.BROKER_REGISTER, request))
