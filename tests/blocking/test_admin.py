"""The blocking administration of a cluster."""

from __future__ import annotations

import pytest

import coherer.blocking
from coherer.errors import ClosedError, RefusedError, UsageError
from coherer.testing import embedded_node


def test_against_a_node() -> None:
    with (
        embedded_node() as node,
        coherer.blocking.connect(node.url, admin=node.admin_url) as client,
    ):
        admin = client.admin()
        admin.topics.create("orders", 2, wait_ms=5_000)
        assert "orders" in [topic.name for topic in admin.topics.list()]
        assert admin.topics.wait_usable("orders", timeout_ms=1_000).partitions == 2
        assert [broker.id for broker in admin.brokers.list()] == [1]
        with client.producer("orders") as producer:
            producer.send_many(coherer.Message("orders", b"x") for _ in range(10))
        assert sum(one.max_offset or 0 for one in admin.topics.partitions("orders")) == 10
        admin.groups.reset_offsets("readers", "orders", "latest")
        admin.groups.set_offsets("readers", {"1:orders:0": 1})
        [group] = admin.groups.list("readers")
        assert group.lag == 4
        admin.topics.delete("orders")
        with pytest.raises(RefusedError):
            admin.topics.delete("orders")
        with pytest.raises(UsageError):
            admin.topics.create("orders", 0)
        assert "127.0.0.1" in repr(admin)
        with pytest.raises(RefusedError, match="token"):
            client.admin("wrong").topics.create("orders", 2)
    with pytest.raises(ClosedError):
        admin.topics.list()
