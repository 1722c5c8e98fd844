"""The broker's methods of the HTTP administration: what it holds, and how far groups are (10.5).

The methods of Java's broker, in its forms; `admin_details` has the other half. Java's brokers ask
for no token; here changes need one, as the master's do. What counts messages with us counts bytes
of an index there:
`offsetStep` in the answers, which Java's do not have, says how far an offset moves with a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import cast

import msgspec

from coherer._rules.common.offsets import Position
from coherer._rules.common.topics import Topic
from coherer._server.node.admin import AdminApp, Guard, Method
from coherer._server.node.admin_params import Answer, Json, ParamError, Params
from coherer._server.node.admin_stats import WebCalls
from coherer._server.tubemq.broker.admin_details import Details
from coherer._server.tubemq.broker.broker import Broker
from coherer._wire.tubemq.codes import ResultCode


def broker_admin(broker: Broker, guard: Guard | None = None) -> AdminApp:
    """The administration of a broker.

    Args:
        broker: the broker.
        guard: who may use it; everybody when None.
    """
    desk, calls = _Desk(broker), WebCalls(broker.state.wall_ms)
    details = Details(broker, calls)
    rows = {
        "admin_query_pubinfo": Method(desk.held),
        "admin_query_offset": Method(desk.positions),
        "admin_query_group": Method(desk.groups),
        "admin_get_booked_groupname": Method(desk.groups),
        "admin_query_consumer_regmap": Method(desk.readers),
        "admin_get_partition_reginfo": Method(desk.readers),
        "admin_set_offset": Method(desk.set_positions, changes=True),
        "admin_rmv_offset": Method(desk.remove_positions, changes=True),
        "admin_clone_offset": Method(desk.clone_positions, changes=True),
        "admin_manual_set_current_offset": Method(
            lambda params: desk.set_position(params, *details.partition(params)), changes=True
        ),
        "admin_query_server_version": Method(lambda _: _answer([_version()], name="data")),
        **details.methods(),
    }
    rows["admin_get_methods"] = Method(
        lambda _: _answer({"method": name, "needAuth": row.changes} for name, row in rows.items())
    )
    return AdminApp(calls.counted(rows), guard)


class _Desk:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._state = broker.state

    def held(self, params: Params) -> Answer:
        """What every partition holds; with `time`, also the first offset stored at or after it.

        The parameter is ours, in ms since 1970. Java's brokers ignore it.
        """
        store = self._state.store
        time_ms = params.number("time")
        records: list[Answer] = []
        for topic in self._state.topics:
            if not _asked(params, "topicName", topic.name):
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

    def positions(self, params: Params) -> Answer:
        """How far groups are."""
        offsets = self._state.offsets
        records: list[Answer] = []
        for group in sorted(offsets.groups()):
            if not _asked(params, "groupName", group):
                continue
            topics: dict[str, list[Json]] = {}
            for topic, number, position in offsets.of(group):
                if _asked(params, "topicName", topic) and position.offset >= 0:
                    topics.setdefault(topic, []).append(self._place(topic, number, position))
            places: list[Json] = [
                {"topicName": topic, "offsets": found, "partCount": len(found)}
                for topic, found in sorted(topics.items())
            ]
            if places:
                count = len(places)
                records.append({"groupName": group, "subInfo": places, "topicCount": count})
        return _answer(records)

    def groups(self, params: Params) -> Answer:
        """The groups that have positions; with `divide`, who reads now apart from who does not."""
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

    def readers(self, params: Params) -> Answer:
        """Who reads what now."""
        chosen = (r for r in self._state.leases if _asked(params, "groupName", r.group))
        return _answer(
            {
                "Partition": f"{reader.group}:{reader.topic}:{reader.partition}",
                "Consumer": reader.holder,
                "index": index,
            }
            for index, reader in enumerate(chosen, 1)
        )

    def set_positions(self, params: Params) -> Answer:
        """Move groups, also while they read."""
        groups = _required_words(params, "groupName")
        params.required("modifyUser")
        if params.flag("manualSet"):
            places = self._named_places(params.required("offsetJsonInfo"))
        else:
            places = self._ends(_required_words(params, "topicName"))
        self._move(groups, places)
        return _answer([])

    def clone_positions(self, params: Params) -> Answer:
        """Put groups where another one is, in the topics that it reads or in some of them."""
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
        places = {(topic, n): at for topic, n, at in known if not topics or topic in topics}
        if not places:
            raise ParamError(
                f"Parameter sourceGroupName: {source} unsubscribed to the specified topic set!"
            )
        groups = _required_words(params, "targetGroupName")
        params.required("modifyUser")
        for (topic, number), offset in places.items():
            low, high = self._state.store.queue_range(topic, number)
            places[topic, number] = max(low, min(offset, high))
        self._move(groups, places)
        return _answer([])

    def set_position(self, params: Params, topic: Topic, number: int) -> Answer:
        """Move a group in one partition; the answer tells where it was."""
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

    def _move(self, groups: Iterable[str], places: Mapping[tuple[str, int], int]) -> None:
        for group in groups:
            self._state.core.name_group(group)
            for (topic, number), offset in places.items():
                position = self._state.offsets.open(group, topic, number)
                position.offset, position.delta, position.passing = offset, 0, False
        for topic, number in places:
            self._broker.reads.moved(topic, number)

    def remove_positions(self, params: Params) -> Answer:
        """Forget how far groups are. Who reads is told to register again."""
        groups = _required_words(params, "groupName")
        params.required("modifyUser")
        topics = frozenset(params.words("topicName")) or None
        self._broker.reads.readers.end_all(
            lambda reader: reader.group in groups and (topics is None or reader.topic in topics),
            ResultCode.HB_NO_NODE,
            "The group's positions were removed.",
        )
        for group in groups:
            self._state.offsets.remove(group, topics)
        return _answer([])

    def _place(self, topic: str, number: int, position: Position) -> Answer:
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

    def _named_places(self, text: str) -> dict[tuple[str, int], int]:
        """The entries of this broker in `{"brokerId:topic:partitionId": offset}`."""
        try:
            given = msgspec.json.decode(text, type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise ParamError(f"illegal value for offsetJsonInfo: {error}") from error
        places: dict[tuple[str, int], int] = {}
        for key, offset in given.items():
            parts = key.split(":")
            if len(parts) != 3 or not (parts[0].isdecimal() and parts[2].isdecimal()):
                raise ParamError(f"illegal value for offsetJsonInfo: {key!r} is no partition")
            topic = self._state.topics.get(parts[1])
            if int(parts[0]) == self._state.options.broker_id and topic is not None:
                number = int(parts[2])
                if topic.has_partition(number):
                    low, high = self._state.store.queue_range(topic.name, number)
                    places[topic.name, number] = max(low, min(offset, high))
        return places

    def _ends(self, names: Iterable[str]) -> dict[tuple[str, int], int]:
        found = (self._state.topics.get(name) for name in names)
        return {
            (topic.name, number): self._state.store.queue_range(topic.name, number)[1]
            for topic in found
            if topic is not None
            for number in topic.partition_ids()
        }


def _asked(params: Params, name: str, value: str) -> bool:
    words = params.words(name)
    return not words or value in words


def _required_words(params: Params, name: str) -> list[str]:
    params.required(name)
    return params.words(name)


def _version() -> Answer:
    return {"version": f"coherer-{metadata.version('coherer')}"}


def _answer(records: Iterable[Answer], *, name: str = "dataSet", count: str = "totalCnt") -> Answer:
    """An answer with records. Java's methods do not agree how they and their number are called."""
    found = cast("list[Json]", list(records))
    return {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        name: found,
        count: len(found),
        "offsetStep": 1,
    }
