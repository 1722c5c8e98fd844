"""A master without sockets, with a manual clock, and clients that behave like Java's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coherer._server.http.app import AdminApp
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.master.admin import master_admin
from coherer._server.tubemq.master.master import Master
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import SubscribeInfo
from coherer.errors import StoreFullError

START_MS = 1_700_000_000_000

PROPS = {
    "numTopicStores", "numPartitions", "unflushThreshold", "unflushInterval", "unflushDataHold",
    "memCacheMsgSizeInMB", "memCacheMsgCntInK", "memCacheFlushIntvl", "acceptPublish",
    "acceptSubscribe", "deletePolicy", "dataStoreType", "dataPath",
}  # fmt: skip
STAMP = {"dataVersionId", "serialId", "createUser", "createDate", "modifyUser", "modifyDate"}
DEPLOYMENT = PROPS | STAMP | {
    "topicName", "brokerId", "topicNameId", "brokerIp", "brokerPort", "topicStatusId",
}  # fmt: skip
TOTALS = {
    "infoCount", "totalCfgNumPart", "isSrvAcceptPublish", "isSrvAcceptSubscribe",
    "totalRunNumPartCount",
}  # fmt: skip
RULES = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]'


def refused(answer: Any, code: ResultCode) -> bool:
    """Whether the answer has this error code and a text."""
    return (answer.success, answer.errCode) == (False, code) and bool(answer.errMsg)


class MasterHarness:
    """The master, its clock and its file."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = START_MS
        self.ahead_ms = 0  # how far the time of day was set
        self.saved: bytes | None = None
        self.saves = 0
        self.disk_full = False
        self.options = MasterOptions(**options)
        self.master = self.another()

    def another(self) -> Master:
        """A master with the same file, as after a restart."""
        return Master(
            self.options,
            lambda: self.saved,
            self._save,
            now_ms=lambda: self.now_ms,
            wall_ms=lambda: self.now_ms + self.ahead_ms,
        )

    def restart(self) -> None:
        self.master = self.another()

    def _save(self, take: Callable[[], bytes]) -> None:
        if self.disk_full:
            raise StoreFullError("The disk is full.")
        self.saved = take()
        self.saves += 1

    def ask(self, method: int, message: Any, *, secure: bool = False) -> Any:
        """The answer to a request, which must be complete."""
        answer = self.master.handle(method, message, "10.0.0.9", secure)
        assert answer.IsInitialized()
        assert type(answer) is methods.METHODS[method].response
        return answer

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.master.tick()

    def broker(self, number: int = 1, **fields: Any) -> Broker:
        """A broker that has started and is online."""
        broker = Broker(self, number, **fields)
        broker.start()
        return broker

    def topic(self, name: str = "flights", partitions: int = 4) -> None:
        """A topic that all brokers have."""
        self.master.create_topic(name, partitions)


