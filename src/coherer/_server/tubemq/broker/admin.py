"""The broker's HTTP administration: partitions, offsets, readers, messages, figures.

It has the methods of Java's broker, with the same forms (docs/protocol/tubemq.md, section 10.5).
Java's brokers need no token; here changes need one, as at the master. Offsets count messages; in
Java they count bytes of an index. So answers have `offsetStep`, which Java's do not have: the
growth of an offset with each message. All topics share one commit log, so its bounds are the same
in every answer. Methods for features that this broker does not have are refused by name.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Final, cast

import msgspec

from coherer import limits
from coherer._record.layout import store_ms_of
from coherer._rules.common.offsets import Position
from coherer._rules.common.topics import STORE_STRIDE, Topic
from coherer._server.core.moved_groups import log_moved
from coherer._server.http.app import AdminApp, Method
from coherer._server.http.guard import Guard
from coherer._server.http.params import Answer, Json, ParamError, Params, found, refused
from coherer._server.tubemq.admin_stats import (
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
from coherer._server.tubemq.broker.consumers import tag_codes
from coherer._server.tubemq.broker.state import PartitionReader
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.payload import split_payload

_NOT_FOUND: Final = 401
_MESSAGES_MIN, _MESSAGES_MAX = 3, 50
_SCANNED_MAX: Final = 10_000
_SNAPSHOT_BYTES: Final = 4 * 1024 * 1024
_ENTRY_BYTES: Final = 20
_MIB: Final = 1024 * 1024
_UNLIMITED_MIB: Final = ((1 << 63) - 1) // _MIB

REFUSED: Final = {
    "admin_query_broker_memstore_info": "messages are not collected in memory first",
    "admin_get_msgstore_stats": "messages are not collected in memory first; "
    "use admin_query_broker_all_store_info for stored messages",
    "admin_backup_group_offsets": "a broker writes files only to its own directory; copy "
    "config/consumerOffset.json from there",
    "admin_get_group_history_offset": "no history of offsets is kept",
    "admin_set_offset_by_time": "no history of offsets is kept; find the offset of a time with "
    "`coherer groups reset --to`, which sets it",
}
"""The methods of Java's broker that are not supported, and the reasons."""


def broker_admin(broker: Broker, guard: Guard | None = None) -> AdminApp:
    """The HTTP administration of a broker.

    Args:
        guard: checks access; if None, all calls are allowed.
    """
    calls = WebCalls(broker.state.wall_ms)
    rows = BrokerAdmin(broker, calls).methods()
    rows["admin_get_methods"] = Method(
        lambda _: _answer({"method": name, "needAuth": row.changes} for name, row in rows.items())
    )
    return AdminApp(calls.counted(rows), guard)


