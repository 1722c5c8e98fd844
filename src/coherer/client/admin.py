"""Administration of a TubeMQ cluster, ours or Java's, over HTTP.

The master knows topics, brokers and who is in a group; offsets are asked of each broker, whose web
port the master tells. What a broker did not tell is None, never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, TypeVar

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
from coherer.client.tubemq.cluster import Signer
from coherer.client.tubemq.introduction import Introduction
from coherer.client.webapi import Answer, Endpoint, WebApi
from coherer.errors import (
    CohererError,
    ConnectError,
    ProtocolError,
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
NO_GROUP = 404
EXISTED = 402
ILLEGAL_STATUS = 406
_DONE = frozenset({200, 201})
"""errCode of an item of a modification (see also `coherer.broker.configuration.OpCode`)."""

_NEXT = {
    NOT_EXIST: "Does the master know that broker, and is it the right master?",
    EXISTED: "Where that is all right, say exist_ok, on the command line --if-missing.",
}
"""What to do after some of them."""

JAVA_TOKEN: Final = "abc"  # noqa: S105 - the value that Java ships
AUTHOR: Final = "coherer"
_POLL_FIRST_MS, _POLL_LAST_MS = 20, 500
_PORT = 8080


def usual_url(hosts: Iterable[str]) -> str:
    """Where the administration of Java's masters usually is: port 8080 of each.

    >>> usual_url(["a", "::1", "a"])
    'http://a:8080,http://[::1]:8080'
    """
    named = (f"[{host}]" if ":" in host else host for host in dict.fromkeys(hosts))
    return ",".join(f"http://{host}:{_PORT}" for host in named)


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
        user: who is written down as the author of changes, and, with a password, the account.
        password: of the account, where the cluster has accounts. It is never sent, only used to
            sign.
        timeout_ms: for each call.
        cluster: the URL of the cluster, for errors.
        introduce: asks the cluster about itself; None if it is only known by `url`.
        check: raises when the client that made it cannot be used any more.

    ```python
    admin = Admin("http://127.0.0.1:8080")
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, `RefusedError` when one says no, and
    `UsageError` when what answers is not of the cluster; nothing was changed then.
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
        introduce: Callable[[], Awaitable[Introduction]] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._check_client = check
        if url is None and introduce is None:
            raise UsageError("Where is the administration?", hint="Give a URL: http://host:8080.")
        self._masters = [Endpoint.parse(part) for part in url.split(",")] if url else []
        self._token = token or JAVA_TOKEN
        self._given = token
        self._tls = tls
        self._user = user if len(user) > 1 else AUTHOR  # Java's masters want two characters
        self._signer = None if password is None else Signer(user, password)
        self._timeout_ms = timeout_ms
        self._cluster = cluster
        self._introduce = introduce
        self._known: Introduction | None = None
        self._located = not self._masters
        self._same = False

    def __repr__(self) -> str:
        servers = ",".join(master.server for master in self._masters)
        return f"Admin({servers or self._cluster!r})"

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
        await self._prepare(changes=True)
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
        await self._prepare(changes=True)
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

    async def delete_group(self, name: str) -> None:
        """Forget where a group stands in all topics.

        A group whose consumers are running comes back with their next confirmation.

        Raises:
            RefusedError: there is no such group.
            UnavailableError: a broker does not answer; the others have forgotten the group.
        """
        await self._prepare(changes=True)
        found = await self.groups(name)
        if not found:
            raise RefusedError(
                f"There is no group {name}.", server=self._masters[0].server, code=NO_GROUP
            )
        topic = next(iter(found[0].topics), name)
        brokers = [broker for broker in await self.brokers() if broker.web_port]
        for broker in brokers:
            await self._check_broker(broker, topic)
        for broker in brokers:
            await self._broker(broker).call(
                msgspec.Raw,
                "admin_rmv_offset",
                {
                    "groupName": name,
                    "confModAuthToken": self._token,
                    "modifyUser": self._user,
                },
                post=True,
            )

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
        await self._prepare(changes=True)
        brokers = {broker.id: broker for broker in await self.brokers()}
        if unknown := by_broker.keys() - brokers.keys():
            raise UsageError(f"There is no broker {_numbers(unknown)}.")
        for number, wanted in by_broker.items():
            await self._check_broker(brokers[number], next(iter(wanted)).split(":")[1])
        for number, wanted in by_broker.items():
            await self._broker(brokers[number]).call(
                msgspec.Raw,
                "admin_set_offset",
                {
                    "groupName": group,
                    "confModAuthToken": self._token,
                    "modifyUser": self._user,
                    "manualSet": "true",
                    "offsetJsonInfo": msgspec.json.encode(wanted).decode(),
                },
                post=True,
            )

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[str, int]:
        """Set a group's offsets of a whole topic.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the partitions; a time of storing, which Java's brokers cannot search; or
                an offset for every partition, moved to the nearer end where it is not there.

        Returns:
            The offsets by partition key, `broker:topic:partition`.

        Raises:
            UsageError: there is no such place, or a broker cannot search by time.
            RefusedError: there is no such topic.
            UnavailableError: a broker does not tell what it holds. Nothing was changed then.
        """
        if isinstance(to, str) and to not in {"earliest", "latest"}:
            hint = "Say 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"There is no place {to!r} to begin at.", hint=hint)
        await self._prepare(changes=True)
        new: dict[str, int] = {}
        at_time = await self._at_time(topic, to) if isinstance(to, datetime) else {}
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
        """The first offset that was stored at a time or later, by partition key."""
        parameters = {"topicName": topic, "time": str(int(time.timestamp() * 1000))}
        found: dict[str, int] = {}
        for broker in await self.brokers():
            if not broker.web_port:
                continue
            answer = await self._broker(broker).call(
                records.Held, "admin_query_pubinfo", parameters
            )
            for held in (one for of_topic in answer.data_set for one in of_topic.offset_info):
                if held.offset_at_time is None:
                    raise UsageError(
                        f"Broker {broker.id} cannot search by time.",
                        topic=topic,
                        hint="Java's brokers cannot: give 'earliest', 'latest' or an offset.",
                    )
                key = f"{broker.id}:{topic}:{held.partition_id}"
                found[key] = held.offset_at_time
        return found

    async def _prepare(self, *, changes: bool) -> None:
        """Know where the administration is, and, before a change, that it is the cluster's.

        Raises:
            UsageError: it is not.
        """
        if self._introduce is None:
            return
        if not self._masters:
            self._known = await self._introduce()
            self._masters = _masters_of(self._known)
        guessed = self._located and self._known is not None and not self._known.master_id
        if changes or (guessed and not self._same):
            await self._check_master(self._introduce)

    async def _check_master(self, introduce: Callable[[], Awaitable[Introduction]]) -> None:
        asked_anew = self._known is None
        known = self._known = self._known or await introduce()
        if not known.master_id:
            await self._check_java_master(known)
            return
        found = await self._master_id()
        if found != known.master_id and not asked_anew:  # it may have been started anew
            known = self._known = await introduce()
            if self._located:
                self._masters = _masters_of(known)
            found = await self._master_id()
        if found != known.master_id:
            raise self._stranger("it does not say that it is that master")

    async def _check_java_master(self, known: Introduction) -> None:
        """Java's masters do not say who they are; but they name the brokers of their cluster."""
        if self._same:
            return
        try:
            answer = await self._master(
                records.BrokerRecord, "admin_query_broker_configure", {}, post=False
            )
        except (RefusedError, ProtocolError) as error:
            raise self._stranger(error.text) from error
        named: set[tuple[int, str, int]] = set()
        for record in answer.data:
            for port in (record.broker_port, record.broker_tls_port):
                named.add((record.broker_id, record.broker_ip, port))
        if not known.brokers:
            raise self._stranger("the cluster names no brokers by which to know it")
        if missing := known.brokers - named:
            number, host, port = min(missing)
            raise self._stranger(f"it does not know broker {number} at {host}:{port}")
        self._same = True

    async def _master_id(self) -> str:
        try:
            api = await self._asked_master("admin_query_master_group_info")
        except (RefusedError, ProtocolError) as error:
            raise self._stranger(error.text) from error
        return api.master_id

    async def _asked_master(self, method: str) -> WebApi:
        """Ask the first master that can be reached, which is asked first from now on."""
        masters = tuple(self._masters)
        for endpoint in masters:
            api = self._api(endpoint)
            try:
                await api.call(msgspec.Raw, method, {})
            except ConnectError as error:
                if endpoint is masters[-1]:
                    self._add_hint(error)
                    raise
                continue
            self._prefer(endpoint)
            return api
        raise UsageError("There is no master.")

    def _stranger(self, why: str) -> UsageError:
        master = self._known.server if self._known is not None else "?"
        return UsageError(
            f"The administration at {self._masters[0].server} does not prove to be of the cluster "
            f"{self._cluster}, whose master is {master}: {why.rstrip('.')}. Nothing was changed.",
            hint="Say where it is: admin='http://host:port', on the command line --admin.",
        )

    async def _check_broker(self, broker: BrokerState, topic: str) -> None:
        """Make sure that a broker's administration is that of the broker that the master means.

        Raises:
            UsageError: it is that of another one. Java's brokers do not say, and are believed.
        """
        api = self._broker(broker)
        await api.call(msgspec.Raw, "admin_query_pubinfo", {"topicName": topic})
        if api.broker_id and api.broker_id != f"{broker.id}:{broker.host}:{broker.port}":
            raise UsageError(
                f"The administration at {api.endpoint.server} is that of broker {api.broker_id}, "
                f"not of broker {broker.id} at {broker.host}:{broker.port}. Nothing was changed.",
                hint="Is that broker running, and did it tell the master the right port?",
            )

    def _api(self, endpoint: Endpoint) -> WebApi:
        return WebApi(endpoint, self._tls, self._timeout_ms, self._authorization)

    def _authorization(self) -> str:
        """The header that shows a node with accounts who asks; "" for nobody."""
        if self._signer is not None:
            return f"TubeMQ {self._signer.for_broker()}"
        return f"Bearer {self._given}" if self._given else ""

    def _prefer(self, endpoint: Endpoint) -> None:
        self._masters = [endpoint, *(one for one in self._masters if one is not endpoint)]

    def _add_hint(self, error: CohererError) -> None:
        if self._located:
            error.hint = (
                f"{error.hint} If the administration is elsewhere, say where: "
                "admin='http://host:port', on the command line --admin."
            ).strip()

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
        if self._check_client is not None:
            self._check_client()
        endpoint = Endpoint(self._masters[0].scheme, broker.host, broker.web_port, "/broker.htm")
        return self._api(endpoint)

    async def _ask(self, item: type[T], method: str, parameters: Mapping[str, str]) -> Answer[T]:
        await self._prepare(changes=False)
        return await self._master(item, method, parameters, post=False)

    async def _change(
        self,
        method: str,
        parameters: Mapping[str, str],
        *,
        pardoned: Iterable[int] = (),
        topic: str | None = None,
    ) -> None:
        await self._prepare(changes=True)
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
        if self._check_client is not None:
            self._check_client()
        # A master that cannot be reached is passed over, and the one that answered is asked first
        # the next time. What may have reached a master is never said to another one, and a change
        # goes only to the one that has just proven to be the cluster's.
        proven = post and self._introduce is not None
        masters = tuple(self._masters[:1] if proven else self._masters)
        for endpoint in masters:
            try:
                answer = await self._api(endpoint).call(item, method, parameters, post=post)
            except ConnectError as error:
                if endpoint is masters[-1]:
                    self._add_hint(error)
                    raise
                continue
            self._prefer(endpoint)
            return answer
        raise UsageError("There is no master.")


def _masters_of(known: Introduction) -> list[Endpoint]:
    """Where the administration of a cluster is: as its master says, or at the port of Java's.

    Raises:
        UnavailableError: there is none.
    """
    if not known.master_id:
        return [Endpoint.parse(part) for part in usual_url(known.hosts).split(",")]
    if not known.web_port:
        raise UnavailableError(
            "This master has no administration over HTTP.",
            server=known.server,
            hint="Was it started with --no-admin?",
        )
    return [Endpoint("http", known.host, known.web_port)]


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))
