"""What brokers say to a name server, and permissions taken from them (9.2, 9.5)."""

from __future__ import annotations

from collections.abc import Callable

from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.routes import KeyValueTable, QueueData, Registration, RouteTable
from coherer._server.rocketmq.namesrv.settings import ORDER_TOPICS
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import V3_0_11, ResponseCode
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


class Registry:
    """The desk for 103, 104, 205, 322 and 327.

    Args:
        routes: which brokers and topics there are.
        key_values: what is kept for others.
        now_ms: a clock that is not set.
    """

    def __init__(
        self, routes: RouteTable, key_values: KeyValueTable, now_ms: Callable[[], int]
    ) -> None:
        self._routes = routes
        self._key_values = key_values
        self._now_ms = now_ms

    def register(self, channel: Channel, request: Command) -> Command:
        """103: a broker is there."""
        header = parse(RegisterBrokerHeader, request.fields)
        if header.body_crc32 and header.body_crc32 != bodies.crc(request.body):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = _body(request, compressed=header.compressed)
        wrapper = body.topic_config_serialize_wrapper
        version = wrapper.data_version
        master = self._routes.register(
            Registration(
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
        told = b"" if order is None else bodies.KVTable(dict(order)).encode()
        return Command(ResponseCode.SUCCESS, fields=fields, body=told)

    def unregister(self, request: Command) -> Command:
        """104: a broker says good-bye."""
        header = parse(BrokerHeader, request.fields)
        self._routes.unregister(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        return Command(ResponseCode.SUCCESS)

    def data_version(self, request: Command) -> Command:
        """322: whether a broker's topics are the known ones; if so, it is alive."""
        address = request.fields.get("brokerAddr", NULL)
        said = bodies.DataVersion.decode_or_none(request.body)
        known = self._routes.version(address)
        same = said is not None and self._routes.unchanged(
            address, DataVersion(said.counter, said.timestamp), self._now_ms()
        )
        told = b""
        if known is not None:
            told = bodies.DataVersion(counter=known.counter, timestamp=known.timestamp).encode()
        fields = DataVersionResult(changed=not same).fields()
        return Command(ResponseCode.SUCCESS, fields=fields, body=told)

    def wipe_write(self, request: Command) -> Command:
        """205: nothing shall be sent to a broker."""
        name = parse(BrokerNameHeader, request.fields).broker_name
        count = self._routes.set_writable(name, writable=False)
        return Command(ResponseCode.SUCCESS, fields=WipeResult(wipe_topic_count=count).fields())

    def add_write(self, request: Command) -> Command:
        """327: a broker may be sent to."""
        name = parse(BrokerNameHeader, request.fields).broker_name
        count = self._routes.set_writable(name, writable=True)
        return Command(ResponseCode.SUCCESS, fields=AddResult(add_topic_count=count).fields())


def _body(request: Command, *, compressed: bool) -> bodies.RegisterBody:
    if not request.body:
        return bodies.RegisterBody(filter_server_list=None)
    if request.version < V3_0_11:
        wrapper = bodies.TopicConfigs.decode(request.body)
        return bodies.RegisterBody(topic_config_serialize_wrapper=wrapper, filter_server_list=None)
    try:
        return bodies.RegisterBody.read(request.body, compressed=compressed)
    except ProtocolError as error:
        remark = f"Failed to decode RegisterBrokerBody: {error.text}"
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark) from error
