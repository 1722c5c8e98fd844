"""The brokers of a cluster, completed from the status of a Coherer node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from coherer._administration.access import Cluster, RocketCluster
from coherer._common.node_status import NodeStatus
from coherer.admin import Broker
from coherer.errors import CohererError

_BROKER_PORTS: Final = frozenset({"TubeMQ broker", "TubeMQ broker, TLS"})


async def brokers(cluster: Cluster) -> list[Broker]:
    """The brokers, sorted by name and id.

    Raises:
        UnavailableError: no name server or master answers.
    """
    node = None
    with suppress(CohererError):
        node = await node_status(cluster)
    return await broker_list(cluster, node)


async def broker_list(cluster: Cluster, node: NodeStatus | None) -> list[Broker]:
    """The brokers; the one of a node has the values in its status."""
    return _with_own(await cluster.admin.brokers.list(), node)


async def node_status(cluster: Cluster) -> NodeStatus | None:
    """The status of the node that answers over TubeMQ's administration; None for other servers.

    Raises:
        RefusedError: the node requires an account.
    """
    return None if isinstance(cluster, RocketCluster) else await cluster.admin.node_status()


def _with_own(found: Sequence[Broker], node: NodeStatus | None) -> list[Broker]:
    """Add the values in a node's status to its broker, which is found by its port."""
    if node is None:
        return list(found)
    ports = {one.address.rpartition(":")[2] for one in node.listeners if one.name in _BROKER_PORTS}
    own = [one for one in found if one.address.rpartition(":")[2] in ports]
    if len(own) != 1:  # brokers on other machines may have the same port
        return list(found)
    rates = {one.name: one.last_10_s for one in node.rates}
    disk = node.disk
    free, total = (None, None) if disk is None else (disk.free_bytes, disk.disk_bytes)
    known = msgspec.structs.replace(
        own[0],
        version=f"coherer {node.version}",
        in_per_s=rates.get("messages in"),
        out_per_s=rates.get("messages out"),
        disk_used=None if free is None or not total else 1 - free / total,
        disk_bytes=total,
        disk_free_bytes=free,
        started_ms=int((time.time() - node.running_s) * 1000),
    )
    return [known if one is own[0] else one for one in found]
