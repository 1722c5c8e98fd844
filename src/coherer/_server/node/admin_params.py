"""Parameters and answers of TubeMQ's HTTP administration (section 10.1).

Every parameter has a long and a short name, and either may be used; methods ask by the long one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""What an answer is made of."""

Answer: TypeAlias = "dict[str, Json]"
"""A whole answer."""

BAD_REQUEST: Final = 400

_SHORT: Final = {
    "topicName": "topic", "groupName": "group", "consumeGroup": "group", "partitionId": "pid",
    "createUser": "cur", "modifyUser": "mur", "createDate": "cDate", "modifyDate": "mDate",
    "manualOffset": "offset", "msgCount": "cnt", "filterConds": "flts",
    "requireRealOffset": "dko", "needRefresh": "nrf", "callerIp": "cip", "withIp": "ip",
    "divide": "div", "sourceGroupName": "srcGroup", "targetGroupName": "tgtGroup",
    "manualSet": "manSet", "offsetJsonInfo": "offsetInfo", "onlyMemory": "onlyMem",
    "confModAuthToken": "authToken", "brokerWebPort": "bWebPort", "dataVersionId": "dataVerId",
    "topicNameId": "topicId", "numTopicStores": "numStore", "numPartitions": "numPart",
    "unflushThreshold": "unfDskMsgCnt", "unflushInterval": "unfDskInt",
    "unflushDataHold": "unfDskDataSize", "memCacheMsgSizeInMB": "cacheSizeInMB",
    "memCacheMsgCntInK": "unfMemMsgCnt", "memCacheFlushIntvl": "unfMemInt",
    "acceptPublish": "accPub", "acceptSubscribe": "accSub", "deletePolicy": "delPolicy",
    "topicJsonSet": "topicSet", "brokerIp": "bIp", "brokerJsonSet": "brokerSet",
    "qryPriorityId": "qryPriId", "flowCtrlInfo": "flowCtrlSet",
    "filterCondJsonSet": "filterJsonSet", "dataStoreType": "dStType", "dataPath": "dPath",
    "attributes": "attrs", "recordKey": "recKey", "flowCtrlEnable": "fCtrlEn",
    "flowCtrlRuleCount": "fCtrlCnt", "resCheckEnable": "resChkEn",
    "alwdBrokerClientRate": "abcr", "disableCsmRsn": "dsCsmRsn", "filterEnable": "fltEn",
    "manageStatus": "mSts", "groupId": "gId", "topicStatusId": "tStsId",
    "enableAuthControl": "acEn", "consumeEnable": "csmEn", "groupCsmJsonSet": "csmJsonSet",
    "withTopic": "wTopic", "isReservedData": "isRsvDt", "withGroupAuthInfo": "wGAI",
    "withDeployInfo": "wDI", "topicCtrlJsonSet": "tCtrlSet", "groupResCtrlJsonSet": "gResCtrlSet",
    "allowedBClientRate": "abcr", "groupNameJsonSet": "gJsonSet", "reJoinWait": "rjWait",
    "consumerId": "csmId", "relReason": "rRsn", "withDetail": "wDtl", "onlyAbnormal": "oAbn",
    "onlyAutoForbidden": "oAfb", "onlyEnableTLS": "oEtls", "recordTime": "rt",
    "maxRetryCnt": "mrc", "statsType": "st", "resetValue": "rv", "endTime": "et",
    "backupPath": "bPath", "grpOffStgExpHr": "grpStgExp",
}  # fmt: skip


class ParamError(Exception):
    """A parameter is missing or makes no sense; the text is the answer's errMsg."""


class Params(Mapping[str, str]):
    """What a caller gave, found by the long names.

    >>> params = Params({"topic": "flights,weather", "numPart": "8"})
    >>> params["topicName"], params.number("numPartitions"), params.words("topicName")
    ('flights,weather', 8, ['flights', 'weather'])
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def __getitem__(self, name: str) -> str:
        if name in self._given:
            return self._given[name]
        return self._given[_SHORT.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def required(self, name: str) -> str:
        """A text that must be there.

        Raises:
            ParamError: it is not.
        """
        text = self.get(name, "").strip()
        if not text:
            raise ParamError(f"Parameter {name} is missing or value is blank!")
        return text

    def number(self, name: str) -> int | None:
        """A number; None when it is not given.

        Raises:
            ParamError: it is no number.
        """
        text = self.get(name, "").strip()
        return _number(name, text) if text else None

    def flag(self, name: str) -> bool | None:
        """True or false; None when it is not given.

        Raises:
            ParamError: it is neither.
        """
        text = self.get(name, "").strip().lower()
        if text not in {"", "true", "false", "1", "0"}:
            raise ParamError(f"illegal value for {name}, value must be true or false")
        return text in {"true", "1"} if text else None

    def words(self, name: str) -> list[str]:
        """The items of a list, each once; empty when it is not given."""
        items = (item.strip() for item in self.get(name, "").split(","))
        return list(dict.fromkeys(item for item in items if item))

    def numbers(self, name: str) -> list[int]:
        """The items of a list of numbers.

        Raises:
            ParamError: one is no number.
        """
        return [_number(name, item) for item in self.words(name)]

    def records(self, name: str) -> list[Params]:
        """The items of a JSON array of flat objects, each with its own parameters.

        What all items have in common (who changes something, and the data version) is taken from
        these parameters where an item does not say it.

        Raises:
            ParamError: there is no item, or it is no such array.
        """
        text = self.required(name)
        try:
            items = msgspec.json.decode(text, type=list[dict[str, str | int | float | bool | None]])
        except msgspec.MsgspecError as error:
            raise ParamError(f"Parameter {name} value parse failure, error is {error}!") from error
        if not items:
            raise ParamError(f"Not found record in {name} parameter!")
        common = {key: self[key] for key in _COMMON if key in self}
        return [
            Params({**common, **{key: _text(value) for key, value in item.items()}})
            for item in items
        ]


_COMMON: Final = ("createUser", "modifyUser", "dataVersionId")


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise ParamError(f"illegal value for {name}, value must only contain numbers")
    return int(text)


def found(records: Iterable[Answer]) -> Answer:
    """The answer to a query.

    >>> found([])
    {'result': True, 'errCode': 0, 'errMsg': 'OK', 'data': [], 'count': 0}
    """
    data: list[Json] = list(records)
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


def done() -> Answer:
    """The answer to an order that has nothing to tell."""
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}


def refused(text: str, code: int = BAD_REQUEST) -> Answer:
    """The answer to what cannot be served."""
    return {"result": False, "errCode": code, "errMsg": text}
