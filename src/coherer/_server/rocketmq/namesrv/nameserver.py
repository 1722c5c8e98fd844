"""The RocketMQ name server without its sockets.

See docs/protocol/rocketmq.md, sections 2.15 and 9. `NameServer.__init__` has the table of request
codes. A request with an unknown code gets no response, as from Java's name server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._net import Connection, Receiver
from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.routes import (
    UNIT,
    UNIT_SUBSCRIPTION,
    BrokerAddresses,
    BrokerRegistration,
    KeyValueTable,
    QueueData,
    RouteTable,
)
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.namesrv.settings import ORDER_TOPICS, ConfigHandler, NameServerOptions
from coherer._server.rocketmq.permissions import check_complete
from coherer._server.rocketmq.remoting import (
    Channel,
    Handler,
    Refusal,
    RemotingServer,
    without_channel,
)
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq import java_properties as texts
from coherer._wire.rocketmq.codes import FAQ, V3_0_11, V4_9_3, V4_9_4, V5_0_0, ResponseCode
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    NULL,
    AddResult,
    BrokerHeader,
    BrokerNameHeader,
    DataVersionResult,
    RegisterBrokerHeader,
    RegisterBrokerResult,
    WipeResult,
    parse,
)
from coherer.errors import ProtocolError

_log = Log(logging.getLogger(__name__))


class RegistrationHandler:
    """Codes 103, 104, 205, 322 and 327: registrations of brokers, and their write permission."""

    def __init__(
        self, routes: RouteTable, key_values: KeyValueTable, now_ms: Callable[[], int]
    ) -> None:
        self._routes = routes
        self._key_values = key_values
        self._now_ms = now_ms

    def register(self, channel: Channel, request: Command) -> Command:
        """REGISTER_BROKER (103)."""
        header = parse(RegisterBrokerHeader, request.fields)
        if header.body_crc32 and header.body_crc32 != bodies.crc(request.body):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = _body(request, compressed=header.compressed)
        wrapper = body.topic_config_serialize_wrapper
        version = wrapper.data_version
        master = self._routes.register(
            BrokerRegistration(
                cluster=header.cluster_name,
                broker=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                ha_address=header.ha_server_addr or "",
                version=DataVersion(version.counter, version.timestamp),
                topics={
                    name: QueueData(
                        header.broker_name,
                        topic.read_queue_nums,
                        topic.write_queue_nums,
                        topic.perm,
                        topic.topic_sys_flag,
                        managed=topic.tubemq or False,
                    )
                    for name, topic in wrapper.topic_config_table.items()
                },
                filter_servers=body.filter_server_list,
                link=channel,
            ),
            self._now_ms(),
        )
        order = self._key_values.namespace(ORDER_TOPICS)
        fields = RegisterBrokerResult(
            ha_server_addr=master.ha_address or None, master_addr=master.address or None
        ).fields()
        order_body = b"" if order is None else bodies.KVTable(dict(order)).encode()
        return Command(ResponseCode.SUCCESS, fields=fields, body=order_body)

    def unregister(self, request: Command) -> Command:
        """UNREGISTER_BROKER (104)."""
        header = parse(BrokerHeader, request.fields)
        self._routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return Command(ResponseCode.SUCCESS)

    def data_version(self, request: Command) -> Command:
        """QUERY_DATA_VERSION (322): whether topics have changed; if not, a heartbeat."""
        address = request.fields.get("brokerAddr", NULL)
        sent = bodies.DataVersion.decode_or_none(request.body)
        known = self._routes.version(address)
        same = sent is not None and self._routes.unchanged(
            address, DataVersion(sent.counter, sent.timestamp), self._now_ms()
        )
        body = b""
        if known is not None:
            body = bodies.DataVersion(counter=known.counter, timestamp=known.timestamp).encode()
        fields = DataVersionResult(changed=not same).fields()
        return Command(ResponseCode.SUCCESS, fields=fields, body=body)

    def wipe_write(self, request: Command) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER (205): stop sends to a broker."""
        name = parse(BrokerNameHeader, request.fields).broker_name
        count = self._routes.set_writable(name, writable=False)
        return Command(ResponseCode.SUCCESS, fields=WipeResult(wipe_topic_count=count).fields())

    def add_write(self, request: Command) -> Command:
        """ADD_WRITE_PERM_OF_BROKER (327): allow sends to a broker."""
        name = parse(BrokerNameHeader, request.fields).broker_name
        count = self._routes.set_writable(name, writable=True)
        return Command(ResponseCode.SUCCESS, fields=AddResult(add_topic_count=count).fields())


