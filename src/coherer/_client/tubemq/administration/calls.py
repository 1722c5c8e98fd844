"""The HTTP calls of TubeMQ's administration, and the check that they reach the client's cluster.

Rules:

* Masters are tried in turn; the next call begins with the one that answered.
* Before each change, the master that will get it must prove that it belongs to the client's
  cluster: Coherer's repeats the random id that it sent to the client, Java's must list the
  cluster's brokers.
* A change that may have reached a master is not sent to another one.
* If the cluster has named the administration and it does not answer any more, the cluster is asked
  again: another master may be the active one now.

To identify its cluster (`identify`), a client registers and unregisters a producer without topics.
The answer lists the cluster's brokers; Coherer's master adds its id and the port of its HTTP
administration. Java's masters do not, and Java's producers ignore both.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from coherer import _net as net
from coherer._client.tubemq.administration import records
from coherer._client.tubemq.administration.records import BrokerRecord, TopicRecord
from coherer._client.tubemq.administration.webapi import (
    Answer,
    Endpoint,
    NotActiveError,
    WebApi,
    for_names,
)
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Signer, checked, client_id
from coherer._common.logs import Log
from coherer._record.system_topics import READER_GROUP_PREFIX, SYSTEM_GROUP_PREFIX
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import BrokerInfo
from coherer.errors import (
    CohererError,
    ConnectError,
    ProtocolError,
    RefusedError,
    UnavailableError,
    UsageError,
)

_log = Log(logging.getLogger(__name__))


class ClusterIdentity(msgspec.Struct, frozen=True):
    """The identity of a cluster, as its active master reports it.

    Args:
        server: the active master, as `host:port`.
        host: its IP address, not its name, because an administration may not accept every name.
        hosts: the host of the active master, as it was given, then those of the others.
        master_id: the random id of this run of the master; "" from Java's.
        web_port: the port of its HTTP administration; 0 from Java's, or if it has none.
        brokers: id, host and port of each broker.
    """

    server: str
    host: str
    hosts: tuple[str, ...]
    master_id: str
    web_port: int
    brokers: frozenset[tuple[int, str, int]]


async def identify(cluster: Cluster) -> ClusterIdentity:
    """Ask the active master for the identity of its cluster.

    Raises:
        RefusedError: it requires an account, and none or a wrong one is given.
        UnavailableError: no master can be reached.
    """
    host = await cluster.local_host()
    name, credentials, masters = client_id(host), cluster.credentials(), cluster.masters
    request = pb.RegisterRequestP2M(
        clientId=name,
        brokerCheckSum=-1,
        hostName=host,
        authInfo=credentials.for_master(),
        appdConfig=pb.ApprovedClientConfig(configId=UNDEFINED),
    )
    answer = await masters.ask(methods.PRODUCER_REGISTER, request, pb.RegisterResponseM2P)
    server = masters.server
    checked(answer, server=server)
    try:
        credentials.renew(answer.authorizedInfo)
        close = pb.CloseRequestP2M(clientId=name, authInfo=credentials.for_master())
        await masters.ask(methods.PRODUCER_CLOSE, close, pb.CloseResponseM2P)
    except CohererError as error:
        _log.info("Unregistering %s failed: %s", name, error)
    first = server.rpartition(":")[0]
    peer = (await masters.link()).connection.peer_host
    brokers = (BrokerInfo.parse(text, tls=cluster.secure) for text in answer.brokerInfos)
    return ClusterIdentity(
        server=server,
        host=peer or first,
        hosts=tuple(dict.fromkeys([first, *(host for host, _ in masters.addresses)])),
        master_id=answer.masterId,
        web_port=answer.webPort,
        brokers=frozenset((broker.id, broker.host, broker.port) for broker in brokers),
    )


T = TypeVar("T")

FAILED = 400
NOT_EXIST = 401
NO_GROUP = 404
EXISTED = 402
ILLEGAL_STATUS = 406
_DONE = frozenset({200, 201})
"""errCode of an item of a modification (see also `coherer._rules.tubemq.records.OpCode`)."""

_HINTS = {
    NOT_EXIST: "Does the master know that broker, and is it the right master?",
    EXISTED: "To accept this, use exist_ok; on the command line, --if-missing.",
}
"""Hints for some of them."""

JAVA_TOKEN: Final = "abc"  # noqa: S105 - the value that Java ships
AUTHOR: Final = "coherer"
_PORT = 8080


def default_url(hosts: Iterable[str]) -> str:
    """The default URLs of the administration of Java's masters: port 8080 of each.

    >>> default_url(["a", "::1", "a"])
    'http://a:8080,http://[::1]:8080'
    """
    named = (f"[{host}]" if ":" in host else host for host in dict.fromkeys(hosts))
    return ",".join(f"http://{host}:{_PORT}" for host in named)


class AdminCalls:
    """Calls masters and brokers; see `Admin` for the arguments."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        tls: net.TlsOptions | None,
        *,
        user: str,
        password: str | None,
        timeout_ms: int,
        cluster: str,
        identify: Callable[[], Awaitable[ClusterIdentity]] | None,
        check: Callable[[], None] | None,
    ) -> None:
        if url is None and identify is None:
            raise UsageError(
                "The administration needs a URL.", hint="Use one like http://host:8080."
            )
        self._check_client = check
        self._masters = [Endpoint.parse(part) for part in url.split(",")] if url else []
        self._token = token or JAVA_TOKEN
        self._given_token = token
        self._tls = tls
        self._user = user if len(user) > 1 else AUTHOR  # Java's masters require two characters
        self._signer = None if password is None else Signer(user, password)
        self._timeout_ms = timeout_ms
        self._cluster = cluster
        self._identify = identify
        self._identity: ClusterIdentity | None = None
        self._discovered = not self._masters
        self._java_master_checked = False

    @property
    def server(self) -> str:
        """The masters, in the order in which they are tried; or the cluster's URL."""
        return ",".join(dict.fromkeys(one.server for one in self._masters)) or self._cluster

    @property
    def signature(self) -> dict[str, str]:
        """The parameters that authorize a change."""
        return {"confModAuthToken": self._token, "modifyUser": self._user}

    async def prepare(self, *, changes: bool) -> None:
        """Find the administration, and before a change verify that it belongs to the cluster.

        Raises:
            UsageError: it does not belong to the cluster.
        """
        if self._identify is None:
            return
        if not self._masters:
            self._identity = await self._identify()
            self._masters = _masters_of(self._identity)
        default_address = (
            self._discovered and self._identity is not None and not self._identity.master_id
        )
        if changes or (default_address and not self._java_master_checked):
            await self._check_master(self._identify)

    async def _check_master(self, identify: Callable[[], Awaitable[ClusterIdentity]]) -> None:
        just_identified = self._identity is None
        identity = self._identity = self._identity or await identify()
        if not identity.master_id:
            await self._check_java_master(identity)
            return
        masters = self._masters
        try:
            found = await self._master_id()
        except UnavailableError:
            if just_identified or not await self._has_moved(masters):
                raise
            found = await self._master_id()
        if found != self._identity.master_id and not just_identified:  # it may have been restarted
            await self._identify_again(identify)
            found = await self._master_id()
        if found != self._identity.master_id:
            raise self._unproven("it does not report the id of that master")

    async def _identify_again(self, identify: Callable[[], Awaitable[ClusterIdentity]]) -> None:
        identity = self._identity = await identify()
        if self._discovered:
            self._masters = _masters_of(identity)

    async def _has_moved(self, masters: Iterable[Endpoint]) -> bool:
        """Whether the cluster names another administration than these masters, which are away."""
        if self._identify is not None and self._discovered and self._masters == masters:
            await self._identify_again(self._identify)
        return set(self._masters) != set(masters)

    async def _check_java_master(self, identity: ClusterIdentity) -> None:
        """Identify one of Java's masters, which have no id, by the brokers of its cluster."""
        if self._java_master_checked:
            return
        try:
            answer = await self._master(
                records.BrokerRecord, "admin_query_broker_configure", {}, post=False
            )
        except (RefusedError, ProtocolError) as error:
            raise self._unproven(error.text) from error
        named: set[tuple[int, str, int]] = set()
        for record in answer.data:
            for port in (record.broker_port, record.broker_tls_port):
                named.add((record.broker_id, record.broker_ip, port))
        if not identity.brokers:
            raise self._unproven("the cluster has no brokers to identify it by")
        if missing := identity.brokers - named:
            number, host, port = min(missing)
            raise self._unproven(f"it does not know broker {number} at {host}:{port}")
        self._java_master_checked = True

    async def _master_id(self) -> str:
        try:
            api = await self._call_first_master("admin_query_master_group_info")
        except (RefusedError, ProtocolError) as error:
            raise self._unproven(error.text) from error
        return api.master_id

    async def _call_first_master(self, method: str) -> WebApi:
        """Call the first master that can be reached; later calls begin with it."""
        masters = tuple(self._masters)
        for endpoint in masters:
            api = self._api(endpoint)
            try:
                await api.call(msgspec.Raw, method, {})
            except UnavailableError as error:
                if endpoint is masters[-1]:
                    self._add_hint(error)
                    raise
                continue
            self._prefer(endpoint)
            return api
        raise UsageError("There is no master.")

    def _unproven(self, why: str) -> UsageError:
        master = self._identity.server if self._identity is not None else "?"
        return UsageError(
            f"The administration at {self._masters[0].server} does not prove that it belongs to "
            f"the cluster {self._cluster} with the master {master}: {why.rstrip('.')}. "
            "Nothing was changed.",
            hint="Give its address: admin='http://host:port', or --admin on the command line.",
        )

    async def check_broker(self, broker: BrokerRecord, topic: str) -> None:
        """Check that a broker's administration belongs to the broker that the master lists.

        Raises:
            UsageError: it belongs to another broker. Java's brokers do not report their id, and
                are trusted.
            UnavailableError: it does not answer, or has no administration.
        """
        api = self.broker(broker)
        await api.call(msgspec.Raw, "admin_query_pubinfo", {"topicName": topic})
        if (
            api.broker_id
            and api.broker_id != f"{broker.broker_id}:{broker.broker_ip}:{broker.broker_port}"
        ):
            raise UsageError(
                f"The administration at {api.endpoint.server} belongs to broker {api.broker_id}, "
                f"not to broker {broker.broker_id} at {broker.address}. Nothing was changed.",
                hint="Is that broker running, and did it register with the right port?",
            )

    def _api(self, endpoint: Endpoint) -> WebApi:
        return WebApi(endpoint, self._tls, self._timeout_ms, self._authorization)

    def _authorization(self) -> str:
        """The Authorization header for a node with accounts; "" for none."""
        if self._signer is not None:
            return f"TubeMQ {self._signer.for_broker()}"
        token = self._given_token or ""
        # Any other one is in the form only, as Java's masters expect it.
        return f"Bearer {token}" if token and token.isascii() and token.isprintable() else ""

    def _prefer(self, endpoint: Endpoint) -> None:
        self._masters = [endpoint, *(one for one in self._masters if one is not endpoint)]

    def _add_hint(self, error: CohererError) -> None:
        if self._discovered and isinstance(error, ConnectError):
            error.hint = (
                f"{error.hint} If the administration has another address, give it: "
                "admin='http://host:port', or --admin on the command line."
            ).strip()

    def broker(self, broker: BrokerRecord) -> WebApi:
        """The administration of a broker.

        Raises:
            UnavailableError: it has none.
        """
        if self._check_client is not None:
            self._check_client()
        if not broker.web_port:
            raise UnavailableError(
                f"Broker {broker.broker_id} has no HTTP administration.",
                server=broker.address,
                hint="Was it started with --no-admin?",
            )
        endpoint = Endpoint(
            self._masters[0].scheme, broker.broker_ip, broker.web_port, "/broker.htm"
        )
        return self._api(endpoint)

    async def ask(self, item: type[T], method: str, parameters: Mapping[str, str]) -> Answer[T]:
        """Send a query to a master.

        Raises:
            UnavailableError: no master answers.
            RefusedError: it refuses.
        """
        await self.prepare(changes=False)
        masters = self._masters
        try:
            return await self._master(item, method, parameters, post=False)
        except UnavailableError:
            if not await self._has_moved(masters):
                raise
        return await self._master(item, method, parameters, post=False)

    async def ask_for(
        self, item: type[T], method: str, field: str, names: Collection[str]
    ) -> list[T]:
        """Query a master for these names; without names, for everything.

        Raises:
            UnavailableError: no master answers.
            RefusedError: it refuses.
        """
        return (await for_names(functools.partial(self.ask, item, method), field, names)).data

    async def page(self, path: str) -> tuple[int, bytes]:
        """Fetch the status and body of a page from a master.

        Raises:
            UnavailableError: no master answers.
        """
        if self._check_client is not None:
            self._check_client()
        await self.prepare(changes=False)
        masters = self._masters
        try:
            return await self._page(path)
        except UnavailableError:
            if not await self._has_moved(masters):
                raise
        return await self._page(path)

    async def _page(self, path: str) -> tuple[int, bytes]:
        error: CohererError | None = None
        for master in self._masters:
            try:
                return await self._api(msgspec.structs.replace(master, path=path)).page()
            except UnavailableError as failure:
                error = failure
        raise error or UnavailableError("The cluster names no administration.")

    async def change(
        self,
        method: str,
        parameters: Mapping[str, str],
        *,
        allowed_codes: Iterable[int] = (),
        topic: str | None = None,
    ) -> None:
        """Send a change to the master.

        Args:
            allowed_codes: result codes of single items that are not errors.

        Raises:
            UsageError: the master does not prove that it belongs to the cluster; nothing was
                changed.
            UnavailableError: no master answers.
            RefusedError: it refuses, or one of the items failed.
        """
        await self.prepare(changes=True)
        signed = {
            **parameters,
            **self.signature,
            "createUser": self._user,
        }
        answer = await self._master(records.ItemResult, method, signed, post=True)
        for result in answer.data:
            if not result.success and result.err_code not in {*_DONE, *allowed_codes}:
                raise RefusedError(
                    f"{result.err_info.rstrip('!.')}.",
                    server=self._masters[0].server,
                    topic=topic,
                    code=result.err_code,
                    hint=_HINTS.get(result.err_code, ""),
                )

    async def _master(
        self, item: type[T], method: str, parameters: Mapping[str, str], *, post: bool
    ) -> Answer[T]:
        if self._check_client is not None:
            self._check_client()
        # A master that cannot answer is skipped, but a change that may have reached a master is not
        # sent to another one. With an identity, it is only sent to the one that was just verified.
        skipped = (ConnectError, NotActiveError) if post else UnavailableError
        only_first = post and self._identify is not None
        masters = tuple(self._masters[:1] if only_first else self._masters)
        for endpoint in masters:
            try:
                answer = await self._api(endpoint).call(item, method, parameters, post=post)
            except skipped as error:
                if endpoint is masters[-1]:
                    self._add_hint(error)
                    raise
                continue
            self._prefer(endpoint)
            return answer
        raise UsageError("There is no master.")

    async def topics(self, names: Collection[str]) -> list[TopicRecord]:
        """The records of topics that have partitions, sorted by name; without names, of all."""
        found = await self.ask_for(TopicRecord, "admin_query_topic_info", "topicName", names)
        return sorted((one for one in found if one.keys), key=lambda one: one.topic_name)

    async def brokers(self, *, web: bool = False) -> list[BrokerRecord]:
        """The records of the brokers, sorted by id; with `web`, of those with a web port."""
        answer = await self.ask(BrokerRecord, "admin_query_broker_configure", {})
        found = [one for one in answer.data if one.web_port or not web]
        return sorted(found, key=lambda one: one.broker_id)

    def no_topic(self, name: str) -> RefusedError:
        return RefusedError(
            "There is no such topic.",
            server=self.server,
            topic=name,
            code=404,
            hint="`coherer topics list` shows the existing ones.",
        )

    async def groups_at(self, broker: BrokerRecord) -> set[str]:
        """The groups that have offsets at a broker, or read from it."""
        try:
            return await self._group_names(broker)
        except CohererError as error:
            _log.warning("Cannot read the groups of broker %d: %s", broker.broker_id, error)
            return set()

    async def _group_names(self, broker: BrokerRecord) -> set[str]:
        answer = await self.broker(broker).call(records.GroupList, "admin_query_group", {})
        return {name for part in answer.data_set for name in part.group_name}

    async def readers_at(self, broker: BrokerRecord, topic: str) -> set[str]:
        """The groups that have offsets of a topic at a broker."""
        try:
            found = await self.offsets(broker, topic=topic)
        except CohererError as error:
            _log.warning("Cannot read the groups of broker %d: %s", broker.broker_id, error)
            return set()
        return {
            one.group_name
            for one in found
            if any(part.topic_name == topic for part in one.sub_info)
        }

    async def offsets(
        self, broker: BrokerRecord, groups: Collection[str] = (), *, topic: str = ""
    ) -> list[records.GroupOffsets]:
        """The offsets of some groups at a broker, or of all; in one topic, or in all topics.

        Java's broker fails as long as one of these groups has members but has not been given any
        message (queryGroupOffset in DefaultOffsetManager). The others are then found by halves;
        such a group is in the list without offsets.

        Raises:
            CohererError: the broker does not answer, or refuses otherwise.
        """
        about = {"topicName": topic} if topic else {}

        def ask(groups: Mapping[str, str]) -> Awaitable[Answer[records.GroupOffsets]]:
            return self.broker(broker).call(
                records.GroupOffsets, "admin_query_offset", {**about, **groups}
            )

        try:
            return (await for_names(ask, "groupName", groups)).data_set
        except RefusedError as error:
            if error.code != FAILED:
                raise
        if len(groups) == 1:
            return [records.GroupOffsets(name) for name in groups]
        names = sorted(groups or await self._group_names(broker))
        middle = len(names) // 2
        halves = [half for half in (names[:middle], names[middle:]) if half]
        found = await asyncio.gather(*(self.offsets(broker, half, topic=topic) for half in halves))
        return list(itertools.chain.from_iterable(found))

    async def unread(
        self, broker: BrokerRecord, groups: Collection[str]
    ) -> list[records.GroupOffsets]:
        """The topics of groups at a broker, with the ages of unread messages; empty if unknown."""
        parameters = {"groupName": ",".join(sorted(groups)), "unread": "true"}
        try:
            answer = await self.broker(broker).call(
                records.GroupOffsets, "admin_query_offset", parameters
            )
        except CohererError as error:
            _log.info("Broker %d does not report unread messages: %s", broker.broker_id, error)
            return []
        return answer.data_set

    async def ends(
        self, broker: BrokerRecord, topics: Collection[str]
    ) -> records.BrokerAnswers | None:
        """The offsets of the topics of a broker, without groups; None if it does not answer."""
        try:
            ranges = await self.ranges(broker, topics)
        except CohererError as error:
            _log.warning("Cannot read the offsets of broker %d: %s", broker.broker_id, error)
            return None  # its partitions are shown as unknown
        return records.BrokerAnswers(ranges, [], [])

    async def ranges(
        self, broker: BrokerRecord, topics: Collection[str]
    ) -> Answer[records.TopicOffsetRanges]:
        """The oldest offset and the end of each partition of these topics, or of all."""
        call = functools.partial(
            self.broker(broker).call, records.TopicOffsetRanges, "admin_query_pubinfo"
        )
        return await for_names(call, "topicName", topics)

    async def owners(self, broker: BrokerRecord, groups: Collection[str]) -> list[records.Owner]:
        """The reader of each partition of a broker, for these groups or for all."""
        call = functools.partial(
            self.broker(broker).call, records.Owner, "admin_query_consumer_regmap"
        )
        return (await for_names(call, "groupName", groups)).data_set


def _masters_of(identity: ClusterIdentity) -> list[Endpoint]:
    """The addresses of a cluster's administration: the reported one, or Java's default.

    Raises:
        UnavailableError: the master has no administration.
    """
    if not identity.master_id:
        return [Endpoint.parse(part) for part in default_url(identity.hosts).split(",")]
    if not identity.web_port:
        raise UnavailableError(
            "This master has no HTTP administration.",
            server=identity.server,
            hint="Was it started with --no-admin?",
        )
    return [Endpoint("http", identity.host, identity.web_port)]


def numbers(ids: Iterable[int]) -> str:
    """The ids of brokers, as a parameter."""
    return ",".join(map(str, sorted(ids)))


def listed(
    groups: Iterable[str], wanted: Container[str] = (), *, system: bool = False
) -> list[str]:
    """Groups to show, sorted. Readers leave theirs behind at Java's brokers."""
    hidden = (READER_GROUP_PREFIX,) if system else (READER_GROUP_PREFIX, SYSTEM_GROUP_PREFIX)
    return sorted(name for name in groups if name in wanted or not name.startswith(hidden))
