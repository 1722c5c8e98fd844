"""What the metrics, the status and the drain of a node read of it.

`Load` says how busy its event loop and its process are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Protocol

from coherer import _net as net
from coherer._common.distribution import Distribution
from coherer._common.upkeep import Upkeep
from coherer._server.core.core import Core
from coherer._server.node.rocketmq import RocketMqService
from coherer._server.node.tubemq import TubeMqService
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import SiblingStates

LOOP_LAG_S: Final = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096)


class Load:
    """Measures since the start of a node.

    Attributes:
        loop_lag: how late timers of the node run, in seconds.
        busy: the share of a core that this process has used lately; None right after the start.
        started_s: when the node started, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.loop_lag = Distribution(LOOP_LAG_S)
        self.busy: float | None = None
        self.started_s = time.time()
        self._began_s = time.monotonic()
        self._busy_at = self._began_s, time.process_time()

    @property
    def running_s(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began_s

    def measure_busy(self) -> None:
        """Measure `busy` since the last call; call it every ten seconds or so."""
        before, now = self._busy_at, (time.monotonic(), time.process_time())
        if now[0] > before[0]:
            self.busy, self._busy_at = (now[1] - before[1]) / (now[0] - before[0]), now


class NodeParts(Protocol):
    """The parts of a running node; `Node` documents them."""

    options: NodeOptions
    core: Core | None
    tubemq: TubeMqService
    rocketmq: RocketMqService
    siblings: SiblingStates
    budget: net.ConnectionBudget
    certificates: net.Certificates
    upkeep: Upkeep
    load: Load

    def ports(self) -> Mapping[str, int]:
        """The open ports, by the names of their options."""
        ...

    def not_ready(self) -> str | None:
        """Why the node cannot serve at present; None if it can."""
        ...

    def now_ms(self) -> int:
        """The monotonic clock of the node."""
        ...
