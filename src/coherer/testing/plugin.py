"""The pytest plugin: a node for the whole session, and its address.

pytest loads this in every session of an environment where Coherer is installed, so nothing is
imported here that is not needed to declare the fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coherer.testing.embedded import EmbeddedNode


@pytest.fixture(scope="session")
def coherer_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node that runs for the whole test session: both doors, administration.

    Tests share it, so each should use topics and groups of its own; `coherer_topic` gives names.
    """
    from coherer.testing.embedded import embedded_node

    with embedded_node(tmp_path_factory.mktemp("coherer")) as node:
        yield node


@pytest.fixture(scope="session")
def coherer_url(coherer_node: EmbeddedNode) -> str:
    """Where TubeMQ's clients connect to the session's node: `tubemq://127.0.0.1:<port>`."""
    return coherer_node.url


@pytest.fixture(scope="session")
def coherer_rocketmq_url(coherer_node: EmbeddedNode) -> str:
    """Where RocketMQ's clients connect to the session's node: `rocketmq://127.0.0.1:<port>`."""
    return coherer_node.rocketmq_url


@pytest.fixture
def coherer_topic(request: pytest.FixtureRequest, coherer_node: EmbeddedNode) -> str:
    """The name of a topic of this test's own, which is there and empty."""
    import uuid

    words = "".join(c if c.isascii() and c.isalnum() else "_" for c in request.node.name)
    name = f"{words[:40].strip('_') or 'test'}_{uuid.uuid4().hex[:12]}"
    coherer_node.create_topic(name)
    return name