class BrokerAdmin:
    """The methods of the administration."""

    def __init__(self, broker: Broker, calls: WebCalls) -> None:
        self._broker = broker
        self._state = broker.state
        self._calls = calls

    def methods(self) -> dict[str, Method]:
        return {
            "admin_query_pubinfo": Method(self.partitions),
            "admin_query_offset": Method(self.offsets),
            "admin_query_group": Method(self.groups),
            "admin_get_booked_groupname": Method(self.groups),
            "admin_query_consumer_regmap": Method(self.registrations),
            "admin_get_partition_reginfo": Method(self.registrations),
            "admin_set_offset": Method(self.set_offsets, changes=True),
            "admin_rmv_offset": Method(self.remove_offsets, changes=True),
            "admin_clone_offset": Method(self.clone_offsets, changes=True),
            "admin_manual_set_current_offset": Method(self.set_offset, changes=True),
            "admin_query_server_version": Method(lambda _: _answer([_version()], name="data")),
            "admin_query_group_offset": Method(self.offset),
            "admin_snapshot_message": Method(self.messages),
            "admin_get_group_detail_info": Method(self.readers),
            "admin_query_broker_all_consumer_info": Method(self.readers),
            "admin_query_broker_all_store_info": Method(self.stores),
            "admin_get_metrics_info": Method(self.metrics),
            **Switches(self._calls, (ALL, SERVICE, WEB, STORE)).methods(changes=True),
            **{name: Method(_refusing(name, reason)) for name, reason in REFUSED.items()},
        }

    def partitions(self, params: Params) -> Answer:
        """admin_query_pubinfo: the offsets of all partitions.

        `time`, in ms since 1970, adds the first offset stored at or after that time. It is an
        extension, which Java's brokers ignore.
        """
        store = self._state.store
        time_ms = params.number("time")
        wanted = _words(params, "topicName")
        records: list[Answer] = []
        for topic in self._state.topics:
            if wanted is not None and topic.name not in wanted:
                continue
            partitions: list[Json] = []
            for number in topic.partition_ids():
                low, high = store.queue_range(topic.name, number)
                partition: Answer = {
                    "partitionId": number,
                    "offsetMin": low,
                    "offsetMax": high,
                    "dataMin": store.min_offset,
                    "dataMax": store.end_offset,
                }
                if time_ms is not None:
                    partition["offsetAtTime"] = store.offset_at_time(topic.name, number, time_ms)
                partitions.append(partition)
            count = len(partitions)
            records.append({"topicName": topic.name, "offsetInfo": partitions, "itemCount": count})
        return _answer(records, count="dataCount")

    def offsets(self, params: Params) -> Answer:
        """admin_query_offset: the offsets of groups.

        `unread` adds the age of the oldest unread message of each partition that has one. It is an
        extension, which Java's brokers ignore.
        """
        with_ages = params.flag("unread") or False
        chosen = self._state.offsets.chosen(
            _words(params, "groupName"), _words(params, "topicName")
        )
        records: list[Answer] = []
        for group, topics in sorted(chosen.items()):
            shown: list[Answer] = []
            for topic, positions in sorted(topics.items()):
                forms: list[Json] = [
                    self._offset_form(topic, number, position)
                    for number, position in positions.items()
                    if position.offset >= 0
                ]
                if forms:
                    shown.append({"topicName": topic, "offsets": forms, "partCount": len(forms)})
                    if with_ages:
                        shown[-1] |= {"unread": self._unread(topic, positions)}
            if shown:
                count = len(shown)
                records.append({"groupName": group, "subInfo": [*shown], "topicCount": count})
        return _answer(records)

    def _unread(self, topic: str, positions: Mapping[int, Position]) -> list[Json]:
        """The ages of the oldest unread messages; without an offset, a partition is all unread."""
        store, known = self._state.store, self._state.topics.get(topic)
        found: list[Json] = []
        for number in () if known is None else known.partition_ids():
            low, high = store.queue_range(topic, number)
            position = positions.get(number)
            offset = max(low, -1 if position is None else position.offset)
            place = store.place_of(topic, number, offset) if offset < high else None
            record = None if place is None else store.record_at(place)
            if record is not None:
                age_ms = max(0, self._state.wall_ms() - store_ms_of(record))
                found.append({"partitionId": number, "ageMs": age_ms})
        return found

    def groups(self, params: Params) -> Answer:
        """admin_query_group: the groups with offsets; `divide` separates online groups."""
        online = {reader.group for reader in self._state.leases}
        known = online | set(self._state.offsets.groups())
        parts = {"all": known}
        if params.flag("divide"):
            parts = {"online": online, "offline": known - online}
        records: list[Answer] = [
            {
                "type": kind,
                "groupName": cast("list[Json]", sorted(names)),
                "groupCount": len(names),
            }
            for kind, names in parts.items()
        ]
        return _answer(records, count="dataCount")

    def registrations(self, params: Params) -> Answer:
        """admin_query_consumer_regmap: the consumer of each partition."""
        groups = _words(params, "groupName")
        chosen = (r for r in self._state.leases if groups is None or r.group in groups)
        return _answer(
            {
                "Partition": f"{reader.group}:{reader.topic}:{reader.partition}",
                "Consumer": reader.holder,
                "index": index,
            }
            for index, reader in enumerate(chosen, 1)
        )

    def set_offsets(self, params: Params) -> Answer:
        """admin_set_offset: set the offsets of groups, even while they read."""
        groups = _required_words(params, "groupName")
        params.required("modifyUser")
        if params.flag("manualSet"):
            offsets = self._named_offsets(params.required("offsetJsonInfo"))
        else:
            offsets = self._end_offsets(_required_words(params, "topicName"))
        self._move(groups, offsets)
        return _answer([])

    def clone_offsets(self, params: Params) -> Answer:
        """admin_clone_offset: copy the offsets of a group to others, for all topics or for some."""
        source = params.required("sourceGroupName")
        topics = set(params.words("topicName"))
        known = [
            (topic, number, position.offset)
            for topic, number, position in self._state.offsets.of(source)
            if position.offset >= 0 and self._state.topics.get(topic) is not None
        ]
        if not known:
            raise ParamError(
                f"Parameter sourceGroupName: {source} has not been registered on this Broker!"
            )
        offsets = {(topic, n): at for topic, n, at in known if not topics or topic in topics}
        if not offsets:
            raise ParamError(
                f"Parameter sourceGroupName: {source} unsubscribed to the specified topic set!"
            )
        groups = _required_words(params, "targetGroupName")
        params.required("modifyUser")
        for (topic, number), offset in offsets.items():
            low, high = self._state.store.queue_range(topic, number)
            offsets[topic, number] = max(low, min(offset, high))
        self._move(groups, offsets)
        return _answer([])

    def set_offset(self, params: Params) -> Answer:
        """admin_manual_set_current_offset: set the offset of one partition; answers the old one."""
        topic, number = self._partition(params)
        params.required("modifyUser")
        params.required("manualOffset")
        group, offset = params.required("groupName"), params.number("manualOffset") or 0
        low, high = self._state.store.queue_range(topic.name, number)
        if offset < low:
            raise ParamError(
                f"Invalid parameter: manualOffset lower than Current MinOffset:({offset}<{low})"
            )
        if offset > high:
            raise ParamError(
                f"Invalid parameter: manualOffset bigger than Current MaxOffset:({offset}>{high})"
            )
        before = self._state.offsets.find(group, topic.name, number)
        old = max(before.offset, 0) if before else 0
        self._move([group], {(topic.name, number): offset})
        text = "Manual update current Offset success!"
        return {"result": True, "errCode": 0, "errMsg": text, "oldOffset": old}

    def _move(self, groups: Iterable[str], offsets: Mapping[tuple[str, int], int]) -> None:
        for group in groups:
            self._state.core.name_group(group)
            moves: dict[str, tuple[dict[int, int | None], dict[int, int]]] = {}
            for (topic, number), offset in offsets.items():
                position = self._state.offsets.open(group, topic, number)
                before, after = moves.setdefault(topic, ({}, {}))
                before[number], after[number] = position.offset, offset
                position.move_to(offset)
            for topic, (before, after) in moves.items():
                log_moved(group, topic, before, after)
        for topic, number in offsets:
            self._broker.gets.offsets_moved(topic, number)

    def remove_offsets(self, params: Params) -> Answer:
        """admin_rmv_offset: remove the offsets of groups. Their consumers must register again."""
        groups = _required_words(params, "groupName")
        params.required("modifyUser")
        topics = frozenset(params.words("topicName")) or None
        for group in groups:
            self._state.core.remove_offsets(group, topics)
        return _answer([])

    def offset(self, params: Params) -> Answer:
        """admin_query_group_offset: the offset of a group in one partition."""
        topic, number = self._partition(params)
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
        """admin_snapshot_message: the newest messages of a partition."""
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
        """admin_get_group_detail_info, admin_query_broker_all_consumer_info: details of readers."""
        groups = set(params.words("groupName"))
        chosen = [r for r in self._state.leases if not groups or r.group in groups]
        return _numbered(map(self._reader_form, chosen))

    def stores(self, params: Params) -> Answer:
        """admin_query_broker_all_store_info: the contents of the stores of each topic."""
        topics = set(params.words("topicName"))
        chosen = [topic for topic in self._state.topics if not topics or topic.name in topics]
        return _numbered(
            {"topicName": topic.name, "storeInfo": self._stores(topic)} for topic in chosen
        )

    def metrics(self, params: Params) -> Answer:
        """admin_get_metrics_info; `needRefresh` resets the counters."""
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

    def _partition(self, params: Params) -> tuple[Topic, int]:
        """The partition in the parameters.

        Raises:
            ParamError: it is missing, or does not exist here, or several groups are given.
        """
        name = params.required("topicName")
        if "," in params.required("groupName"):
            raise ParamError("illegal value for groupName, value must be the name of one group")
        params.required("partitionId")
        number = params.number("partitionId")
        topic = self._state.topics.get(name)
        if topic is None:
            raise ParamError("Invalid parameter: not found the topicName configure!")
        if number is None or not topic.has_partition(number):
            raise ParamError("Invalid parameter: not found the store by topicName!")
        return topic, number

    def _offset_form(self, topic: str, number: int, position: Position) -> Answer:
        store = self._state.store
        _, high = store.queue_range(topic, number)
        return {
            "partitionId": number,
            "curOffset": position.offset,
            "flightOffset": position.offset + position.delta,
            "curDataOffset": -1,
            "offsetLag": high - position.offset,
            "dataLag": -1,
            "offsetMax": high,
            "dataMax": store.end_offset,
        }

    def _named_offsets(self, text: str) -> dict[tuple[str, int], int]:
        """The entries of this broker in `{"brokerId:topic:partitionId": offset}`."""
        try:
            given = msgspec.json.decode(text, type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise ParamError(f"illegal value for offsetJsonInfo: {error}") from error
        offsets: dict[tuple[str, int], int] = {}
        for key, offset in given.items():
            parts = key.split(":")
            if len(parts) != 3 or not (parts[0].isdecimal() and parts[2].isdecimal()):
                raise ParamError(f"illegal value for offsetJsonInfo: {key!r} is not a partition")
            topic = self._state.topics.get(parts[1])
            if int(parts[0]) == self._state.options.broker_id and topic is not None:
                number = int(parts[2])
                if topic.has_partition(number):
                    low, high = self._state.store.queue_range(topic.name, number)
                    offsets[topic.name, number] = max(low, min(offset, high))
        return offsets

    def _end_offsets(self, names: Iterable[str]) -> dict[tuple[str, int], int]:
        found = (self._state.topics.get(name) for name in names)
        return {
            (topic.name, number): self._state.store.queue_range(topic.name, number)[1]
            for topic in found
            if topic is not None
            for number in topic.partition_ids()
        }

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
        """Attributes and bodies of the newest messages, oldest first."""
        store, mapper = self._state.store, self._broker.mapper
        low, high = store.queue_range(topic, number)
        start = max(low, high - (_SCANNED_MAX if words else count))
        newest: list[tuple[bytes | None, bytes]] = []
        while start < high:
            slices = store.read(
                topic,
                number,
                start,
                max_bytes=_SNAPSHOT_BYTES,
                max_count=limits.MESSAGES_PER_GET,
                tags=tag_codes(words) if words else None,
            )
            if slices.next_offset <= start:
                break
            start = slices.next_offset
            answer = pb.GetMessageResponseB2C()
            records = slices.records
            while records:  # large compressed bodies take several rounds
                delivery = mapper.deliver(records, len(topic.encode()), 0)
                answer.MergeFromString(b"".join(delivery.chunks))
                records = records[delivery.taken :] if delivery.taken else []
            parts = (split_payload(one.payLoadData, one.flag) for one in answer.messages)
            newest = [*newest, *(part for part in parts if part is not None)][-count:]
        return newest

    def _reader_form(self, reader: PartitionReader) -> Answer:
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
            "curFreqLimit": throttle.penalty_ms,
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


def _words(params: Params, name: str) -> frozenset[str] | None:
    """Return the words of a list; None if it is empty, which selects everything."""
    return frozenset(params.words(name)) or None


def _required_words(params: Params, name: str) -> list[str]:
    params.required(name)
    return params.words(name)


def _version() -> Answer:
    return {"version": f"coherer-{metadata.version('coherer')}"}


def _answer(records: Iterable[Answer], *, name: str = "dataSet", count: str = "totalCnt") -> Answer:
    """An answer with records; the names of the records and their count differ between methods."""
    shown = cast("list[Json]", list(records))
    return {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        name: shown,
        count: len(shown),
        "offsetStep": 1,
    }


def _numbered(records: Iterable[Answer]) -> Answer:
    """An answer with records that carry their number, from 1."""
    shown: list[Json] = [{"index": index, **record} for index, record in enumerate(records, 1)]
    return {
        "result": True,
        "errCode": 0,
        "errMsg": "Success!",
        "dataSet": shown,
        "totalCnt": len(shown),
    }


def _refusing(name: str, reason: str) -> Callable[[Params], Answer]:
    return lambda _: refused(f"{name} is not supported: {reason}.")
