"""Administration of a RocketMQ cluster, ours or Java's (rocketmq 8.17, 12).

It asks name servers and brokers over the connections of its client, as Java's tools do. `Admin` has
topics (`admin_topics`), brokers (`admin_servers`), groups and offsets (`admin_groups`) under the
names that TubeMQ's has them; `admin_messages` looks messages up.
"""

from __future__ import annotations

from coherer._client.rocketmq.admin import Groups, Messages, Topics
from coherer._client.rocketmq.admin_records import (
    BrokerState,
    GroupState,
    MemberState,
    PartitionState,
    TopicState,
)

__all__ = [
    "Admin",
    "BrokerState",
    "GroupState",
    "MemberState",
    "PartitionState",
    "TopicState",
]


class Admin(Topics, Groups, Messages):
    """Topics, brokers, groups, offsets and messages of a cluster. Made by `Client.admin`.

    Args:
        instance: the way to the cluster.

    ```python
    admin = client.admin()
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, and `RefusedError` when one says no.
    """