class Broker:
    """A broker that behaves like Java's."""

    def __init__(
        self,
        harness: MasterHarness,
        number: int,
        host: str = "10.0.0.1",
        port: int = 8123,
        **fields: Any,
    ) -> None:
        self.harness = harness
        self.number = number
        self.fields: dict[str, Any] = {
            "clientId": f"{number}:{host}:{port}:2.4.0",
            "enableTls": False,
            "readStatusRpt": 0,
            "writeStatusRpt": 0,
            "tlsPort": 8124,
            "flowCheckId": -2,
            "qryPriorityId": -2,
            **fields,
        }
        self.config = (0, 0)
        self.defaults = ""
        self.topics: list[str] = []
        self.removing: list[str] = []
        self.removed: list[str] = []
        self.status = (0, 0)
        self.unreported = False
        self.cluster_id = -2

    def register(self, *, online: bool = False) -> Any:
        answer = self.harness.ask(
            methods.BROKER_REGISTER,
            pb.RegisterRequestB2M(
                brokerOnline=online,
                curBrokerConfId=self.config[0],
                confCheckSumId=self.config[1],
                brokerDefaultConfInfo=self.defaults,
                brokerTopicSetConfInfo=self.topics,
                clsConfig=pb.ClusterConfig(configId=self.cluster_id),
                **self.fields,
            ),
        )
        self._take(answer)
        return answer

    def heartbeat(self, *, online: bool = True) -> Any:
        request = pb.HeartRequestB2M(
            brokerId=str(self.number),
            brokerOnline=online,
            readStatusRpt=self.status[0],
            writeStatusRpt=self.status[1],
            curBrokerConfId=self.config[0],
            confCheckSumId=self.config[1],
            takeConfInfo=self.unreported,
            takeRemovedTopicInfo=bool(self.removed),
            removedTopicsInfo=self.removed,
            clsConfig=pb.ClusterConfig(configId=self.cluster_id),
            flowCheckId=self.fields["flowCheckId"],
        )
        if self.unreported:
            request.brokerDefaultConfInfo = self.defaults
            request.brokerTopicSetConfInfo.extend(self.topics)
        self.unreported = False
        answer = self.harness.ask(methods.BROKER_HEARTBEAT, request)
        self._take(answer)
        return answer

    def start(self) -> None:
        assert self.register().success
        self.heartbeat()

    def sync(self) -> None:
        """Send heartbeats until master and broker agree."""
        for _ in range(3):
            answer = self.heartbeat()
            if not answer.needReportData and not self.unreported:
                return
        raise AssertionError("master and broker do not agree")

    def close(self) -> Any:
        return self.harness.ask(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId=str(self.number)))

    def _take(self, answer: Any) -> None:
        if answer.success and answer.takeConfInfo:
            self.config = answer.curBrokerConfId, answer.confCheckSumId
            self.defaults = answer.brokerDefaultConfInfo
            self.topics = list(answer.brokerTopicSetConfInfo)
            self.unreported = True
        if answer.success and answer.clsConfig.maxMsgSize:
            self.cluster_id = answer.clsConfig.configId
        self.removing = list(getattr(answer, "removeTopicConfInfo", []))


class Producer:
    """A producer that behaves like Java's."""

    def __init__(self, harness: MasterHarness, name: str = "p", *, secure: bool = False) -> None:
        self.harness = harness
        self.name = name
        self.secure = secure
        self.check_sum = -1
        self.config_id = -2
        self.max_bytes = 0
        self.brokers: list[str] = []
        self.topics: list[str] = []
        self.auth: Any = None

    def register(self, **changes: Any) -> Any:
        return self._ask(methods.PRODUCER_REGISTER, pb.RegisterRequestP2M, changes)

    def heartbeat(self, **changes: Any) -> Any:
        return self._ask(methods.PRODUCER_HEARTBEAT, pb.HeartRequestP2M, changes)

    def publish(self, *topics: str) -> Any:
        self.topics = sorted({*self.topics, *topics})
        return self.heartbeat()

    def close(self) -> Any:
        return self.harness.ask(
            methods.PRODUCER_CLOSE, pb.CloseRequestP2M(clientId=self.name, authInfo=self.auth)
        )

    def _ask(self, method: int, kind: Any, changes: dict[str, Any]) -> Any:
        fields: dict[str, Any] = {
            "clientId": self.name,
            "hostName": "10.0.0.9",
            "brokerCheckSum": self.check_sum,
            "topicList": self.topics,
            "appdConfig": pb.ApprovedClientConfig(configId=self.config_id),
            "authInfo": self.auth,
        }
        answer = self.harness.ask(method, kind(**{**fields, **changes}), secure=self.secure)
        if answer.success:
            assert answer.authorizedInfo.IsInitialized()
            if answer.brokerInfos:
                self.brokers = list(answer.brokerInfos)
            if answer.brokerCheckSum != self.check_sum:
                assert len(answer.brokerInfos) == len(self.harness.master.state.catalog.brokers)
            self.check_sum = answer.brokerCheckSum
            self.config_id = answer.appdConfig.configId
            self.max_bytes = answer.appdConfig.maxMsgSize or self.max_bytes
        return answer


