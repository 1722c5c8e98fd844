"""The topics that a broker serves, and their file.

The master decides which topics there are; the broker keeps what it was told last, so that it can
serve before it has reached a master again. The file is RocketMQ's `topics.json`; what only TubeMQ
knows stands in members that RocketMQ skips, and only where it is not the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from coherer.errors import DamagedStoreError

STORE_STRIDE = 10_000
"""A partition's id is store * 10,000 + its number in the store."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Args:
        name: its name.
        partitions: partitions of each of its stores.
        stores: TubeMQ's way to have more partitions than one file sequence can take.
        can_publish: whether the master offers it to producers.
        can_subscribe: whether the master offers it to consumers.
        status: 0 open, 1 closed for clients, 2 and 3 being removed.
        message_bytes_max: the longest message that a client may send; None for the cluster's limit.

    >>> Topic(name="flights", partitions=2, stores=2).partition_ids()
    [0, 1, 10000, 10001]
    """

    name: str
    partitions: int
    stores: int = 1
    can_publish: bool = True
    can_subscribe: bool = True
    status: int = 0
    message_bytes_max: int | None = None

    def has_partition(self, partition: int) -> bool:
        """Whether the id is one of this topic's."""
        return (
            partition >= 0
            and partition % STORE_STRIDE < self.partitions
            and partition // STORE_STRIDE < self.stores
        )

    def partition_ids(self) -> list[int]:
        """The ids of all partitions."""
        return [
            store * STORE_STRIDE + number
            for store in range(self.stores)
            for number in range(self.partitions)
        ]


class TopicTable:
    """The topics of a broker, by name.

    >>> table = TopicTable([Topic(name="flights", partitions=8)])
    >>> TopicTable.load(table.dump(now_ms=0))["flights"].partitions
    8
    """

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._version = 0

    def get(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._topics.get(name)

    def __getitem__(self, name: str) -> Topic:
        return self._topics[name]

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def replace(self, topics: Iterable[Topic]) -> bool:
        """Take what the master says. Returns whether anything is different now."""
        new = {topic.name: topic for topic in topics}
        if new == self._topics:
            return False
        self._topics = new
        self._version += 1
        return True

    def dump(self, now_ms: int) -> bytes:
        """The file's content."""
        return msgspec.json.format(
            msgspec.json.encode(
                _File(
                    _Version(self._version, now_ms),
                    {name: _entry(topic) for name, topic in sorted(self._topics.items())},
                )
            ),
            indent=1,
        )

    @classmethod
    def load(cls, data: bytes) -> TopicTable:
        """Read the file.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            read = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"topics.json cannot be read: {error}.") from error
        table = cls(_topic(name, entry) for name, entry in read.topics.items())
        table._version = read.version.counter
        return table


_READ, _WRITE = 4, 2  # bits of RocketMQ's perm


class _Entry(msgspec.Struct, rename="camel", omit_defaults=True):
    topic_name: str | None
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: int | None = None
    num_topic_stores: int = 1
    status_id: int = 0
    max_msg_size: int | None = None


class _Version(msgspec.Struct):
    counter: int = 0
    timestamp: int = 0


class _File(msgspec.Struct):
    version: _Version = msgspec.field(name="dataVersion", default_factory=_Version)
    topics: dict[str, _Entry] = msgspec.field(
        name="topicConfigTable", default_factory=dict[str, _Entry]
    )


def _entry(topic: Topic) -> _Entry:
    return _Entry(
        topic_name=topic.name,
        read_queue_nums=topic.partitions,
        write_queue_nums=topic.partitions,
        perm=_READ * topic.can_subscribe | _WRITE * topic.can_publish,
        order=False,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        num_topic_stores=topic.stores,
        status_id=topic.status,
        max_msg_size=topic.message_bytes_max,
    )


def _topic(name: str, entry: _Entry) -> Topic:
    return Topic(
        name=name,
        partitions=max(entry.read_queue_nums, entry.write_queue_nums),
        stores=entry.num_topic_stores,
        can_publish=bool(entry.perm & _WRITE),
        can_subscribe=bool(entry.perm & _READ),
        status=entry.status_id,
        message_bytes_max=entry.max_msg_size,
    )
