"""Administration of a TubeMQ cluster, ours or Java's, over HTTP.

The master knows topics, brokers and who is in a group; offsets are asked of each broker, whose web
port the master tells. What a broker did not tell is None, never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from coherer import limits, net
from coherer.client import admin_records as records
from coherer.client.admin_records import (
    BrokerState,
    GroupState,
    MemberState,
    PartitionState,
    TopicState,
)
from coherer.client.webapi import Answer, Endpoint, WebApi
from coherer.errors import (
    CohererError,
    ConnectError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.logs import Log

__all__ = ["Admin", "BrokerState", "GroupState", "MemberState", "PartitionState", "TopicState"]

_log = Log(logging.getLogger(__name__))

T = TypeVar("T")

NOT_EXIST = 401
EXISTED = 402
ILLEGAL_STATUS = 406
_DONE = frozenset({200, 201})
"""errCode of an item of a modification (see also `coherer.broker.configuration.OpCode`)."""

_NEXT = {
    NOT_EXIST: "Does the master know that broker, and is it the right master?",
    EXISTED: "Where that is all right, say exist_ok, on the command line --if-missing.",
}
"""What to do after some of them."""

_POLL_FIRST_MS, _POLL_LAST_MS = 20, 500
_PORT = 8080


def usual_url(hosts: Iterable[str]) -> str:
    """Where the administration of masters is unless they say otherwise: port 8080 of each.

    >>> usual_url(["a", "::1", "a"])
    'http://a:8080,http://[::1]:8080'
    """
    named = (f"[{host}]" if ":" in host else host for host in dict.fromkeys(hosts))
    return ",".join(f"http://{host}:{_PORT}" for host in named)


class Admin:
    """Topics, brokers, groups and offsets of a cluster.

    Args:
        url: the master's HTTP port, as `http://host:8080`; several, separated by commas, where
            there are several masters.
        token: the master's confModAuthToken; only changes need it.
        tls: for https.
        user: who is written down as the author of changes, two characters at least.
        timeout_ms: for each call.

    ```python
    admin = Admin("http://127.0.0.1:8080")
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, and `RefusedError` when one says no.
    """

    def __init__(
        self,
        url: str,
        token: str = "abc",  # noqa: S107 - the value that Java ships
        tls: net.TlsOptions | None = None,
        *,
        user: str = "coherer",
        timeout_ms: int = 10_000,
    ) -> None:
        self._masters = [Endpoint.parse(part) for part in url.split(",")]
        self._token = token
        self._tls = tls
        self._user = user
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"Admin({','.join(master.server for master in self._masters)!r})"

    # -- topics

    async def topics(self, *names: str) -> list[TopicState]:
        """The topics of the cluster in order of their names; only those named, if any are."""
        asked = {"topicName": ",".join(names)} if names else {}
        answer = await self._ask(records.TopicRecord, "admin_query_topic_info", asked)
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
            partitions: how many on each broker.
            brokers: their numbers; all that are online when None.
            exist_ok: it is no error that a broker has the topic already.
            wait_ms: wait so long until producers are given it. Our nodes need milliseconds, Java's
                brokers 41 seconds.

        Raises:
            UsageError: the arguments cannot be right.
            RefusedError: the name is refused, a broker is unknown, or the topic is there (402).
            RequestTimeoutError: it is created, but nobody can use it yet.
        """
        if not 0 < partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"{partitions} partitions: 1 to {limits.TOPIC_PARTITIONS_MAX} are possible.",
                topic=name,
            )
        ids = sorted(brokers) if brokers is not None else await self._online_brokers()
        if not ids:
            raise UnavailableError(
                "No broker is online.", topic=name, hint="Start one, or name the brokers."
            )
        parameters = {"topicName": name, "brokerId": _numbers(ids)}
        await self._change(
            "admin_add_new_topic_record",
            {**parameters, "numPartitions": str(partitions), "numTopicStores": "1"},
            pardoned={EXISTED} if exist_ok else set(),
            topic=name,
        )
        if wait_ms:
            await self.wait_usable(name, timeout_ms=wait_ms)

    async def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
        """Wait until the master gives a topic to producers and consumers; what it is then.

        Raises:
            RequestTimeoutError: not within `timeout_ms`.
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
                f"Not usable after {timeout_ms} ms.",
                topic=name,
                hint="Are its brokers running? Java's take 41 s.",
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers.

        Raises:
            RefusedError: there is no such topic.
        """
        found = await self._ask(records.TopicRecord, "admin_query_topic_info", {"topicName": name})
        named = (record for record in found.data if record.topic_name == name)
        record = next(named, records.TopicRecord(name))
        if not record.brokers(0, 1):
            raise self._no_topic(name)
        if alive := record.brokers(0):
            await self._soft_delete(name, alive)
        ids = {"topicName": name, "brokerId": _numbers(record.brokers(0, 1))}
        await self._change("admin_remove_topic_info", ids, topic=name)

    # -- brokers

    async def brokers(self) -> list[BrokerState]:
        """The brokers that the master knows, in order of their numbers."""
        configured, running = await asyncio.gather(
            self._ask(records.BrokerRecord, "admin_query_broker_configure", {}),
            self._ask(records.BrokerRun, "admin_query_broker_run_status", {}),
        )
        runs = {run.broker_id: run for run in running.data}
        states = [record.state(runs.get(record.broker_id)) for record in configured.data]
        return sorted(states, key=lambda broker: broker.id)

    # -- groups and offsets

    async def partitions(self, topic: str) -> list[PartitionState]:
        """The partitions of a topic and what they hold.

        Raises:
            RefusedError: there is no such topic.
        """
        state = await self._topic(topic)
        if state is None:
            raise self._no_topic(topic)
        told = await self._offsets({topic}, None)
        return [told.partition(key) for key in state.keys]

    async def groups(self, *names: str) -> list[GroupState]:
        """The groups of consumers in order of their names; only those named, if any are.

        A group is there when it has members now, or offsets on a broker.
        """
        asked = {"groupName": ",".join(names)} if names else {}
        subscriptions, topics, told = await asyncio.gather(
            self._ask(records.Subscription, "admin_query_sub_info", asked),
            self.topics(),
            self._offsets(None, set(names) or None),
        )
        online = {entry.consume_group: entry for entry in subscriptions.data}
        members = await asyncio.gather(*map(self._members, online))
        found = dict(zip(online, members, strict=True))
        return [
            told.group(name, online.get(name), found.get(name, ()), topics)
            for name in sorted({*online, *told.groups})
        ]

    async def set_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Set where a group goes on, also while it consumes.

        Args:
            group: it need not exist.
            offsets: new offsets by partition key, `broker:topic:partition`. A broker moves what is
                outside of what it holds to the nearest offset that it holds.

        Raises:
            UsageError: a key is none, or of an unknown broker.
        """
        by_broker: dict[int, dict[str, int]] = {}
        for key, offset in offsets.items():
            by_broker.setdefault(records.broker_of(key), {})[key] = offset
        brokers = {broker.id: broker for broker in await self.brokers()}
        if unknown := by_broker.keys() - brokers.keys():
            raise UsageError(f"There is no broker {_numbers(unknown)}.")
        for number, wanted in by_broker.items():
            await self._broker(brokers[number]).call(
                msgspec.Raw,
                "admin_set_offset",
                {
                    "groupName": group,
                    "modifyUser": self._user,
                    "manualSet": "true",
                    "offsetJsonInfo": msgspec.json.encode(wanted).decode(),
                },
                post=True,
            )

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | int
    ) -> dict[str, int]:
        """Set a group's offsets of a whole topic.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the partitions, or an offset for every partition; one that is not there
                becomes the end that is nearer.

        Returns:
            The offsets by partition key, `broker:topic:partition`.

        Raises:
            UsageError: there is no such place.
            RefusedError: there is no such topic.
            UnavailableError: a broker does not tell what it holds. Nothing was changed then.
        """
        if isinstance(to, str) and to not in {"earliest", "latest"}:
            hint = "Say 'earliest', 'latest', or an offset."
            raise UsageError(f"There is no place {to!r} to begin at.", hint=hint)
        new: dict[str, int] = {}
        for partition in await self.partitions(topic):
            low, high = partition.min_offset, partition.max_offset
            if low is None or high is None:
                raise UnavailableError(
                    f"Broker {partition.broker} does not tell its offsets.",
                    topic=topic,
                    partition=partition.partition,
                    hint="Is it running? Nothing was changed.",
                )
            ends = {"earliest": low, "latest": high}
            new[partition.key] = ends[to] if isinstance(to, str) else min(max(to, low), high)
        await self.set_offsets(group, new)
        return new

    # -- inside

    def _no_topic(self, name: str) -> RefusedError:
        return RefusedError(
            "There is no such topic.",
            server=self._masters[0].server,
            topic=name,
            code=404,
            hint="`coherer topics list` tells which there are.",
        )

    async def _topic(self, name: str) -> TopicState | None:
        return next((topic for topic in await self.topics(name) if topic.name == name), None)

    async def _soft_delete(self, name: str, brokers: Iterable[int]) -> None:
        ids = {"topicName": name, "brokerId": _numbers(brokers)}
        try:
            await self._change("admin_delete_topic_info", ids, topic=name)
        except RefusedError as error:
            if error.code != ILLEGAL_STATUS:
                raise
            # Java wants a topic to be closed for all before it is deleted.
            closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
            await self._change("admin_modify_topic_info", {**ids, **closed}, topic=name)
            await self._change("admin_delete_topic_info", ids, topic=name)

    async def _online_brokers(self) -> list[int]:
        answer = await self._ask(records.BrokerRecord, "admin_query_broker_configure", {})
        return sorted(r.broker_id for r in answer.data if r.manage_status == "online")

    async def _members(self, group: str) -> tuple[MemberState, ...]:
        answer = await self._ask(
            records.Consumer, "admin_query_consume_group_detail", {"consumeGroup": group}
        )
        return tuple(MemberState(c.consumer_id, c.received_from or None) for c in answer.data)

    async def _offsets(self, topics: set[str] | None, groups: set[str] | None) -> records.Told:
        told = records.Told()
        brokers = [broker for broker in await self.brokers() if broker.web_port]
        answers = await asyncio.gather(*(self._one(b, topics, groups) for b in brokers))
        for broker, answer in zip(brokers, answers, strict=True):
            told.add(broker.id, answer)
        return told

    async def _one(
        self, broker: BrokerState, topics: set[str] | None, groups: set[str] | None
    ) -> records.BrokerAnswers | None:
        api = self._broker(broker)
        by_topic = {"topicName": ",".join(sorted(topics))} if topics else {}
        by_group = {"groupName": ",".join(sorted(groups))} if groups else {}
        try:
            held, offsets, owners = await asyncio.gather(
                api.call(records.Held, "admin_query_pubinfo", by_topic),
                api.call(records.GroupOffsets, "admin_query_offset", {**by_topic, **by_group}),
                api.call(records.Owner, "admin_query_consumer_regmap", by_group),
            )
        except CohererError as error:
            _log.warning("Broker %d does not tell its offsets: %s", broker.id, error)
            return None  # its partitions are shown as unknown
        return records.BrokerAnswers(held, offsets, owners)

    def _broker(self, broker: BrokerState) -> WebApi:
        endpoint = Endpoint(self._masters[0].scheme, broker.host, broker.web_port, "/broker.htm")
        return WebApi(endpoint, self._tls, self._timeout_ms)

    async def _ask(self, item: type[T], method: str, parameters: Mapping[str, str]) -> Answer[T]:
        return await self._master(item, method, parameters, post=False)

    async def _change(
        self,
        method: str,
        parameters: Mapping[str, str],
        *,
        pardoned: Iterable[int] = (),
        topic: str | None = None,
    ) -> None:
        signed = {
            **parameters,
            "confModAuthToken": self._token,
            "createUser": self._user,
            "modifyUser": self._user,
        }
        answer = await self._master(records.Outcome, method, signed, post=True)
        for outcome in answer.data:
            if not outcome.success and outcome.err_code not in {*_DONE, *pardoned}:
                raise RefusedError(
                    f"{outcome.err_info.rstrip('!.')}.",
                    server=self._masters[0].server,
                    topic=topic,
                    code=outcome.err_code,
                    hint=_NEXT.get(outcome.err_code, ""),
                )

    async def _master(
        self, item: type[T], method: str, parameters: Mapping[str, str], *, post: bool
    ) -> Answer[T]:
        # A master that cannot be reached is passed over, and the one that answered is asked first
        # the next time. What may have reached a master is never said to another one.
        masters = tuple(self._masters)
        for endpoint in masters:
            try:
                answer = await WebApi(endpoint, self._tls, self._timeout_ms).call(
                    item, method, parameters, post=post
                )
            except ConnectError:
                if endpoint is masters[-1]:
                    raise
                continue
            self._masters = [endpoint, *(other for other in masters if other is not endpoint)]
            return answer
        raise UsageError("There is no master.")


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))
