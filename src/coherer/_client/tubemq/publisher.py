"""A producer's registration with the master, and the master's lists of topics and brokers.

Rules:

* Register once, then send a heartbeat in every interval and whenever a topic is published. The
  answer to each heartbeat lists the writable partitions of all published topics.
* The answer lists the brokers only if the checksum in the request differs from the list's. The
  client echoes the checksum that the master sent. After `LIST_MS_MAX` without a list it requests a
  full one.
* Code 411: the master has forgotten the producer; register again. Code 415: after more than
  `REFUSALS_MAX` in a row, heartbeats pause for `REFUSED_PAUSE_MS`. Code 201: the master is not
  ready; its lists are ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from coherer import limits
from coherer._client.engine.tasks import cancel
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, checked, client_id, retry
from coherer._common.logs import Log
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import TOPIC_RULE, BrokerInfo, TopicInfo, is_tubemq_topic
from coherer.errors import ClosedError, CohererError, RefusedError

_log = Log(logging.getLogger(__name__))

LIST_MS_MAX: Final = 2 * 3600 * 1000
REFUSALS_MAX: Final = 5
REFUSED_PAUSE_MS: Final = 60_000

FINAL_CODES: Final = frozenset({ResultCode.BAD_REQUEST, ResultCode.CERTIFICATE_FAILURE})
"""Refusals that are permanent."""


class Publisher:
    """The registration of a producer.

    Args:
        changed: called after the lists below were updated.

    Attributes:
        client_id: the producer's id at the servers.
        local_host: the client's address as the master sees it.
        topics: the published topics.
        brokers: broker id to address.
        infos: topic to its writable partitions, for those that have any.
        credentials: for brokers.
        max_bytes: the maximum size of a message, unless its topic has its own.
    """

    def __init__(self, cluster: Cluster, changed: Callable[[], None] = lambda: None) -> None:
        self.client_id = ""
        self.local_host = ""
        self.topics: set[str] = set()
        self.brokers: dict[int, BrokerInfo] = {}
        self.infos: dict[str, TopicInfo] = {}
        self.credentials = cluster.credentials()
        self.max_bytes = limits.MESSAGE_BYTES_DEFAULT
        self._read: tuple[list[str], dict[int, BrokerInfo]] | None = None
        self._cluster = cluster
        self._changed = changed
        self._check_sum = -1
        self._config_id = UNDEFINED
        self._heard = 0.0  # when the master answered last, by the loop's clock
        self._listed = 0.0  # when the list of brokers came, by the loop's clock
        self._lock = asyncio.Lock()  # one request to the master at a time
        self._heartbeat_task: asyncio.Task[None] | None = None

    @property
    def registered(self) -> bool:
        """Whether `start` has succeeded."""
        return bool(self.client_id)

    @property
    def silent_ms(self) -> int:
        """The time since the master last answered."""
        return int((asyncio.get_running_loop().time() - self._heard) * 1000)

    async def start(self, *, heartbeats: bool = True) -> None:
        """Register with the master; retried until the client's timeout.

        Args:
            heartbeats: keep the registration alive until `stop`.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master refused.
        """
        timeout_ms = self._cluster.options.timeout_ms
        async with self._lock:
            await retry(
                self._register,
                timeout_ms=timeout_ms,
                final=FINAL_CODES,
                masters=self._cluster.masters,
            )
        if heartbeats:
            self._heartbeat_task = asyncio.create_task(
                self._send_heartbeats(), name="producer heartbeats"
            )

    async def publish(self, topics: Iterable[str]) -> None:
        """Publish topics, and wait until each has a writable partition.

        Raises:
            RefusedError: a topic has no writable partition; code 444.
            UnavailableError: no master could be reached.
            ClosedError: the producer was closed meanwhile.
        """
        wanted = set(topics)
        self.topics |= wanted
        timeout_ms = self._cluster.options.timeout_ms
        final = FINAL_CODES
        if not all(map(is_tubemq_topic, wanted)):  # the master will not create these
            final |= {ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION}

        async def attempt() -> None:
            await self.heartbeat()
            for topic in sorted(wanted - self.infos.keys()):
                created = is_tubemq_topic(topic)
                raise RefusedError(
                    "The topic has no writable partition.",
                    server=self._cluster.masters.server,
                    topic=topic,
                    code=ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION,
                    hint="Does it exist, and is one of its brokers online?"
                    if created
                    else f"It does not exist, and cannot be created. {TOPIC_RULE}",
                )

        try:
            await retry(attempt, timeout_ms=timeout_ms, final=final)
        except CohererError:
            self.topics -= wanted - self.infos.keys()
            raise

    async def heartbeat(self) -> None:
        """Send a heartbeat; registers again if the master has forgotten the producer.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master refused.
        """
        async with self._lock:
            if not await self._send_heartbeat():
                _log.info("The master has forgotten producer %s", self.client_id)
                await self._register()
                await self._send_heartbeat()

    def check(self) -> None:
        """Check that the producer is registered.

        Raises:
            ClosedError: `stop` was called.
        """
        if not self.registered:
            raise ClosedError("The producer is closed.")

    def forget(self) -> None:
        """Forget what was published, and what the master has sent; `start` may be called again."""
        self.topics.clear()
        self.brokers, self.infos, self._read = {}, {}, None
        self._check_sum = -1
        self._config_id = UNDEFINED

    async def stop(self) -> None:
        """Unregister. A failure is only logged."""
        await cancel(self._heartbeat_task)
        if not self.registered:
            return
        request = pb.CloseRequestP2M(
            clientId=self.client_id, authInfo=self.credentials.for_master()
        )
        self.client_id = ""
        try:
            await self._cluster.masters.ask(methods.PRODUCER_CLOSE, request, pb.CloseResponseM2P)
        except CohererError as error:
            _log.info("Unregistering a producer failed: %s", error)

    # -- inside

    async def _send_heartbeats(self) -> None:
        refusals = 0
        while True:
            pause_ms = self._cluster.options.heartbeat_ms
            if refusals > REFUSALS_MAX:
                pause_ms = max(pause_ms, REFUSED_PAUSE_MS)
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self.heartbeat()
            except CohererError as error:
                refused = error.code == ResultCode.CERTIFICATE_FAILURE
                refusals = refusals + 1 if refused else 0
                _log.warning(
                    "A heartbeat of producer %s failed: %s",
                    self.client_id,
                    error,
                    about=self.client_id,
                )
            except Exception:  # noqa: BLE001 - without heartbeats the master forgets the producer
                _log.exception(
                    "A heartbeat of producer %s failed", self.client_id, about=self.client_id
                )
            else:
                refusals = 0

    async def _register(self) -> None:
        if not self.local_host:
            self.local_host = await self._cluster.local_host()
        name = self.client_id or client_id(self.local_host)
        request = pb.RegisterRequestP2M(
            clientId=name,
            topicList=sorted(self.topics),
            brokerCheckSum=self._check_sum,
            hostName=self.local_host,
            authInfo=self.credentials.for_master(),
            appdConfig=pb.ApprovedClientConfig(configId=self._config_id),
        )
        masters = self._cluster.masters
        again = self.registered
        answer = await masters.ask(methods.PRODUCER_REGISTER, request, pb.RegisterResponseM2P)
        if again:  # otherwise `stop` has unregistered it meanwhile
            self.check()
        checked(answer, server=masters.server)
        self.client_id = name
        self._update(answer)

    async def _send_heartbeat(self) -> bool:
        """Send a heartbeat; False if the master has forgotten the producer."""
        self.check()
        age = asyncio.get_running_loop().time() - self._listed
        if age * 1000 > LIST_MS_MAX:
            self._check_sum = -1
        request = pb.HeartRequestP2M(
            clientId=self.client_id,
            brokerCheckSum=self._check_sum,
            hostName=self.local_host,
            topicList=sorted(self.topics),
            authInfo=self.credentials.for_master(),
            appdConfig=pb.ApprovedClientConfig(configId=self._config_id),
        )
        masters = self._cluster.masters
        answer = await masters.ask(methods.PRODUCER_HEARTBEAT, request, pb.HeartResponseM2P)
        self.check()
        if answer.errCode == ResultCode.HB_NO_NODE:
            return False
        checked(answer, server=masters.server)
        self._update(answer)
        if answer.errCode != ResultCode.NOT_READY:
            self._read_infos(list(answer.topicInfos))
            self._changed()
        return True

    def _read_infos(self, texts: list[str]) -> None:
        if self._read == (texts, self.brokers):
            return  # each heartbeat brings all topics again, up to 1,024
        self._read = texts, self.brokers
        infos = map(TopicInfo.parse, texts)
        self.infos = {
            info.topic: info for info in infos if info.brokers.keys() & self.brokers.keys()
        }

    def _update(self, answer: pb.RegisterResponseM2P | pb.HeartResponseM2P) -> None:
        self._heard = asyncio.get_running_loop().time()
        if answer.HasField("authorizedInfo"):
            self.credentials.renew(answer.authorizedInfo)
        if answer.HasField("appdConfig"):
            self._config_id = answer.appdConfig.configId
            if answer.appdConfig.HasField("maxMsgSize"):
                limit = answer.appdConfig.maxMsgSize
                self.max_bytes = min(
                    max(limit, limits.MESSAGE_BYTES_DEFAULT), limits.MESSAGE_BYTES_MAX
                )
        if answer.errCode != ResultCode.NOT_READY and answer.brokerInfos:
            secure = self._cluster.secure
            infos = (BrokerInfo.parse(text, tls=secure) for text in answer.brokerInfos)
            self.brokers = {info.id: info for info in infos}
            self._check_sum = answer.brokerCheckSum
            self._listed = asyncio.get_running_loop().time()
