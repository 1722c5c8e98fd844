"""Which protocol a URL names."""

from __future__ import annotations


def is_rocketmq(url: str) -> bool:
    """Whether a URL names a RocketMQ cluster.

    >>> is_rocketmq("rocketmqs://a:9876"), is_rocketmq("tubemq://a")
    (True, False)
    """
    return url.startswith(("rocketmq://", "rocketmqs://"))
