"""Seeing to brokers and name servers: settings, accounts, statistics, connections (rocketmq 12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from coherer._client.rocketmq.admin_records import BrokerState, MemberState
from coherer._client.rocketmq.admin_servers import Asking, unknown_broker
from coherer._common.logs import Log
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.bodies import (
    AclConfig,
    BrokerStats,
    ConsumerStatus,
    ConsumeTimeSpan,
    GroupList,
    KVTable,
    Offsets,
    ProducerConnection,
    QueueTimeSpan,
    RunningInfo,
)
from coherer._wire.rocketmq.codes import RequestCode, version_name
from coherer._wire.rocketmq.headers import (
    AccessKeyHeader,
    AccountHeader,
    BrokerNameHeader,
    CloneOffsetHeader,
    ConsumerStatusHeader,
    ConsumeTimeSpanHeader,
    KvHeader,
    NamespaceHeader,
    ProducerGroupHeader,
    PutKvHeader,
    RunningInfoHeader,
    TopicHeader,
    ViewStatsHeader,
    WhiteAddressesHeader,
)
from coherer.errors import CohererError, ProtocolError

_log = Log(logging.getLogger(__name__))


class Servers(Asking):
    """The part of administration about the servers."""

    async def brokers(self, *, runtime: bool = True) -> list[BrokerState]:
        """The brokers that the name servers know, in order of their names and ids.

        Args:
            runtime: ask each how it does; who does not answer has no version.
        """
        table = (await self.cluster()).broker_addr_table
        states = [
            BrokerState(name, number, address, broker.cluster or "")
            for name, broker in sorted(table.items())
            for number, address in sorted(broker.broker_addrs.items())
        ]
        if not runtime:
            return states
        return list(await asyncio.gather(*(self._running(state) for state in states)))

    async def _running(self, state: BrokerState) -> BrokerState:
        try:
            answer = await self._ask(state.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.decode(answer.body).table
        except CohererError as error:
            _log.warning("Broker %s does not tell how it does: %s", state.name, error)
            return state
        return BrokerState(
            state.name,
            state.id,
            state.address,
            state.cluster,
            table.get("brokerVersionDesc") or version_name(answer.version),
            _first(table.get("putTps", "")),
            _first(table.get("getTransferedTps", "")),
            table,
        )

    # -- settings

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a master."""
        await self._instance.start()
        answer = await self._ask_broker(broker, RequestCode.GET_BROKER_CONFIG)
        return java_properties.parse(_text(answer.body))

    async def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a master that runs."""
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
        """Keys and values that a name server keeps for others.

        Raises:
            RefusedError: it has none of that namespace; code 22.
        """
        await self._instance.start()
        fields = NamespaceHeader(namespace).fields()
        answer = await self._instance.names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
        return dict(KVTable.decode(answer.body).table)

    async def set_value(self, namespace: str, key: str, value: str | None) -> None:
        """Have all name servers keep a value, or with None no longer."""
        await self._instance.start()
        names = self._instance.names
        if value is None:
            await names.ask_all(RequestCode.DELETE_KV_CONFIG, KvHeader(namespace, key).fields())
        else:
            fields = PutKvHeader(namespace, key, value).fields()
            await names.ask_all(RequestCode.PUT_KV_CONFIG, fields)

    async def set_writable(self, broker: str, *, writable: bool) -> None:
        """Take a broker's permission to be written to, or give it back, at all name servers.

        Raises:
            UnavailableError: no name server knows that broker, or one is away.
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
            RequestTimeoutError: access control is off there: then it does not answer.
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
        """Make or change an account.

        Args:
            access_key: its name, more than 6 characters.
            secret_key: its secret, more than 6 characters.
            admin: whether it may change the cluster.
            address: addresses from which it needs no signature.
            default_topic_perm: `DENY`, `PUB`, `SUB` or `PUB|SUB`, for topics that are not listed.
            default_group_perm: likewise.
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

    # -- who is connected, and what they do

    async def producers(self, group: str) -> list[MemberState]:
        """The connected producers of a group.

        Raises:
            RefusedError: a broker knows no such group.
        """
        await self._instance.start()
        fields = ProducerGroupHeader(group).fields()
        answers = await self._ask_masters(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
        found = {
            one.client_id: MemberState(one.client_id, one.client_addr, one.language, one.version)
            for answer in answers
            for one in ProducerConnection.decode(answer.body).connection_set
        }
        return [found[key] for key in sorted(found)]

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have offsets of it."""
        await self._instance.start()
        fields = TopicHeader(topic).fields()
        answers = await self._ask_masters(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields)
        return sorted({name for one in answers for name in GroupList.decode(one.body).group_list})

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """What a consumer that runs tells of itself.

        Args:
            group: its group.
            client_id: which member.
            stacks: where its threads are, too.

        Raises:
            RefusedError: it is not there, or did not answer in time.
        """
        await self._instance.start()
        fields = RunningInfoHeader(group, client_id, stacks).fields()
        answers = await self._ask_masters(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        return RunningInfo.decode(answers[0].body)

    async def consumer_offsets(self, group: str, topic: str) -> dict[str, Offsets]:
        """Where the members of a group are, as they say themselves: client id to offsets."""
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
        """From when to when there are messages in each queue, and where a group is in it."""
        await self._instance.start()
        fields = ConsumeTimeSpanHeader(topic, group).fields()
        answers = await self._ask_masters(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        decoded = (ConsumeTimeSpan.decode(answer.body) for answer in answers)
        return [span for one in decoded for span in one.consume_time_span_set]

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Have one group stand where another does."""
        await self._instance.start()
        fields = CloneOffsetHeader(source, target, topic).fields()
        await self._ask_masters(RequestCode.CLONE_GROUP_OFFSET, fields)

    async def counter(self, broker: str, name: str, key: str) -> BrokerStats:
        """A counter of a master, `TOPIC_PUT_NUMS` of a topic for example.

        Raises:
            RefusedError: it does not count that.
        """
        await self._instance.start()
        fields = ViewStatsHeader(name, key).fields()
        answer = await self._ask_broker(broker, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        return BrokerStats.decode(answer.body)

    async def clean(self, broker: str) -> None:
        """Have a master delete index files that nobody needs, and topics that are gone."""
        await self._instance.start()
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            await self._ask_broker(broker, code)


def _first(numbers: str) -> float:
    """The first of several numbers; 0 when there is none.

    >>> _first("12.5 3.0 1.0"), _first("")
    (12.5, 0.0)
    """
    try:
        return float(numbers.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return 0.0


def _text(body: bytes | memoryview) -> str:
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("The settings of a server are no UTF-8.") from error
