"""The HTTP calls of TubeMQ's administration, and the proof that they reach the client's cluster.

Rules:

* Masters are asked in turn; the one that answered is asked first the next time.
* Before each change, the master that will get it has to prove that it belongs to the client's
  cluster: Coherer's repeats the random name that it told the client, Java's has to name the
  cluster's own brokers.
* A call that may have reached a master is not sent to another one.

A client gets to know its cluster (`introduce`) as a producer without topics that registers and
leaves. The answer names the cluster's brokers; Coherer's master adds where its HTTP administration
is and which master it is. Java's masters do not, and Java's producers ignore both.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from coherer import _net as net
from coherer._client.tubemq import admin_records as records
from coherer._client.tubemq.admin_records import BrokerState
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Signer, checked, client_id
from coherer._client.tubemq.webapi import Answer, Endpoint, WebApi
from coherer._common.logs import Log
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


class Introduction(msgspec.Struct, frozen=True):
    """A cluster's word about itself.

    Args:
        server: the active master, as `host:port`.
        host: its address, as we reached it. Not its name, which an administration may not know
            as one of its own.
        hosts: the host of the active master first, as it was given, then those of the others.
        master_id: the random name of this run of the master; "" from Java's.
        web_port: where its HTTP administration is; 0 from Java's, or where there is none.
        brokers: number, host and port of each broker.
    """

    server: str
    host: str
    hosts: tuple[str, ...]
    master_id: str
    web_port: int
    brokers: frozenset[tuple[int, str, int]]


async def introduce(cluster: Cluster) -> Introduction:
    """Ask the active master.

    Raises:
        RefusedError: it asks for an account, and none or a wrong one is given.
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
        _log.info("The master did not take the end of %s: %s", name, error)
    first = server.rpartition(":")[0]
    peer = (await masters.link()).connection.peer_host
    brokers = (BrokerInfo.parse(text, tls=cluster.secure) for text in answer.brokerInfos)
    return Introduction(
        server=server,
        host=peer or first,
        hosts=tuple(dict.fromkeys([first, *(host for host, _ in masters.addresses)])),
        master_id=answer.masterId,
        web_port=answer.webPort,
        brokers=frozenset((broker.id, broker.host, broker.port) for broker in brokers),
    )


T = TypeVar("T")

NOT_EXIST = 401
NO_GROUP = 404
EXISTED = 402
ILLEGAL_STATUS = 406
_DONE = frozenset({200, 201})
"""errCode of an item of a modification (see also `coherer._rules.tubemq.configuration.OpCode`)."""

_NEXT = {
    NOT_EXIST: "Does the master know that broker, and is it the right master?",
    EXISTED: "Where that is all right, say exist_ok, on the command line --if-missing.",
}
"""What to do after some of them."""

JAVA_TOKEN: Final = "abc"  # noqa: S105 - the value that Java ships
AUTHOR: Final = "coherer"
_PORT = 8080


def usual_url(hosts: Iterable[str]) -> str:
    """Where the administration of Java's masters usually is: port 8080 of each.

    >>> usual_url(["a", "::1", "a"])
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
        introduce: Callable[[], Awaitable[Introduction]] | None,
        check: Callable[[], None] | None,
    ) -> None:
        if url is None and introduce is None:
            raise UsageError("Where is the administration?", hint="Give a URL: http://host:8080.")
        self._check_client = check
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

    @property
    def server(self) -> str:
        """The masters, the one that is asked first at the beginning; or the cluster's URL."""
        return ",".join(master.server for master in self._masters) or self._cluster

    @property
    def signature(self) -> dict[str, str]:
        """What a change shows beside its parameters."""
        return {"confModAuthToken": self._token, "modifyUser": self._user}

    async def prepare(self, *, changes: bool) -> None:
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

    async def check_broker(self, broker: BrokerState, topic: str) -> None:
        """Make sure that a broker's administration is that of the broker that the master means.

        Raises:
            UsageError: it is that of another one. Java's brokers do not say, and are believed.
        """
        api = self.broker(broker)
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

    def broker(self, broker: BrokerState) -> WebApi:
        """The administration of a broker."""
        if self._check_client is not None:
            self._check_client()
        endpoint = Endpoint(self._masters[0].scheme, broker.host, broker.web_port, "/broker.htm")
        return self._api(endpoint)

    async def ask(self, item: type[T], method: str, parameters: Mapping[str, str]) -> Answer[T]:
        """Ask a master a question.

        Raises:
            UnavailableError: no master answers.
            RefusedError: it refuses.
        """
        await self.prepare(changes=False)
        return await self._master(item, method, parameters, post=False)

    async def change(
        self,
        method: str,
        parameters: Mapping[str, str],
        *,
        pardoned: Iterable[int] = (),
        topic: str | None = None,
    ) -> None:
        """Have the master change something.

        Args:
            method: what.
            parameters: of the change.
            pardoned: result codes of single items that are no errors.
            topic: for errors.

        Raises:
            UsageError: the master does not prove to be the cluster's; nothing was changed.
            UnavailableError: no master answers.
            RefusedError: it refuses, or one of the items failed.
        """
        await self.prepare(changes=True)
        signed = {
            **parameters,
            **self.signature,
            "createUser": self._user,
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
