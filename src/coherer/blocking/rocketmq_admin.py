"""Administration of RocketMQ without asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from coherer._client.rocketmq.admin import Admin as AsyncAdmin
from coherer._client.rocketmq.admin import (
    BrokerState,
    GroupState,
    MemberState,
    PartitionState,
    TopicState,
)
from coherer._client.rocketmq.routes import READ, WRITE
from coherer._wire.rocketmq.bodies import (
    AclConfig,
    BrokerStats,
    ClusterInfo,
    ConsumeDirectlyResult,
    Offsets,
    QueueTimeSpan,
    RunningInfo,
)
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.blocking.portal import Portal


class RocketAdmin:
    """Topics, brokers, groups, offsets and messages of a cluster. Made by `RocketClient.admin`.

    The methods do what those of `coherer._client.rocketmq.admin.Admin` do; arguments and errors are
    described there.

    Args:
        portal: the way to the event loop.
        admin: does the work there.
    """

    def __init__(self, portal: Portal, admin: AsyncAdmin) -> None:
        self._portal = portal
        self._admin = admin

    def __repr__(self) -> str:
        return repr(self._admin)

    def topics(self, *names_wanted: str, system: bool = False) -> list[TopicState]:
        """The topics in order of their names; only those named, if any are.

        Args:
            names_wanted: names; all topics when there are none.
            system: with all topics, also RocketMQ's own: retry topics, dead letters and others.
        """
        return self._portal.call(lambda: self._admin.topics(*names_wanted, system=system))

    def create_topic(
        self,
        name: str,
        partitions: int = 8,
        brokers: Iterable[str] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
        perm: int = READ | WRITE,
    ) -> None:
        """Create a topic, or change one."""
        self._portal.call(
            lambda: self._admin.create_topic(
                name, partitions, brokers, exist_ok=exist_ok, wait_ms=wait_ms, perm=perm
            )
        )

    def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
        """Wait until the name servers tell of a topic; what it is then."""
        return self._portal.call(lambda: self._admin.wait_usable(name, timeout_ms=timeout_ms))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers and name servers."""
        self._portal.call(lambda: self._admin.delete_topic(name))

    def partitions(self, topic: str) -> list[PartitionState]:
        """The queues of a topic and what they hold."""
        return self._portal.call(lambda: self._admin.partitions(topic))

    def groups(self, *names_wanted: str) -> list[GroupState]:
        """The groups of consumers in order of their names; only those named, if any are.

        A group is there when a broker is configured for it. Without names, the system's are left
        out.
        """
        return self._portal.call(lambda: self._admin.groups(*names_wanted))

    def create_group(
        self, name: str, brokers: Iterable[str] | None = None, *, max_retries: int = 16
    ) -> None:
        """Create a group of consumers, or change one. Most brokers create them by themselves."""
        self._portal.call(lambda: self._admin.create_group(name, brokers, max_retries=max_retries))

    def delete_group(self, name: str, *, remove_offsets: bool = True) -> None:
        """Delete a group from all brokers."""
        self._portal.call(lambda: self._admin.delete_group(name, remove_offsets=remove_offsets))

    def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set where a group goes on. Consumers that are running put their own offsets over it."""
        self._portal.call(lambda: self._admin.set_offsets(group, offsets))

    def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[Queue, int]:
        """Set a group's offsets of a whole topic, also while it consumes."""
        return self._portal.call(lambda: self._admin.reset_offsets(group, topic, to))

    def cluster(self) -> ClusterInfo:
        """All brokers and clusters that the name servers know."""
        return self._portal.call(self._admin.cluster)

    def message(self, message_id: str) -> StoredMessage:
        """A message by its offset message id: the `id` of receipts and received messages."""
        return self._portal.call(lambda: self._admin.message(message_id))

    def messages(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Messages by one of their keys, in the order of storing."""
        return self._portal.call(
            lambda: self._admin.messages(topic, key, begin=begin, end=end, limit=limit)
        )

    def message_by_unique_id(self, topic: str, unique_id: str) -> StoredMessage | None:
        """A message by the id that its sender made; of several copies the one stored first."""
        return self._portal.call(lambda: self._admin.message_by_unique_id(topic, unique_id))

    def consume_directly(
        self, group: str, message: StoredMessage, *, client_id: str = ""
    ) -> ConsumeDirectlyResult:
        """Have a consumer that runs deal with one message now, whatever its offsets."""
        return self._portal.call(
            lambda: self._admin.consume_directly(group, message, client_id=client_id)
        )

    def check_transaction_again(self, message: StoredMessage) -> None:
        """Have a transaction asked about again that the broker has given up."""
        self._portal.call(lambda: self._admin.check_transaction_again(message))

    def brokers(self, *, runtime: bool = True) -> list[BrokerState]:
        """The brokers that the name servers know, in order of their names and ids."""
        return self._portal.call(lambda: self._admin.brokers(runtime=runtime))

    def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a master."""
        return self._portal.call(lambda: self._admin.broker_config(broker))

    def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a master that runs."""
        self._portal.call(lambda: self._admin.set_broker_config(broker, changes))

    def names_config(self) -> dict[str, str]:
        """The settings of a name server."""
        return self._portal.call(self._admin.names_config)

    def set_names_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers."""
        self._portal.call(lambda: self._admin.set_names_config(changes))

    def values(self, namespace: str) -> dict[str, str]:
        """Keys and values that a name server keeps for others."""
        return self._portal.call(lambda: self._admin.values(namespace))

    def set_value(self, namespace: str, key: str, value: str | None) -> None:
        """Have all name servers keep a value, or with None no longer."""
        self._portal.call(lambda: self._admin.set_value(namespace, key, value))

    def set_writable(self, broker: str, *, writable: bool) -> None:
        """Take a broker's permission to be written to, or give it back, at all name servers."""
        self._portal.call(lambda: self._admin.set_writable(broker, writable=writable))

    def accounts(self, broker: str) -> AclConfig:
        """The accounts of a master, secrets included."""
        return self._portal.call(lambda: self._admin.accounts(broker))

    def set_account(
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
        """Make or change an account."""
        self._portal.call(
            lambda: self._admin.set_account(
                access_key,
                secret_key,
                admin=admin,
                address=address,
                default_topic_perm=default_topic_perm,
                default_group_perm=default_group_perm,
                topic_perms=topic_perms,
                group_perms=group_perms,
                brokers=brokers,
            )
        )

    def delete_account(self, access_key: str, brokers: Iterable[str] | None = None) -> None:
        """Delete an account."""
        self._portal.call(lambda: self._admin.delete_account(access_key, brokers))

    def set_white_addresses(
        self, addresses: Sequence[str], brokers: Iterable[str] | None = None
    ) -> None:
        """Set the addresses that need no account."""
        self._portal.call(lambda: self._admin.set_white_addresses(addresses, brokers))

    def producers(self, group: str) -> list[MemberState]:
        """The connected producers of a group."""
        return self._portal.call(lambda: self._admin.producers(group))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have offsets of it."""
        return self._portal.call(lambda: self._admin.groups_of(topic))

    def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """What a consumer that runs tells of itself."""
        return self._portal.call(lambda: self._admin.running(group, client_id, stacks=stacks))

    def consumer_offsets(self, group: str, topic: str) -> dict[str, Offsets]:
        """Where the members of a group are, as they say themselves: client id to offsets."""
        return self._portal.call(lambda: self._admin.consumer_offsets(group, topic))

    def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """From when to when there are messages in each queue, and where a group is in it."""
        return self._portal.call(lambda: self._admin.time_spans(group, topic))

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Have one group stand where another does."""
        self._portal.call(lambda: self._admin.clone_offsets(source, target, topic))

    def counter(self, broker: str, name: str, key: str) -> BrokerStats:
        """A counter of a master, `TOPIC_PUT_NUMS` of a topic for example."""
        return self._portal.call(lambda: self._admin.counter(broker, name, key))

    def clean(self, broker: str) -> None:
        """Have a master delete index files that nobody needs, and topics that are gone."""
        self._portal.call(lambda: self._admin.clean(broker))
