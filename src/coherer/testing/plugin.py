"""The pytest plugin: fixtures for a node that runs for the whole session.

pytest loads this module in every session where Coherer is installed, so it imports only what the
declarations of the fixtures need.

pytest rewrites the assertions of every module in a distribution that has a plugin. Users see no
assertion of Coherer, and rewriting takes half a second in each session. So the plugin puts a finder
before pytest's, which loads Coherer's modules as Python does.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import pytest

# pytest loads the plugin in every session that has Coherer installed.
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from coherer.testing.embedded import EmbeddedNode


class _UnchangedModules(MetaPathFinder):
    """Finds Coherer's modules in their files, before pytest's hook rewrites them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("coherer."):
            return None
        return PathFinder.find_spec(fullname, path, target)


sys.meta_path.insert(0, _UnchangedModules())


@pytest.fixture(scope="session")
def coherer_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node for the whole test session, with both protocols and the administration.

    Tests share it, so each test should use its own topics and groups; see `coherer_topic`.
    """
    from coherer.testing.embedded import embedded_node

    with embedded_node(tmp_path_factory.mktemp("coherer")) as node:
        yield node


@pytest.fixture(scope="session")
def coherer_url(coherer_node: EmbeddedNode) -> str:
    """The TubeMQ URL of the session's node: `tubemq://127.0.0.1:<port>`."""
    return coherer_node.url


@pytest.fixture(scope="session")
def coherer_rocketmq_url(coherer_node: EmbeddedNode) -> str:
    """The RocketMQ URL of the session's node: `rocketmq://127.0.0.1:<port>`."""
    return coherer_node.rocketmq_url


@pytest.fixture
def coherer_topic(request: pytest.FixtureRequest, coherer_node: EmbeddedNode) -> str:
    """The name of a new, empty topic for this test."""
    import uuid

    words = "".join(c if c.isascii() and c.isalnum() else "_" for c in request.node.name)
    name = f"{words[:40].strip('_') or 'test'}_{uuid.uuid4().hex[:12]}"
    coherer_node.create_topic(name)
    return name