class Consumer:
    """A consumer that behaves like Java's: it executes an event between two heartbeats."""

    def __init__(
        self,
        harness: MasterHarness,
        name: str = "c",
        topics: tuple[str, ...] = ("flights",),
        *,
        secure: bool = False,
        **fields: Any,
    ) -> None:
        self.harness = harness
        self.name = name
        self.topics = topics
        self.secure = secure
        self.fields: dict[str, Any] = {"groupName": "g", **fields}
        self.held: set[str] = set()
        self.result: Any = None
        self.not_allocated = True
        self.auth: Any = None

    @property
    def numbers(self) -> list[int]:
        """The partitions that it holds."""
        return sorted(SubscribeInfo.parse(text).partition.id for text in self.held)

    def register(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "clientId": self.name,
            "hostName": "10.0.0.9",
            "topicList": self.topics,
            "subscribeInfo": sorted(self.held),
            "sessionTime": START_MS,
            "groupFlowCheckId": -2,
            "defFlowCheckId": -2,
            "qryPriorityId": -2,
            "authInfo": self.auth,
            **self.fields,
            **changes,
        }
        answer = self.harness.ask(
            methods.CONSUMER_REGISTER, pb.RegisterRequestC2M(**fields), secure=self.secure
        )
        if answer.success:
            self.not_allocated = self.not_allocated and answer.notAllocated
        return answer

    def heartbeat(self, *, report: bool = False, **changes: Any) -> Any:
        """Send a heartbeat; an event in the answer is executed and acknowledged by the next one."""
        result, self.result = self.result, None
        report = report or result is not None
        fields: dict[str, Any] = {
            "clientId": self.name,
            "groupName": self.fields["groupName"],
            "reportSubscribeInfo": report,
            "subscribeInfo": sorted(self.held) if report else [],
            "event": result,
            "defFlowCheckId": -2,
            "groupFlowCheckId": -2,
            "authInfo": self.auth,
            **changes,
        }
        answer = self.harness.ask(methods.CONSUMER_HEARTBEAT, pb.HeartRequestC2M(**fields))
        if answer.success:
            assert answer.HasField("authorizedInfo") or answer.requireAuth
            self.not_allocated = self.not_allocated and answer.notAllocated
            if answer.event.rebalanceId > 0:
                self._obey(answer.event)
        return answer

    def _obey(self, event: Any) -> None:
        assert not event.HasField("status"), "Java's master does not set it"
        if event.opType in (1, 10):
            self.held |= set(event.subscribeInfo)
        else:
            assert event.opType in (2, 20)
            self.held -= set(event.subscribeInfo)
        self.result = pb.EventProto(
            rebalanceId=event.rebalanceId,
            opType=event.opType,
            status=2,
            subscribeInfo=event.subscribeInfo,
        )

    def close(self) -> Any:
        return self.harness.ask(
            methods.CONSUMER_CLOSE,
            pb.CloseRequestC2M(
                clientId=self.name, groupName=self.fields["groupName"], authInfo=self.auth
            ),
        )


class AdminCaller:
    """Calls the master's HTTP methods, as an administrator."""

    def __init__(self, harness: MasterHarness) -> None:
        self.harness = harness
        self.app: AdminApp = master_admin(harness.master)

    def ask(self, method: str, **params: object) -> list[Any]:
        answer = self.app.handle(method, {name: str(value) for name, value in params.items()})
        assert answer["result"] is True, answer
        data = answer["data"]
        assert isinstance(data, list)
        assert answer.get("count", len(data)) == len(data)
        return data

    def order(self, method: str, **params: object) -> list[Any]:
        who = {"confModAuthToken": "abc", "createUser": "ann", "modifyUser": "ann"}
        return self.ask(method, **who, **params)

    def refused(self, method: str, **params: object) -> str:
        who = {"confModAuthToken": "abc", "createUser": "ann", "modifyUser": "ann"}
        answer = self.app.handle(method, {**who, **{k: str(v) for k, v in params.items()}})
        assert answer["result"] is False
        assert answer["errCode"] == 400
        return str(answer["errMsg"])


def code(outcomes: list[Any]) -> list[int]:
    assert all(item["success"] == (item["errCode"] == 200) for item in outcomes)
    return [item["errCode"] for item in outcomes]
