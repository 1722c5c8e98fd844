"""Parameters and responses of TubeMQ's HTTP administration (docs/protocol/tubemq.md, section 10.1).

Every parameter has a long and a short name, and callers may use either. Methods use the long one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A value of a response."""

Answer: TypeAlias = "dict[str, Json]"
"""A response."""

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
    """A parameter is missing or invalid; the text is the response's errMsg."""


class Params(Mapping[str, str]):
    """The parameters of a call, by their long names.

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
        """A mandatory text.

        Raises:
            ParamError: it is missing.
        """
        text = self.get(name, "").strip()
        if not text:
            raise ParamError(f"Parameter {name} is missing or value is blank!")
        return text

    def number(self, name: str, *, least: int | None = None) -> int | None:
        """A number; None if missing.

        Raises:
            ParamError: it is not a number, or less than `least`.
        """
        text = self.get(name, "").strip()
        number = _number(name, text) if text else None
        if number is not None and least is not None and number < least:
            raise ParamError(f"illegal value for {name}, value must be {least} or more")
        return number

    def flag(self, name: str) -> bool | None:
        """A boolean; None if missing.

        Raises:
            ParamError: it is not a boolean.
        """
        text = self.get(name, "").strip().lower()
        if text not in {"", "true", "false", "1", "0"}:
            raise ParamError(f"illegal value for {name}, value must be true or false")
        return text in {"true", "1"} if text else None

    def words(self, name: str) -> list[str]:
        """The distinct items of a list; empty if missing."""
        items = (item.strip() for item in self.get(name, "").split(","))
        return list(dict.fromkeys(item for item in items if item))

    def numbers(self, name: str) -> list[int]:
        """The items of a list of numbers.

        Raises:
            ParamError: an item is not a number.
        """
        return [_number(name, item) for item in self.words(name)]

    def records(self, name: str) -> list[Params]:
        """The items of a JSON array of flat objects, each as parameters.

        Raises:
            ParamError: the array is missing, empty or invalid.
        """
        text = self.required(name)
        try:
            items = msgspec.json.decode(text, type=list[dict[str, str | int | float | bool | None]])
        except msgspec.MsgspecError as error:
            raise ParamError(f"Parameter {name} value parse failure, error is {error}!") from error
        if not items:
            raise ParamError(f"Not found record in {name} parameter!")
        # Items inherit the user and the data version from these parameters.
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
    """The response to a query.

    >>> found([])
    {'result': True, 'errCode': 0, 'errMsg': 'OK', 'data': [], 'count': 0}
    """
    data: list[Json] = list(records)
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


def done() -> Answer:
    """The response to a successful change."""
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}


def refused(text: str, code: int = BAD_REQUEST) -> Answer:
    """The response to a call that cannot be served."""
    return {"result": False, "errCode": code, "errMsg": text}
