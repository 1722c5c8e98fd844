"""The broker's methods over HTTP that look into partitions, messages, readers and figures (10.5).

Offsets count messages here; of the log there is one for all topics, so its bounds are the same in
every answer. What a Java broker keeps and ours does not is refused by the name of the method.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from coherer import limits
from coherer._rules.common.topics import STORE_STRIDE, Topic
from coherer._rules.tubemq.filters import tag_codes
from coherer._server.node.admin import Method
from coherer._server.node.admin_params import Answer, Json, ParamError, Params, found, refused
from coherer._server.node.admin_stats import (
    ALL,
    SERVICE,
    STORE,
    WEB,
    Switches,
    WebCalls,
    metrics_form,
    time_text,
)
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.state import Reader
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.payload import split_payload

Refusing: TypeAlias = "Callable[[Params], Answer]"

_NOT_FOUND: Final = 401
_MESSAGES_MIN, _MESSAGES_MAX = 3, 50
_LOOKED_THROUGH: Final = 10_000
_SNAPSHOT_BYTES: Final = 4 * 1024 * 1024
_ENTRY_BYTES: Final = 20
_MIB: Final = 1024 * 1024
_UNLIMITED_MIB: Final = ((1 << 63) - 1) // _MIB

REFUSED: Final = {
    "admin_query_broker_memstore_info": "messages are not collected in memory first",
    "admin_get_msgstore_stats": "messages are not collected in memory first; "
    "admin_query_broker_all_store_info tells what is stored",
    "admin_backup_group_offsets": "a broker writes no files elsewhere; copy "
    "config/consumerOffset.json of its directory",
    "admin_get_group_history_offset": "no history of offsets is kept",
    "admin_set_offset_by_time": "no history of offsets is kept; find the offset of a time with "
    "`coherer groups reset --to`, which sets it",
}
"""Methods that are known and not supported, and why."""


class Details:
    """What there is in a broker, in detail.

    Args:
        broker: it.
        calls: the calls of its administration.
    """

    def __init__(self, broker: Broker, calls: WebCalls) -> None:
        self._broker = broker
        self._state = broker.state
        self._calls = calls

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "admin_query_group_offset": Method(self.position),
            "admin_snapshot_message": Method(self.messages),
            "admin_get_group_detail_info": Method(self.readers),
            "admin_query_broker_all_consumer_info": Method(self.readers),
            "admin_query_broker_all_store_info": Method(self.stores),
            "admin_get_metrics_info": Method(self.metrics),
            **Switches(self._calls, (ALL, SERVICE, WEB, STORE)).methods(changes=True),
            **{name: Method(_refusing(name, reason)) for name, reason in REFUSED.items()},
        }

    def position(self, params: Params) -> Answer:
        """admin_query_group_offset: where a group is in one partition."""
        topic, number = self.partition(params)
        group = params.required("groupName")
        position = self._state.offsets.find(group, topic.name, number)
        answer: Answer = {
            "result": True,
            "errCode": 0,
            "errMsg": "OK!",
            "tmpOffset": position.delta if position else 0,
            **self._bounds(topic.name, number),
        }
        if params.flag("requireRealOffset"):
            reader = self._state.leases.find(group, topic.name, number)
            read_to = reader.throttle.read_to if reader else 0
            answer["zkOffset"] = max(position.offset, 0) if position else 0
            answer["curReadDataOffset"] = read_to or -1
            behind = self._state.store.end_offset - read_to
            answer["curRdDltDataOffset"] = behind if read_to else -1
        return answer

    def messages(self, params: Params) -> Answer:
        """admin_snapshot_message: the newest messages of a partition, with what they carry."""
        name = params.required("topicName")
        count = params.number("msgCount")
        count = _MESSAGES_MIN if count is None else count
        if count < _MESSAGES_MIN:
            raise ParamError(f"illegal value for msgCount, value must be {_MESSAGES_MIN} or more")
        if count > _MESSAGES_MAX:
            raise ParamError(f"Over max allowed msgCount value, allowed count is {_MESSAGES_MAX}!")
        topic = self._state.topics.get(name)
        if topic is None:
            raise ParamError(f"Invalid parameter: not found the store by topicName({name})!")
        number = params.number("partitionId")
        number = min(topic.partition_ids()) if number is None else number
        if not topic.has_partition(number):
            raise ParamError(f"Invalid parameter: topic {name} has no partition {number} here!")
        newest = self._newest(name, number, count, params.words("filterConds"))
        if not newest:
            text = f"Could not find message at position by topic ({name})!"
            return refused(text, _NOT_FOUND)
        shown: list[Json] = [
            {
                "index": index,
                "data": base64.b64encode(body).decode(),
                "attr": "null" if attributes is None else attributes.decode(errors="replace"),
            }
            for index, (attributes, body) in enumerate(newest)
        ]
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": shown}

    def readers(self, params: Params) -> Answer:
        """admin_get_group_detail_info, admin_query_broker_all_consumer_info: who reads what."""
        groups = set(params.words("groupName"))
        chosen = [r for r in self._state.leases if not groups or r.group in groups]
        records: list[Json] = [
            {"index": index, **self._reader_form(reader)} for index, reader in enumerate(chosen, 1)
        ]
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "Success!",
            "dataSet": records,
            "totalCnt": len(records),
        }

    def stores(self, params: Params) -> Answer:
        """admin_query_broker_all_store_info: what each topic's stores hold."""
        topics = set(params.words("topicName"))
        chosen = [topic for topic in self._state.topics if not topics or topic.name in topics]
        records: list[Json] = [
            {"index": index, "topicName": topic.name, "storeInfo": self._stores(topic)}
            for index, topic in enumerate(chosen, 1)
        ]
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "Success!",
            "dataSet": records,
            "totalCnt": len(records),
        }

    def metrics(self, params: Params) -> Answer:
        """admin_get_metrics_info; with `needRefresh` what grows begins anew."""
        state, refresh = self._state, params.flag("needRefresh") or False
        service: Answer = {
            "reset_time": time_text(state.counts_since_ms),
            "consume_online_cnt": len(state.leases),
            "consume_timeout_cnt": state.readers_timed_out,
        }
        if refresh:
            state.counts_since_ms, state.readers_timed_out = state.wall_ms(), 0
        calls = self._calls.form(refresh=refresh)
        return found(metrics_form(state.options.host, "Broker", state.wall_ms(), service, calls))

    def partition(self, params: Params) -> tuple[Topic, int]:
        """The partition that a caller names.

        Raises:
            ParamError: it names none, or none that is here.
        """
        name = params.required("topicName")
        params.required("groupName")
        params.required("partitionId")
        number = params.number("partitionId")
        topic = self._state.topics.get(name)
        if topic is None:
            raise ParamError("Invalid parameter: not found the topicName configure!")
        if number is None or not topic.has_partition(number):
            raise ParamError("Invalid parameter: not found the store by topicName!")
        return topic, number

    # -- inside

    def _bounds(self, topic: str, number: int) -> Answer:
        store = self._state.store
        low, high = store.queue_range(topic, number)
        return {
            "minOffset": low,
            "maxOffset": high,
            "minDataOffset": store.min_offset,
            "maxDataOffset": store.end_offset,
        }

    def _newest(
        self, topic: str, number: int, count: int, words: list[str]
    ) -> list[tuple[bytes | None, bytes]]:
        """Attributes and bodies of the newest messages, the oldest of them first."""
        store, mapper = self._state.store, self._broker.mapper
        low, high = store.queue_range(topic, number)
        start = max(low, high - (_LOOKED_THROUGH if words else count))
        newest: list[tuple[bytes | None, bytes]] = []
        while start < high:
            found_ = store.read(
                topic,
                number,
                start,
                max_bytes=_SNAPSHOT_BYTES,
                max_count=limits.MESSAGES_PER_GET,
                tags=tag_codes(words) if words else None,
            )
            if found_.next_offset <= start:
                break
            start = found_.next_offset
            answer = pb.GetMessageResponseB2C()
            records = found_.records
            while records:  # some wait for another turn where they inflate to much
                delivery = mapper.deliver(records, len(topic.encode()), 0)
                answer.MergeFromString(b"".join(delivery.chunks))
                records = records[delivery.taken :] if delivery.taken else []
            parts = (split_payload(one.payLoadData, one.flag) for one in answer.messages)
            newest = [*newest, *(part for part in parts if part is not None)][-count:]
        return newest

    def _reader_form(self, reader: Reader) -> Answer:
        throttle, position = reader.throttle, reader.position
        limit_bytes, (slice_bytes, minute_bytes) = throttle.limit_bytes, throttle.counted_bytes
        return {
            "groupName": reader.group,
            "topicName": reader.topic,
            "partitionId": reader.partition,
            "consumerId": reader.holder,
            "isRegOk": True,
            "lastRegTime": reader.since_ms,
            "isFilterConsume": reader.tags is not None,
            "receivedFrom": reader.peer,
            "qryPriorityId": reader.priority,
            "curDataLimitInM": _UNLIMITED_MIB if limit_bytes is None else limit_bytes // _MIB,
            "curFreqLimit": throttle.rest_ms,
            "totalSentSec": slice_bytes,
            "isSupportLimit": True,
            "sentUnitSec": 0,
            "totalSentMin": minute_bytes,
            "sentUnit": throttle.unit_bytes(self._state.options.transfer_bytes),
            "isMessageStoreOk": True,
            "tmpOffset": position.delta,
            "zkOffset": max(position.offset, 0),
            **self._bounds(reader.topic, reader.partition),
        }

    def _stores(self, topic: Topic) -> list[Json]:
        store = self._state.store
        stores = Counter(number // STORE_STRIDE for number in topic.partition_ids())
        forms: list[Json] = []
        for store_id, count in sorted(stores.items()):
            partitions: list[Json] = []
            for number in range(count):
                at = store_id * STORE_STRIDE + number
                low, high = store.queue_range(topic.name, at)
                partitions.append(
                    {
                        "partitionId": number,
                        "minOffset": low,
                        "maxOffset": high,
                        "sizeInBytes": (high - low) * _ENTRY_BYTES,
                    }
                )
            forms.append(
                {
                    "storeId": store_id,
                    "numPartition": count,
                    "minDataOffset": store.min_offset,
                    "maxDataOffset": store.end_offset,
                    "sizeInBytes": store.end_offset - store.min_offset,
                    "partitionInfo": partitions,
                }
            )
        return forms


def _refusing(name: str, reason: str) -> Refusing:
    return lambda _: refused(f"{name} is not supported: {reason}.")
