"""A cluster in one thread: an event loop of virtual time, a network in memory, and their faults.

Only `simulate` is public, as `coherer.testing.simulate`. The project's tests use the rest.
"""

from coherer.testing.simulation.loop import SimulatedLoop, simulate
from coherer.testing.simulation.network import Network
from coherer.testing.simulation.process import Process

__all__ = ["Network", "Process", "SimulatedLoop", "simulate"]
