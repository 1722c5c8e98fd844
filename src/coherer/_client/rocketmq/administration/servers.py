"""Administration of brokers and name servers (docs/protocol/rocketmq.md, section 12).

Settings, accounts, statistics and connections, and how the administration calls servers: each
master of the cluster, or a broker by its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from coherer import admin
from coherer._client.rocketmq.administration.runtime import with_runtime
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NO_FIELDS, Fields
from coherer._client.rocketmq.routing import MASTER
from coherer._common.logs import Log
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.bodies import (
    AclConfig,
    BrokerStats,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumerStatus,
    ConsumeTimeSpan,
    GroupList,
    KVTable,
    LockBatch,
    LockedBatch,
    Offsets,
    ProducerConnection,
    QueueTimeSpan,
    RunningInfo,
    TopicConfig,
    TopicConfigs,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused, version_name
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    AccessKeyHeader,
    AccountHeader,
    BrokerNameHeader,
    CloneOffsetHeader,
    ConsumerStatusHeader,
    ConsumeTimeSpanHeader,
    GroupHeader,
    KvHeader,
    NamespaceHeader,
    ProducerGroupHeader,
    PutKvHeader,
    RunningInfoHeader,
    TopicHeader,
    ViewStatsHeader,
    WhiteAddressesHeader,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, ProtocolError, RefusedError, UnavailableError

_log = Log(logging.getLogger(__name__))


class ServerAdmin:
    """Administration of the servers; `Admin` adds topics, groups and messages.

    Args:
        instance: the connections and routes.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._timeout_ms = instance.options.timeout_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._instance.options.servers!r})"

    async def cluster(self) -> ClusterInfo:
        """All registered brokers and clusters."""
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def _masters(self, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """The addresses of masters by broker name; of these brokers, or of all.

        Raises:
            UnavailableError: one of these brokers is not registered, or none is.
        """
        table = (await self.cluster()).broker_addr_table
        masters = {
            name: broker.broker_addrs[MASTER]
            for name, broker in table.items()
            if MASTER in broker.broker_addrs
        }
        if brokers is None:
            if not masters:
                raise UnavailableError("No broker is registered.", hint="Is one up?")
            return masters
        missing = sorted(set(brokers) - masters.keys())
        if missing:
            raise unknown_broker(self._instance, ", ".join(missing))
        return {name: masters[name] for name in brokers}

    async def _ask(
        self,
        address: str,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        accepted: Container[int] = (ResponseCode.SUCCESS,),
        broker: str = "",
    ) -> Command:
        link = await self._instance.link(address, fast=True)
        answer = await link.call(code, fields, body, timeout_ms=self._timeout_ms, broker=broker)
        if answer.code not in accepted:
            topic = fields.get("topic")
            raise refused(answer.code, answer.remark, server=link.server, topic=topic)
        return answer

    async def _ask_broker(
        self,
        broker: str,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        accepted: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Send a request to the master of this name."""
        address = self._instance.routes.masters.get(broker)
        if address is None:
            address = (await self._masters([broker]))[broker]
        return await self._ask(address, code, fields, body, accepted=accepted, broker=broker)

    async def _ask_each(
        self, addresses: Iterable[str], code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> list[Command]:
        asked = (self._ask(address, code, fields, body) for address in addresses)
        return list(await asyncio.gather(*asked))

    async def _ask_masters(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        brokers: Iterable[str] | None = None,
    ) -> list[Command]:
        masters = await self._masters(brokers)
        return await self._ask_each(masters.values(), code, fields, body)

    # -- brokers

    async def brokers(self, *, runtime: bool = True) -> list[admin.Broker]:
        """The registered brokers, sorted by name and id.

        Args:
            runtime: ask each broker for its state; without it, `status` and the figures are None.
        """
        table = (await self.cluster()).broker_addr_table
        states = [
            admin.Broker(
                name,
                number,
                address,
                role="master" if number == MASTER else "slave",
                cluster=broker.cluster or None,
            )
            for name, broker in sorted(table.items())
            for number, address in sorted(broker.broker_addrs.items())
        ]
        if not runtime:
            return states
        return list(await asyncio.gather(*(self._running(state) for state in states)))

    async def _running(self, broker: admin.Broker) -> admin.Broker:
        try:
            answer = await self._ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.decode(answer.body).table
        except CohererError as error:
            _log.warning("Cannot read the state of broker %s: %s", broker.name, error)
            return replace(broker, status="silent")
        return with_runtime(broker, table, answer.version)

    async def index_delay_bytes(self) -> dict[str, int | None]:
        """How far the indexes of the masters are behind their logs, by broker name.

        None if a broker does not report it. Usually the index is a few milliseconds behind; after
        a crash it can take seconds to catch up.
        """
        states = await self.brokers()
        return {
            state.name: int(text) if (text := state.reported.get("dispatchBehindBytes")) else None
            for state in states
            if state.id == MASTER
        }

    # -- locks: section 2.10

    async def lock_queues(self, group: str, queues: Collection[Queue]) -> list[Queue]:
        """Lock queues for this client, or renew its locks; returns those that it owns now.

        A lock ends after a minute without renewal.

        Args:
            group: the group that holds the locks.
            queues: the queues.
        """
        return [
            queue
            for answer in await self._lock(RequestCode.LOCK_BATCH_MQ, group, queues)
            for queue in LockedBatch.decode(answer.body).queues
        ]

    async def unlock_queues(self, group: str, queues: Collection[Queue]) -> None:
        """Release locks of this client."""
        await self._lock(RequestCode.UNLOCK_BATCH_MQ, group, queues)

    async def _lock(self, code: int, group: str, queues: Collection[Queue]) -> list[Command]:
        await self._instance.start()
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        client_id = self._instance.client_id
        return [
            await self._ask_broker(
                broker,
                code,
                body=LockBatch(
                    client_id=client_id, consumer_group=group, queues=sorted(some)
                ).encode(),
            )
            for broker, some in by_broker.items()
        ]

    # -- settings

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a master."""
        await self._instance.start()
        answer = await self._ask_broker(broker, RequestCode.GET_BROKER_CONFIG)
        return java_properties.parse(_text(answer.body))

    async def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running master."""
        await self._instance.start()
        body = java_properties.compose(changes).encode()
        await self._ask_broker(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def names_config(self) -> dict[str, str]:
        """The settings of a name server."""
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_NAMESRV_CONFIG)
        return java_properties.parse(_text(answer.body))

    async def set_names_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers."""
        await self._instance.start()
        body = java_properties.compose(changes).encode()
        await self._instance.names.ask_all(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    async def values(self, namespace: str) -> dict[str, str]:
        """The configuration values in a namespace of the name servers.

        Raises:
            RefusedError: the namespace does not exist; code 22.
        """
        await self._instance.start()
        fields = NamespaceHeader(namespace).fields()
        answer = await self._instance.names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
        return dict(KVTable.decode(answer.body).table)

    async def set_value(self, namespace: str, key: str, value: str | None) -> None:
        """Set a configuration value at all name servers, or delete it with None."""
        await self._instance.start()
        names = self._instance.names
        if value is None:
            await names.ask_all(RequestCode.DELETE_KV_CONFIG, KvHeader(namespace, key).fields())
        else:
            fields = PutKvHeader(namespace, key, value).fields()
            await names.ask_all(RequestCode.PUT_KV_CONFIG, fields)

    async def set_writable(self, broker: str, *, writable: bool) -> None:
        """Revoke or restore a broker's write permission at all name servers.

        Raises:
            UnavailableError: the broker is not registered, or a name server is down.
        """
        await self._instance.start()
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        if writable:
            code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        answers = await self._instance.names.ask_all(code, BrokerNameHeader(broker).fields())
        if all({*answer.fields.values()} == {"0"} for answer in answers):
            raise unknown_broker(self._instance, broker)

    # -- accounts

    async def accounts(self, broker: str) -> AclConfig:
        """The accounts of a master, secrets included.

        Raises:
            RequestTimeoutError: the broker does not answer, because its access control is off.
        """
        await self._instance.start()
        answer = await self._ask_broker(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return AclConfig.decode(answer.body)

    async def set_account(
        self,
        access_key: str,
        secret_key: str,
        *,
        admin: bool = False,
        address: str = "",
        default_topic_perm: str = "DENY",
        default_group_perm: str = "DENY",
        topic_perms: Sequence[str] = (),
        group_perms: Sequence[str] = (),
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create or change an account.

        Args:
            access_key: the name, more than 6 characters.
            secret_key: the secret, more than 6 characters.
            admin: whether it may change the cluster.
            address: addresses from which it needs no signature.
            default_topic_perm: `DENY`, `PUB`, `SUB` or `PUB|SUB`, for topics that are not listed.
            default_group_perm: the same for groups.
            topic_perms: as `topic=PUB|SUB`.
            group_perms: as `group=SUB`.
            brokers: names of brokers; all masters when None.
        """
        await self._instance.start()
        header = AccountHeader(
            access_key,
            secret_key,
            address or None,
            admin,
            default_topic_perm,
            default_group_perm,
            ",".join(topic_perms) or None,
            ",".join(group_perms) or None,
        )
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        await self._ask_masters(code, header.fields(), brokers=brokers)

    async def delete_account(self, access_key: str, brokers: Iterable[str] | None = None) -> None:
        """Delete an account."""
        await self._instance.start()
        fields = AccessKeyHeader(access_key).fields()
        await self._ask_masters(RequestCode.DELETE_ACL_CONFIG, fields, brokers=brokers)

    async def set_white_addresses(
        self, addresses: Sequence[str], brokers: Iterable[str] | None = None
    ) -> None:
        """Set the addresses that need no account."""
        await self._instance.start()
        fields = WhiteAddressesHeader(",".join(addresses)).fields()
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        await self._ask_masters(code, fields, brokers=brokers)

    # -- connected clients

    async def consumers(self, group: str) -> ConsumerConnection | None:
        """The connected consumers of a group and their subscriptions; None if none is connected.

        Connections come from all masters, subscriptions from one master that has members.
        """
        await self._instance.start()
        found: ConsumerConnection | None = None
        connections: dict[str, Connection] = {}
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        fields = GroupHeader(group).fields()
        for address in (await self._masters()).values():
            try:
                answer = await self._ask(address, code, fields)
            except RefusedError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            online = ConsumerConnection.decode(answer.body)
            found = found or online
            connections |= {one.client_id: one for one in online.connection_set}
        if found is None:
            return None
        return replace(found, connection_set=[connections[key] for key in sorted(connections)])

    async def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """The settings of all topics of a master, by topic."""
        await self._instance.start()
        answer = await self._ask_broker(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigs.decode(answer.body).topic_config_table

    async def producers(self, group: str) -> list[admin.Member]:
        """The connected producers of a group.

        Raises:
            RefusedError: a broker does not know the group.
        """
        await self._instance.start()
        fields = ProducerGroupHeader(group).fields()
        answers = await self._ask_masters(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
        found = {
            one.client_id: admin.Member(
                one.client_id,
                group,
                "producer",
                one.client_addr,
                one.language,
                version_name(one.version) if one.version else None,
            )
            for answer in answers
            for one in ProducerConnection.decode(answer.body).connection_set
        }
        return [found[key] for key in sorted(found)]

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have offsets in it."""
        await self._instance.start()
        fields = TopicHeader(topic).fields()
        answers = await self._ask_masters(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields)
        return sorted({name for one in answers for name in GroupList.decode(one.body).group_list})

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """The state of a running consumer, as it reports it.

        Args:
            group: its group.
            client_id: the member.
            stacks: whether to include the stacks of its threads.

        Raises:
            RefusedError: it is not connected, or did not answer in time.
        """
        await self._instance.start()
        fields = RunningInfoHeader(group, client_id, stacks).fields()
        answers = await self._ask_masters(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        return RunningInfo.decode(answers[0].body)

    async def consumer_offsets(self, group: str, topic: str) -> dict[str, Offsets]:
        """The offsets of a group's members, as they report them: client id to offsets."""
        await self._instance.start()
        fields = ConsumerStatusHeader(topic=topic, group=group).fields()
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answers = await self._ask_masters(code, fields)
        found: dict[str, Offsets] = {}
        for answer in answers:
            for client_id, offsets in ConsumerStatus.decode(answer.body).consumer_table.items():
                found.setdefault(client_id, {}).update(offsets)
        return found

    async def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """The time span of the messages in each queue, and the group's position in it."""
        await self._instance.start()
        fields = ConsumeTimeSpanHeader(topic, group).fields()
        answers = await self._ask_masters(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        decoded = (ConsumeTimeSpan.decode(answer.body) for answer in answers)
        return [span for one in decoded for span in one.consume_time_span_set]

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of one group to another."""
        await self._instance.start()
        fields = CloneOffsetHeader(source, target, topic).fields()
        await self._ask_masters(RequestCode.CLONE_GROUP_OFFSET, fields)

    async def counter(self, broker: str, name: str, key: str) -> BrokerStats:
        """A counter of a master, `TOPIC_PUT_NUMS` of a topic for example.

        Raises:
            RefusedError: there is no such counter.
        """
        await self._instance.start()
        fields = ViewStatsHeader(name, key).fields()
        answer = await self._ask_broker(broker, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        return BrokerStats.decode(answer.body)

    async def clean(self, broker: str) -> None:
        """Have a master delete expired index files and unused topics."""
        await self._instance.start()
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            await self._ask_broker(broker, code)


def unknown_broker(instance: Instance, name: str) -> UnavailableError:
    """The error for a broker without a registered master."""
    return UnavailableError(
        f"No master of {name} is registered.",
        server=instance.options.servers,
        hint="Is the name right, and is it up?",
    )


def _text(body: bytes | memoryview) -> str:
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("The settings of a server are not valid UTF-8.") from error
