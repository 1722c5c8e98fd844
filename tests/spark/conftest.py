"""Fixtures of the tests of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.queues import Endpoint, ListQueue

if TYPE_CHECKING:
    from coherer.testing import EmbeddedNode


@pytest.fixture(params=["tubemq", "rocketmq"])
def endpoint(request: pytest.FixtureRequest, coherer_node: EmbeddedNode) -> Endpoint:
    """Each endpoint of the session's node."""
    if request.param == "tubemq":
        return Endpoint("tubemq", coherer_node.url, "1", {"admin": coherer_node.admin_url})
    return Endpoint("rocketmq", coherer_node.rocketmq_url, "broker-a", {})


@pytest.fixture
def list_queue() -> ListQueue:
    return ListQueue({"t": {("1", 0): (0, 100), ("1", 1): (5, 25)}, "u": {("1", 0): (0, 3)}})
