"""Administration without asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from coherer._client.tubemq.admin import Admin as AsyncAdmin
from coherer._client.tubemq.admin import BrokerState, GroupState, PartitionState, TopicState
from coherer.blocking.portal import Portal


class Admin:
    """Topics, brokers, groups and offsets of a cluster. Made by `Client.admin`.

    The methods do what those of `coherer._client.tubemq.admin.Admin` do.

    Args:
        portal: the way to the event loop.
        admin: does the work there.
    """

    def __init__(self, portal: Portal, admin: AsyncAdmin) -> None:
        self._portal = portal
        self._admin = admin

    def __repr__(self) -> str:
        return repr(self._admin)

    def topics(self, *names: str) -> list[TopicState]:
        """The topics in order of their names; only those named, if any are."""
        return self._portal.call(lambda: self._admin.topics(*names))

    def create_topic(
        self,
        name: str,
        partitions: int,
        brokers: Iterable[int] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
    ) -> None:
        """Create a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`.
            partitions: how many on each broker.
            brokers: their numbers; all that are online when None.
            exist_ok: it is no error that a broker has the topic already.
            wait_ms: wait so long until producers are given it.

        Raises:
            UsageError: the arguments cannot be right.
            RefusedError: the name is refused, a broker is unknown, or the topic is there (402).
            RequestTimeoutError: it is created, but nobody can use it yet.
        """
        self._portal.call(
            lambda: self._admin.create_topic(
                name, partitions, brokers, exist_ok=exist_ok, wait_ms=wait_ms
            )
        )

    def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
        """Wait until the master gives a topic to producers and consumers.

        Raises:
            RequestTimeoutError: not within `timeout_ms`.
        """
        return self._portal.call(lambda: self._admin.wait_usable(name, timeout_ms=timeout_ms))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages.

        Raises:
            RefusedError: there is no such topic.
        """
        self._portal.call(lambda: self._admin.delete_topic(name))

    def brokers(self) -> list[BrokerState]:
        """The brokers that the master knows, in order of their numbers."""
        return self._portal.call(self._admin.brokers)

    def partitions(self, topic: str) -> list[PartitionState]:
        """The partitions of a topic and what they hold.

        Raises:
            RefusedError: there is no such topic.
        """
        return self._portal.call(lambda: self._admin.partitions(topic))

    def groups(self, *names: str) -> list[GroupState]:
        """The groups of consumers in order of their names; only those named, if any are."""
        return self._portal.call(lambda: self._admin.groups(*names))

    def delete_group(self, name: str) -> None:
        """Forget where a group stands in all topics.

        A group whose consumers are running comes back with their next confirmation.

        Raises:
            RefusedError: there is no such group.
            UnavailableError: a broker does not answer; the others have forgotten the group.
        """
        self._portal.call(lambda: self._admin.delete_group(name))

    def set_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Set where a group goes on, by partition key.

        Raises:
            UsageError: a key is none, or of an unknown broker.
        """
        self._portal.call(lambda: self._admin.set_offsets(group, offsets))

    def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[str, int]:
        """Set a group's offsets of a whole topic.

        Args:
            group: the group; it need not exist.
            topic: the topic.
            to: an end of the partitions; a time of storing, which Java's brokers cannot search; or
                an offset for every partition, moved to the nearer end where it is not there.

        Returns:
            The offsets by partition key, `broker:topic:partition`.

        Raises:
            UsageError: there is no such place, or a broker cannot search by time.
            RefusedError: there is no such topic.
            UnavailableError: a broker does not tell what it holds. Nothing was changed then.
        """
        return self._portal.call(lambda: self._admin.reset_offsets(group, topic, to))
