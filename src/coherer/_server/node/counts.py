"""Which topics and groups a node counts: the one source for metrics, status and console.

Topics and groups that the protocols use themselves are not counted: system topics, retry and
dead-letter topics, the topics with the names of cluster and broker, and groups of tools and
readers. The clients of both protocols omit the same ones when they list topics and groups.
"""

from __future__ import annotations

import re
from typing import Final

from coherer._record.system_topics import (
    READER_GROUP_PREFIX,
    REPLY_TOPIC_SUFFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from coherer._server.node.parts import NodeParts

_SYSTEM_TOPIC: Final = re.compile(
    rf"%|__|{SYSTEM_TOPIC_PREFIX}|(?:{'|'.join(map(re.escape, SYSTEM_TOPICS))})\Z"
)
_SYSTEM_GROUP: Final = re.compile(
    rf"\Z|{READER_GROUP_PREFIX}|(?i:{SYSTEM_GROUP_PREFIX})|"
    rf"(?:{'|'.join(map(re.escape, SYSTEM_GROUPS))})\Z"
)


def is_users_topic(topic: str) -> bool:
    """Whether users created a topic, as far as its name shows.

    >>> [is_users_topic(name) for name in ("orders", "%RETRY%g", "TBW102", "rmq_sys_x", "__x")]
    [True, False, False, False, False]
    """
    return _SYSTEM_TOPIC.match(topic) is None


def is_users_group(group: str) -> bool:
    """Whether a group belongs to users.

    >>> [is_users_group(name) for name in ("billing", "TOOLS_CONSUMER", "cid_rmq_sys_x", "")]
    [True, False, False, False]
    """
    return _SYSTEM_GROUP.match(group) is None


def all_topics(node: NodeParts) -> set[str]:
    """The names of all topics except those that the node names after itself."""
    if node.core is None:
        return set()
    cluster = node.options.cluster
    own = {cluster, f"{cluster}{REPLY_TOPIC_SUFFIX}", node.options.broker_name}
    return {one.name for one in node.core.topics} - own


def all_groups(node: NodeParts) -> set[str]:
    """The names of all groups: those with settings, offsets or members."""
    found: set[str] = set()
    if node.core is not None:
        found |= {group.group_name for group in node.core.groups}
        found |= node.core.offsets.groups()
    if node.tubemq.master is not None:
        found |= {group.name for group in node.tubemq.master.state.groups}
    return found