def _body(request: Command, *, compressed: bool) -> bodies.RegisterBody:
    if not request.body:
        return bodies.RegisterBody(filter_server_list=None if request.version < V3_0_11 else [])
    if request.version < V3_0_11:
        wrapper = bodies.TopicConfigs.decode(request.body)
        return bodies.RegisterBody(topic_config_serialize_wrapper=wrapper, filter_server_list=None)
    try:
        return bodies.RegisterBody.read(request.body, compressed=compressed)
    except ProtocolError as error:
        remark = f"Failed to decode RegisterBrokerBody: {error.text}"
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark) from error


class RouteHandler:
    """Codes 105, 106, 206, 216, 224, 304, 311, 312 and 313: routes, clusters and topics."""

    def __init__(self, routes: RouteTable, settings: ConfigHandler) -> None:
        self._routes = routes
        self._settings = settings

    def route(self, request: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC (105): the brokers and queues of a topic.

        Clients from 4.9.4 on, and those that ask for it, get standard JSON, as from Java 4.9.4.
        """
        topic = request.fields.get("topic", NULL)
        found = self._routes.route(topic)
        if found is None:
            remark = f"No topic route info in name server for the topic: {topic}{FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        route = bodies.TopicRoute(
            broker_datas=[_broker_data(broker, request.version) for broker in found.brokers],
            filter_server_table=found.filter_servers,
            order_topic_conf=self._settings.order_of(topic),
            queue_datas=[
                bodies.QueueData(
                    broker_name=queues.broker,
                    perm=queues.perm,
                    read_queue_nums=queues.read_queues,
                    topic_sys_flag=queues.sys_flag,
                    write_queue_nums=queues.write_queues,
                )
                for queues in found.queues
            ],
        )
        asked = request.fields.get("acceptStandardJsonOnly", "").lower() == "true"
        standard = asked or request.version >= V4_9_4
        body = route.encode_standard() if standard else route.encode()
        return Command(ResponseCode.SUCCESS, body=body)

    def clusters(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_BROKER_CLUSTER_INFO (106): clusters and their brokers."""
        info = bodies.ClusterInfo(
            broker_addr_table={n: _broker_data(b) for n, b in self._routes.brokers.items()},
            cluster_addr_table=self._routes.clusters,
        )
        return Command(ResponseCode.SUCCESS, body=info.encode())

    def topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206): all topics."""
        return _names(self._routes.topics())

    def topics_of_cluster(self, request: Command) -> Command:
        """GET_TOPICS_BY_CLUSTER (224): the topics of a cluster; empty if it is unknown."""
        return _names(self._routes.topics_of_cluster(request.fields.get("cluster", "")))

    def system_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): names of clusters and brokers, which are topics."""
        clusters = self._routes.clusters
        names = dict.fromkeys(
            name for cluster, brokers in clusters.items() for name in (cluster, *brokers)
        )
        first = next(iter(self._routes.brokers.values()), None)
        address = first.addresses[min(first.addresses)] if first is not None else None
        return _names(names, address)

    def unit_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_UNIT_TOPIC_LIST (311)."""
        return _names(self._routes.topics_with(UNIT))

    def unit_sub_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""
        return _names(self._routes.topics_with(UNIT_SUBSCRIPTION))

    def unit_sub_only_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""
        return _names(self._routes.topics_with(UNIT_SUBSCRIPTION, without=UNIT))

    def delete_topic(self, request: Command) -> Command:
        """DELETE_TOPIC_IN_NAMESRV (216): succeeds even if there is no such topic."""
        self._routes.delete_topic(request.fields.get("topic", ""))
        return Command(ResponseCode.SUCCESS)


def _broker_data(broker: BrokerAddresses, version: int = V4_9_3) -> bodies.BrokerData:
    """Describe a broker to a client; Rust's requires the member that RocketMQ 5 has added."""
    return bodies.BrokerData(
        broker_addrs=dict(sorted(broker.addresses.items())),  # the master first, as from Java's
        broker_name=broker.name,
        cluster=broker.cluster,
        enable_acting_master=False if version >= V5_0_0 else None,
    )


def _names(names: Iterable[str], broker_address: str | None = None) -> Command:
    body = bodies.TopicList(broker_addr=broker_address, topic_list=list(names)).encode()
    return Command(ResponseCode.SUCCESS, body=body)


