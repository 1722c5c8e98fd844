"""Administration of a TubeMQ cluster, Coherer's or Java's, over HTTP.

The master knows the topics, the brokers and their web ports, and the members of groups. Each broker
knows its offsets. A value that a broker did not send is None, never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from coherer import _net as net
from coherer import limits
from coherer._client.tubemq import admin_records as records
from coherer._client.tubemq.admin_calls import (
    AUTHOR,
    EXISTED,
    ILLEGAL_STATUS,
    NO_GROUP,
    AdminCalls,
    ClusterIdentity,
)
from coherer._client.tubemq.admin_records import (
    BrokerState,
    GroupState,
    MemberState,
    PartitionState,
    TopicState,
)
from coherer._common.logs import Log
from coherer.errors import (
    CohererError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)

__all__ = ["Admin", "BrokerState", "GroupState", "MemberState", "PartitionState", "TopicState"]

_log = Log(logging.getLogger(__name__))

T = TypeVar("T")

_POLL_FIRST_MS, _POLL_LAST_MS = 20, 500


class Admin:
    """Topics, brokers, groups and offsets of a cluster.

    Made by `Client.admin`, it belongs to the cluster of the client: it asks the master where its
    administration is, and before each change it makes sure that what answers there is of that
    cluster. Made with a URL alone, it belongs to whatever answers there.

    Args:
        url: the master's HTTP port, as `http://host:8080`; several, separated by commas, where
            there are several masters. None: where the cluster says.
        token: the confModAuthToken of masters and brokers; only changes need it. None for the one
            that Java ships.
        tls: for https.
        user: recorded as the author of changes, and, with a password, the account.
        password: of the account, where the cluster has accounts. It is never sent, only used to
            sign.
        timeout_ms: for each call.
        cluster: the URL of the cluster, for errors.
        identify: asks the cluster for its identity; None if only `url` is known.
        check: raises when the client that made it cannot be used any more.

    ```python
    admin = Admin("http://127.0.0.1:8080")
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, `RefusedError` when one refuses, and
    `UsageError` when the server does not belong to the cluster; then nothing was changed.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        tls: net.TlsOptions | None = None,
        *,
        user: str = AUTHOR,
        password: str | None = None,
        timeout_ms: int = 10_000,
        cluster: str = "",
        identify: Callable[[], Awaitable[ClusterIdentity]] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._calls = AdminCalls(
            url, token, tls, user=user, password=password, timeout_ms=timeout_ms, cluster=cluster,
            identify=identify, check=check,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Admin({self._calls.server!r})"

    # -- topics

    async def topics(self, *names: str) -> list[TopicState]:
        """The topics, sorted by name; with names, only these topics."""
        parameters = {"topicName": ",".join(names)} if names else {}
        answer = await self._calls.ask(records.TopicRecord, "admin_query_topic_info", parameters)
        states = (record.state() for record in answer.data)
        return sorted((state for state in states if state.partitions), key=lambda t: t.name)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        brokers: Iterable[int] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
    ) -> None:
        """Create a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`.
            partitions: the number of partitions on each broker.
            brokers: ids of brokers; all that are online when None.
            exist_ok: do not raise if a broker already has the topic.
            wait_ms: how long to wait until producers can use it. Coherer's nodes need milliseconds,
                Java's brokers 41 seconds.

        Raises:
            UsageError: an argument is out of range.
            RefusedError: the name is invalid, a broker is unknown, or the topic exists (402).
            RequestTimeoutError: the topic is created, but cannot be used yet.
        """
        if not 0 < partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"A topic has 1 to {limits.TOPIC_PARTITIONS_MAX} partitions, not {partitions}.",
                topic=name,
            )
        await self._calls.prepare(changes=True)
        ids = sorted(brokers) if brokers is not None else await self._online_brokers()
        if not ids:
            raise UnavailableError(
                "No broker is online.", topic=name, hint="Start one, or name the brokers."
            )
        parameters = {"topicName": name, "brokerId": _numbers(ids)}
        await self._calls.change(
            "admin_add_new_topic_record",
            {**parameters, "numPartitions": str(partitions), "numTopicStores": "1"},
            allowed_codes={EXISTED} if exist_ok else set(),
            topic=name,
        )
        if wait_ms:
            await self.wait_usable(name, timeout_ms=wait_ms)

    async def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
        """Wait until producers and consumers can use a topic; returns its state.

        Raises:
            RequestTimeoutError: it cannot be used within `timeout_ms`.
        """
        pause_ms = _POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    topic = await self._topic(name)
                    if topic is not None and topic.writable and topic.readable:
                        return topic
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, _POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.",
                topic=name,
                hint="Are its brokers running? Java's brokers need 41 s.",
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._calls.prepare(changes=True)
        found = await self._calls.ask(
            records.TopicRecord, "admin_query_topic_info", {"topicName": name}
        )
        named = (record for record in found.data if record.topic_name == name)
        record = next(named, records.TopicRecord(name))
        if not record.brokers(0, 1):
            raise self._no_topic(name)
        if alive := record.brokers(0):
            await self._soft_delete(name, alive)
        ids = {"topicName": name, "brokerId": _numbers(record.brokers(0, 1))}
        await self._calls.change("admin_remove_topic_info", ids, topic=name)

    # -- brokers

    async def brokers(self) -> list[BrokerState]:
        """The brokers that the master knows, sorted by id."""
        configured, running = await asyncio.gather(
            self._calls.ask(records.BrokerRecord, "admin_query_broker_configure", {}),
            self._calls.ask(records.BrokerRun, "admin_query_broker_run_status", {}),
        )
        runs = {run.broker_id: run for run in running.data}
        states = [record.state(runs.get(record.broker_id)) for record in configured.data]
        return sorted(states, key=lambda broker: broker.id)

    # -- groups and offsets

    async def partitions(self, topic: str) -> list[PartitionState]:
        """The partitions of a topic, and their offsets.

        Raises:
            RefusedError: the topic does not exist.
        """
        state = await self._topic(topic)
        if state is None:
            raise self._no_topic(topic)
        offsets = await self._offsets({topic}, None)
        return [offsets.partition(key) for key in state.keys]

    async def groups(self, *names: str) -> list[GroupState]:
        """The consumer groups, sorted by name; with names, only these groups.

        A group exists if it has members now, or offsets on a broker.
        """
        parameters = {"groupName": ",".join(names)} if names else {}
        subscriptions, topics, offsets = await asyncio.gather(
            self._calls.ask(records.Subscription, "admin_query_sub_info", parameters),
            self.topics(),
            self._offsets(None, set(names) or None),
        )
        online = {entry.consume_group: entry for entry in subscriptions.data}
        members = await asyncio.gather(*map(self._members, online))
        found = dict(zip(online, members, strict=True))
        return [
            offsets.group(name, online.get(name), found.get(name, ()), topics)
            for name in sorted({*online, *offsets.groups})
        ]

    async def delete_group(self, name: str) -> None:
        """Delete the offsets of a group in all topics.

        A group with running consumers reappears at their next commit.

        Raises:
            RefusedError: the group does not exist.
            UnavailableError: a broker does not answer; the offsets at the others are deleted.
        """
        await self._calls.prepare(changes=True)
        found = await self.groups(name)
        if not found:
            raise RefusedError(
                f"There is no group {name}.", server=self._calls.server, code=NO_GROUP
            )
        topic = next(iter(found[0].topics), name)
        brokers = [broker for broker in await self.brokers() if broker.web_port]
        for broker in brokers:
            await self._calls.check_broker(broker, topic)
        for broker in brokers:
            await self._calls.broker(broker).call(
                msgspec.Raw,
                "admin_rmv_offset",
                {
                    "groupName": name,
                    **self._calls.signature,
                },
                post=True,
            )

    async def set_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Set the offsets of a group, even while it is consuming.

        Args:
            group: the group; it need not exist.
            offsets: new offsets by partition key, `broker:topic:partition`. A broker moves an
                offset that is out of range to the nearest one in range.

        Raises:
            UsageError: a key is invalid, or its broker is unknown.
        """
        by_broker: dict[int, dict[str, int]] = {}
        for key, offset in offsets.items():
            by_broker.setdefault(records.broker_of(key), {})[key] = offset
        await self._calls.prepare(changes=True)
        brokers = {broker.id: broker for broker in await self.brokers()}
        if unknown := by_broker.keys() - brokers.keys():
            raise UsageError(f"The cluster has no broker {_numbers(unknown)}.")
        for number, wanted in by_broker.items():
            await self._calls.check_broker(brokers[number], next(iter(wanted)).split(":")[1])
        for number, wanted in by_broker.items():
            await self._calls.broker(brokers[number]).call(
                msgspec.Raw,
                "admin_set_offset",
                {
                    "groupName": group,
                    **self._calls.signature,
                    "manualSet": "true",
                    "offsetJsonInfo": msgspec.json.encode(wanted).decode(),
                },
                post=True,
            )

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[str, int]:
        """Reset a group's offsets in a whole topic.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the partitions; a store time, which Java's brokers cannot search for; or
                an offset for every partition, moved into its range.

        Returns:
            The offsets by partition key, `broker:topic:partition`.

        Raises:
            UsageError: `to` is invalid, or a broker cannot search by time.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not report its offsets; nothing was changed.
        """
        if isinstance(to, str) and to not in {"earliest", "latest"}:
            hint = "Use 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"{to!r} is not a valid position.", hint=hint)
        await self._calls.prepare(changes=True)
        new: dict[str, int] = {}
        at_time = await self._at_time(topic, to) if isinstance(to, datetime) else {}
        for partition in await self.partitions(topic):
            low, high = partition.min_offset, partition.max_offset
            if low is None or high is None:
                raise UnavailableError(
                    f"Broker {partition.broker} does not send its offsets.",
                    topic=topic,
                    partition=partition.partition,
                    hint="Is it running? Nothing was changed.",
                )
            ends = {"earliest": low, "latest": high}
            match to:
                case str():
                    new[partition.key] = ends[to]
                case int():
                    new[partition.key] = min(max(to, low), high)
                case _:
                    new[partition.key] = min(max(at_time.get(partition.key, high), low), high)
        await self.set_offsets(group, new)
        return new

    # -- inside

    async def _at_time(self, topic: str, time: datetime) -> dict[str, int]:
        """The offset of the first message stored at a time or later, by partition key."""
        parameters = {"topicName": topic, "time": str(int(time.timestamp() * 1000))}
        found: dict[str, int] = {}
        for broker in await self.brokers():
            if not broker.web_port:
                continue
            answer = await self._calls.broker(broker).call(
                records.TopicOffsetRanges, "admin_query_pubinfo", parameters
            )
            for offsets in (one for topic_ in answer.data_set for one in topic_.offset_info):
                if offsets.offset_at_time is None:
                    raise UsageError(
                        f"Broker {broker.id} cannot search by time.",
                        topic=topic,
                        hint="Java's brokers cannot. Use 'earliest', 'latest' or an offset.",
                    )
                key = f"{broker.id}:{topic}:{offsets.partition_id}"
                found[key] = offsets.offset_at_time
        return found

    def _no_topic(self, name: str) -> RefusedError:
        return RefusedError(
            "There is no such topic.",
            server=self._calls.server,
            topic=name,
            code=404,
            hint="`coherer topics list` shows the existing ones.",
        )

    async def _topic(self, name: str) -> TopicState | None:
        return next((topic for topic in await self.topics(name) if topic.name == name), None)

    async def _soft_delete(self, name: str, brokers: Iterable[int]) -> None:
        ids = {"topicName": name, "brokerId": _numbers(brokers)}
        try:
            await self._calls.change("admin_delete_topic_info", ids, topic=name)
        except RefusedError as error:
            if error.code != ILLEGAL_STATUS:
                raise
            # Java's master requires that a topic accepts no clients before it is deleted.
            closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
            await self._calls.change("admin_modify_topic_info", {**ids, **closed}, topic=name)
            await self._calls.change("admin_delete_topic_info", ids, topic=name)

    async def _online_brokers(self) -> list[int]:
        answer = await self._calls.ask(records.BrokerRecord, "admin_query_broker_configure", {})
        return sorted(r.broker_id for r in answer.data if r.manage_status == "online")

    async def _members(self, group: str) -> tuple[MemberState, ...]:
        answer = await self._calls.ask(
            records.Consumer, "admin_query_consume_group_detail", {"consumeGroup": group}
        )
        return tuple(MemberState(c.consumer_id, c.received_from or None) for c in answer.data)

    async def _offsets(
        self, topics: set[str] | None, groups: set[str] | None
    ) -> records.ClusterOffsets:
        offsets = records.ClusterOffsets()
        brokers = [broker for broker in await self.brokers() if broker.web_port]
        answers = await asyncio.gather(*(self._broker_offsets(b, topics, groups) for b in brokers))
        for broker, answer in zip(brokers, answers, strict=True):
            offsets.add(broker.id, answer)
        return offsets

    async def _broker_offsets(
        self, broker: BrokerState, topics: set[str] | None, groups: set[str] | None
    ) -> records.BrokerAnswers | None:
        api = self._calls.broker(broker)
        by_topic = {"topicName": ",".join(sorted(topics))} if topics else {}
        by_group = {"groupName": ",".join(sorted(groups))} if groups else {}
        try:
            ranges, offsets, owners = await asyncio.gather(
                api.call(records.TopicOffsetRanges, "admin_query_pubinfo", by_topic),
                api.call(records.GroupOffsets, "admin_query_offset", {**by_topic, **by_group}),
                api.call(records.Owner, "admin_query_consumer_regmap", by_group),
            )
        except CohererError as error:
            _log.warning("Cannot read the offsets of broker %d: %s", broker.id, error)
            return None  # its partitions are shown as unknown
        return records.BrokerAnswers(ranges, offsets, owners)


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))
