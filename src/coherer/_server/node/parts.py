"""The parts of a node that metrics, status and drain read; the node creates all three."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coherer import _net as net
from coherer._common.upkeep import Upkeep
from coherer._server.core.core import Core
from coherer._server.node.load import Load
from coherer._server.node.rocketmq import RocketMqService
from coherer._server.node.tubemq import TubeMqService
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import SiblingStates


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
