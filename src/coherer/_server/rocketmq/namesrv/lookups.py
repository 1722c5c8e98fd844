"""What clients and administrators ask a name server (9.3, 9.7)."""

from __future__ import annotations

from collections.abc import Iterable

from coherer._rules.rocketmq.routes import UNIT, UNIT_SUBSCRIPTION, BrokerAddresses, RouteTable
from coherer._server.rocketmq.namesrv.settings import Settings
from coherer._server.rocketmq.remoting import Refusal
from coherer._wire.rocketmq.bodies import BrokerData, ClusterInfo, QueueData, TopicList, TopicRoute
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import NULL


class Lookups:
    """The desk for 105, 106, 206, 216, 224, 304, 311, 312 and 313.

    Args:
        routes: which brokers and topics there are.
        settings: say whether routes tell about order.
    """

    def __init__(self, routes: RouteTable, settings: Settings) -> None:
        self._routes = routes
        self._settings = settings

    def route(self, request: Command) -> Command:
        """105: where a topic is."""
        topic = request.fields.get("topic", NULL)
        found = self._routes.route(topic)
        if found is None:
            remark = f"No topic route info in name server for the topic: {topic}{FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        route = TopicRoute(
            broker_datas=[_broker_data(broker) for broker in found.brokers],
            filter_server_table=found.filter_servers,
            order_topic_conf=self._settings.order_of(topic),
            queue_datas=[
                QueueData(
                    broker_name=queues.broker,
                    perm=queues.perm,
                    read_queue_nums=queues.read_queues,
                    topic_sys_flag=queues.sys_flag,
                    write_queue_nums=queues.write_queues,
                )
                for queues in found.queues
            ],
        )
        return Command(ResponseCode.SUCCESS, body=route.encode())

    def clusters(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """106: clusters and their brokers."""
        info = ClusterInfo(
            broker_addr_table={n: _broker_data(b) for n, b in self._routes.brokers.items()},
            cluster_addr_table=self._routes.clusters,
        )
        return Command(ResponseCode.SUCCESS, body=info.encode())

    def topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """206: all topics."""
        return _names(self._routes.topics())

    def topics_of_cluster(self, request: Command) -> Command:
        """224: the topics of a cluster; none of an unknown one."""
        return _names(self._routes.topics_of_cluster(request.fields.get("cluster", "")))

    def system_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """304: names of clusters and brokers, which are topics, too, and a broker to ask on."""
        clusters = self._routes.clusters
        brokers = [name for names in clusters.values() for name in names]
        first = next(iter(self._routes.brokers.values()), None)
        address = first.addresses[min(first.addresses)] if first is not None else None
        return _names([*clusters, *brokers], address)

    def unit_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """311."""
        return _names(self._routes.topics_with(UNIT))

    def unit_sub_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """312."""
        return _names(self._routes.topics_with(UNIT_SUBSCRIPTION))

    def unit_sub_only_topics(self, request: Command) -> Command:  # noqa: ARG002 - a handler
        """313."""
        return _names(self._routes.topics_with(UNIT_SUBSCRIPTION, without=UNIT))

    def delete_topic(self, request: Command) -> Command:
        """216: forget a topic; unknown ones are forgotten, too."""
        self._routes.delete_topic(request.fields.get("topic", ""))
        return Command(ResponseCode.SUCCESS)


def _broker_data(broker: BrokerAddresses) -> BrokerData:
    return BrokerData(
        broker_addrs=dict(sorted(broker.addresses.items())),  # the master first, as from Java's
        broker_name=broker.name,
        cluster=broker.cluster,
    )


def _names(names: Iterable[str], broker_address: str | None = None) -> Command:
    body = TopicList(broker_addr=broker_address, topic_list=list(names)).encode()
    return Command(ResponseCode.SUCCESS, body=body)