KEY_VALUE_FILE: Final = "kvConfig.json"
SETTINGS_FILE: Final = "namesrv.properties"
CHECKS: Final[dict[str, Callable[[bytes], object]]] = {
    KEY_VALUE_FILE: KeyValueTable.load,
    SETTINGS_FILE: partial(texts.parse_file, SETTINGS_FILE),
}
"""Functions that raise if the content of a file is invalid."""

SCAN_MS: Final = 10_000
"""How often expired brokers and idle connections are searched for."""


class NameServer:
    """Answers brokers and clients: `net.listen(host, port, name_server.make)`.

    Args:
        load: returns the content of a file; None if it does not exist.
        files: writes files.
        now_ms: a monotonic clock.
        access: the accounts; None without access control. Changes need an administrator's account.

    Attributes:
        handlers: handlers by request code.
    """

    def __init__(
        self,
        options: NameServerOptions,
        load: Callable[[str], bytes | None],
        files: DeferredSaver,
        *,
        now_ms: Callable[[], int],
        access: Access | None = None,
    ) -> None:
        self.routes = RouteTable()
        key_values = _key_values(load(KEY_VALUE_FILE))
        self.settings = settings = ConfigHandler(
            options,
            key_values,
            load(SETTINGS_FILE),
            lambda: files.save(KEY_VALUE_FILE, key_values.dump),
            lambda data: files.save(SETTINGS_FILE, lambda: data),
        )
        registry = RegistrationHandler(self.routes, key_values, now_ms)
        lookups = RouteHandler(self.routes, settings)
        anyone: dict[int, Callable[[Command], Command]] = {
            Code.PUT_KV_CONFIG: settings.put,
            Code.GET_KV_CONFIG: settings.get,
            Code.DELETE_KV_CONFIG: settings.delete,
            Code.GET_KVLIST_BY_NAMESPACE: settings.namespace,
            Code.UPDATE_NAMESRV_CONFIG: settings.update,
            Code.GET_NAMESRV_CONFIG: settings.show,
            Code.UNREGISTER_BROKER: registry.unregister,
            Code.QUERY_DATA_VERSION: registry.data_version,
            Code.WIPE_WRITE_PERM_OF_BROKER: registry.wipe_write,
            Code.ADD_WRITE_PERM_OF_BROKER: registry.add_write,
            Code.GET_ROUTEINFO_BY_TOPIC: lookups.route,
            Code.GET_BROKER_CLUSTER_INFO: lookups.clusters,
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lookups.topics,
            Code.GET_TOPICS_BY_CLUSTER: lookups.topics_of_cluster,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: lookups.system_topics,
            Code.GET_UNIT_TOPIC_LIST: lookups.unit_topics,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST: lookups.unit_sub_topics,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lookups.unit_sub_only_topics,
            Code.DELETE_TOPIC_IN_NAMESRV: lookups.delete_topic,
        }
        self.handlers: dict[int, Handler] = {
            Code.REGISTER_BROKER: registry.register,
            **{code: without_channel(handler) for code, handler in anyone.items()},
        }
        check_complete(self.handlers)
        self._remoting = RemotingServer(
            self.handlers,
            closed=self._closed,
            check=None if access is None else access.check,
            files=files,
            silent=True,
            now_ms=now_ms,
        )
        self._now_ms = now_ms
        self.upkeep = self._steps(access)

    def make(self, connection: Connection) -> Receiver:
        """Create the receiver of a new connection."""
        return self._remoting.make(connection)

    def tick(self) -> None:
        """Run the periodic steps; call it every second or so."""
        self.upkeep.tick()

    def _steps(self, access: Access | None) -> Upkeep:
        upkeep = Upkeep(
            Step("closing idle connections", self._remoting.tick),
            Step("expiring registered brokers", self._expire, SCAN_MS),
            now_ms=self._now_ms,
        )
        if access is not None:
            upkeep.add(Step("reloading ACL files", lambda: access.tick(self._now_ms())))
        return upkeep

    def _expire(self) -> None:
        for link in self.routes.expire(self._now_ms()):
            if isinstance(link, Channel):
                _log.warning(
                    "Removed the broker at %s: its registration has expired",
                    link.peer,
                    peer=link.peer,
                )
                link.close()

    def _closed(self, channel: Channel) -> None:
        self.routes.lost(channel, channel.peer)


def _key_values(data: bytes | None) -> KeyValueTable:
    try:
        return KeyValueTable() if data is None else KeyValueTable.load(data)
    except msgspec.DecodeError as error:
        _log.plain.warning("%s is invalid and starts empty: %s", KEY_VALUE_FILE, error)
        return KeyValueTable()
