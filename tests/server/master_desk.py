"""The master's methods over HTTP, as an administrator calls them."""

from __future__ import annotations

from typing import Any

from coherer._server.node.admin import AdminApp
from coherer._server.tubemq.master.admin import master_admin
from tests.server.master_harness import Stage

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


class Desk:
    """Asks and orders, as an administrator would."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.app: AdminApp = master_admin(stage.master)

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
