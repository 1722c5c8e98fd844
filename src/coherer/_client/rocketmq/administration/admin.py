"""Administration of RocketMQ clusters (docs/protocol/rocketmq.md, sections 8.17 and 12).

It sends requests to name servers and brokers over the connections of its client, as Java's tools
do. Topics, groups and brokers have the same methods as in TubeMQ's administration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coherer._client.engine.administration import Parts
from coherer._client.rocketmq.administration.accounts import AccountAdmin
from coherer._client.rocketmq.administration.brokers import BrokerAdmin
from coherer._client.rocketmq.administration.groups import GroupAdmin
from coherer._client.rocketmq.administration.messages import MessageAdmin
from coherer._client.rocketmq.administration.name_servers import NameServerAdmin
from coherer._client.rocketmq.administration.servers import Servers
from coherer._client.rocketmq.administration.topics import TopicAdmin
from coherer._client.rocketmq.instance import Instance

MOVED: Final[Mapping[str, str]] = {
    "alter_topic": "topics.alter",
    "broker_config": "brokers.config",
    "check_transaction_again": "messages.check_transaction_again",
    "clean": "brokers.clean",
    "clone_offsets": "groups.copy_offsets",
    "consume_directly": "messages.consume_directly",
    "consumer_offsets": "groups.consumer_offsets",
    "consumers": "groups.consumers",
    "counter": "brokers.counter",
    "create_group": "groups.create",
    "create_topic": "topics.create",
    "delete_account": "accounts.delete",
    "delete_group": "groups.delete",
    "delete_topic": "topics.delete",
    "group_names": "groups.names",
    "groups_of": "topics.groups",
    "index_delay_bytes": "brokers.index_delay_bytes",
    "lock_queues": "groups.lock",
    "message": "messages.get",
    "message_by_unique_id": "messages.by_unique_id",
    "messages_by_unique_id": "messages.all_by_unique_id",
    "names_config": "name_servers.config",
    "oldest_ms": "topics.oldest_ms",
    "partitions": "topics.partitions",
    "producers": "groups.producers",
    "queue_settings": "topics.settings",
    "reset_offsets": "groups.reset_offsets",
    "running": "groups.running",
    "set_account": "accounts.set",
    "set_broker_config": "brokers.set_config",
    "set_names_config": "name_servers.set_config",
    "set_offsets": "groups.set_offsets",
    "set_value": "name_servers.set_value",
    "set_white_addresses": "accounts.set_white_addresses",
    "set_writable": "brokers.set_writable",
    "store": "messages.store",
    "time_spans": "groups.time_spans",
    "topic_configs": "topics.configs",
    "topic_names": "topics.names",
    "unlock_queues": "groups.unlock",
    "unread_ages": "groups.unread_ages",
    "values": "name_servers.values",
    "wait_usable": "topics.wait_usable",
    "writable_queues": "topics.writable_queues",
}
"""The methods of 0.2, by name: the part and its method."""


class Admin(Parts):
    """Topics, groups, brokers, messages and accounts of a cluster. Made by `Client.admin`.

    ```python
    admin = client.admin()
    await admin.topics.create("orders", 8)
    for group in await admin.groups.list():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when a server does not answer, and `RefusedError` when it
    refuses.

    Args:
        instance: the connections and routes.

    Attributes:
        topics: the topics.
        groups: the consumer groups, their members and offsets.
        brokers: the brokers.
        messages: the messages, by id and by key.
        accounts: the accounts.
        name_servers: the name servers.
    """

    _MOVED = MOVED

    def __init__(self, instance: Instance) -> None:
        self._servers = servers = Servers(instance)
        self.topics: Final = TopicAdmin(servers)
        self.groups: Final = GroupAdmin(servers)
        self.brokers: Final = BrokerAdmin(servers)
        self.messages: Final = MessageAdmin(servers)
        self.accounts: Final = AccountAdmin(servers)
        self.name_servers: Final = NameServerAdmin(servers)

    def __repr__(self) -> str:
        return f"Admin({self._servers.instance.options.servers!r})"
