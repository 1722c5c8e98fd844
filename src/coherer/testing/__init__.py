"""Tools for tests: nodes and clusters in the process, virtual time, and network faults.

With pytest no import is needed: the package provides the fixtures `coherer_node`, `coherer_url`,
`coherer_rocketmq_url`, `coherer_topic`, `coherer_cluster`, `coherer_simulated` and
`coherer_simulated_cluster` (`coherer.testing.plugin`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# For type checkers: the names load on first use.
if TYPE_CHECKING:
    from coherer.testing.clock import ManualClock
    from coherer.testing.cluster import EmbeddedCluster, embedded_cluster
    from coherer.testing.embedded import EmbeddedNode, async_embedded_node, embedded_node
    from coherer.testing.explore import explore
    from coherer.testing.faults import Fault, NodeFaults
    from coherer.testing.leftovers import LeftBehindWarning
    from coherer.testing.proxy import FaultProxy, Faults
    from coherer.testing.received import Received, Reception
    from coherer.testing.requests import ReceivedRequest, Requests
    from coherer.testing.simulated import SimulatedCluster, SimulatedNode
    from coherer.testing.simulation import simulate

__all__ = [
    "EmbeddedCluster",
    "EmbeddedNode",
    "Fault",
    "FaultProxy",
    "Faults",
    "LeftBehindWarning",
    "ManualClock",
    "NodeFaults",
    "Received",
    "ReceivedRequest",
    "Reception",
    "Requests",
    "SimulatedCluster",
    "SimulatedNode",
    "async_embedded_node",
    "embedded_cluster",
    "embedded_node",
    "explore",
    "simulate",
]

_MODULES = {
    "EmbeddedCluster": "coherer.testing.cluster",
    "EmbeddedNode": "coherer.testing.embedded",
    "Fault": "coherer.testing.faults",
    "FaultProxy": "coherer.testing.proxy",
    "Faults": "coherer.testing.proxy",
    "LeftBehindWarning": "coherer.testing.leftovers",
    "ManualClock": "coherer.testing.clock",
    "NodeFaults": "coherer.testing.faults",
    "Received": "coherer.testing.received",
    "Reception": "coherer.testing.received",
    "ReceivedRequest": "coherer.testing.requests",
    "Requests": "coherer.testing.requests",
    "SimulatedCluster": "coherer.testing.simulated",
    "SimulatedNode": "coherer.testing.simulated",
    "async_embedded_node": "coherer.testing.embedded",
    "embedded_cluster": "coherer.testing.cluster",
    "embedded_node": "coherer.testing.embedded",
    "explore": "coherer.testing.explore",
    "simulate": "coherer.testing.simulation",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Lazy (PEP 562): pytest loads the plugin in every session, also where no test needs a node.
        if name not in _MODULES:
            raise AttributeError(f"module 'coherer.testing' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
