"""RocketMQ's `topics.json`: what stands in it (rocketmq 3.12).

What only TubeMQ knows stands in members that RocketMQ skips, and only where it is not the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coherer._rules.common.java_json import DataVersion

_TUBEMQ_DEFAULTS = {"partitions_min": 0, "stores": 1, "status": 0, "tubemq": False}
_NAMES = {
    "name": "topic_name",
    "read_queues": "read_queue_nums",
    "write_queues": "write_queue_nums",
    "perm": "perm",
    "order": "order",
    "filter_type": "topic_filter_type",
    "sys_flag": "topic_sys_flag",
    "partitions_min": "partitions_min",
    "stores": "num_topic_stores",
    "status": "status_id",
    "message_bytes_max": "max_msg_size",
    "tubemq": "tubemq",
}
"""What is called how in `topics.Topic` and in the file."""

_NOTHING = object()


class TopicEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """A topic as the file has it; None for what the file does not say."""

    topic_name: str | None = None
    read_queue_nums: int | None = None
    write_queue_nums: int | None = None
    perm: int | None = None
    order: bool | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: int | None = None
    partitions_min: int | None = None
    num_topic_stores: int | None = None
    status_id: int | None = None
    max_msg_size: int | None = None
    tubemq: bool | None = None

    @classmethod
    def of(cls, topic: Mapping[str, object]) -> TopicEntry:
        """The entry of a topic; the reverse of `given`.

        Args:
            topic: all members of a `topics.Topic`.
        """
        members: dict[str, Any] = {
            there: value
            for here, there in _NAMES.items()
            if (value := topic[here]) != _TUBEMQ_DEFAULTS.get(here, _NOTHING)
        }
        return cls(**members)

    def line(self, name: str) -> bytes:
        """The topic as it stands in the file, with its name before it."""
        text = msgspec.json.format(msgspec.json.encode({name: self}), indent=1)
        return text[2:-2].replace(b"\n", b"\n ")

    def given(self) -> dict[str, object]:
        """What it says, by the names of `topics.Topic`."""
        return {
            here: value
            for here, there in _NAMES.items()
            if (value := getattr(self, there)) is not None
        }


class TopicsFile(msgspec.Struct):
    """The whole file."""

    version: DataVersion | None = msgspec.field(name="dataVersion", default=None)
    topics: dict[str, TopicEntry | None] | None = msgspec.field(
        name="topicConfigTable", default=None
    )


def write_file(version: DataVersion, lines: Sequence[bytes]) -> bytes:
    """The whole file.

    Args:
        version: of the table.
        lines: what `TopicEntry.line` gives of each topic, in order of their names.

    >>> entry = TopicEntry(topic_name="flights")
    >>> print(write_file(DataVersion(), [entry.line("flights")]).decode())
    {
     "dataVersion": {
      "counter": 0,
      "timestamp": 0
     },
     "topicConfigTable": {
      "flights": {
       "topicName": "flights"
      }
     }
    }
    """
    head = msgspec.json.format(msgspec.json.encode({"dataVersion": version}), indent=1)
    table = b"{\n " + b",\n ".join(lines) + b"\n }" if lines else b"{}"
    return head[:-2] + b',\n "topicConfigTable": ' + table + b"\n}"
