"""The load of `bench.connections`: many clients of one system, in one process.

A client here is a connection that sends what Java's client sends, without a client behind it, so
that the processor is left to the system. The program prints its figures as JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Final

from bench.connecting import Clients
from bench.rocketmq_connections import RocketMQClients
from bench.tubemq_connections import TubeMQClients
from bench.usage import cpu_of, resident_mb
from coherer import _net as net

ROUNDS: Final = 5
KINDS: Final[dict[str, type[Clients]]] = {"rocketmq": RocketMQClients, "tubemq": TubeMQClients}


async def main(clients: Clients, pids: Sequence[int]) -> None:
    """Measure, and print the figures.

    Args:
        clients: the load.
        pids: the processes of the system; their CPU and memory count together.
    """

    def cpu() -> float:
        return sum(map(cpu_of, pids))

    net.raise_open_files_limit()
    await clients.connect()
    rounds: list[float] = []
    for _ in range(ROUNDS):
        before = cpu()
        await clients.beat()
        rounds.append(cpu() - before)
    before = cpu()
    balances = await clients.lose_members()
    figures = {
        "heartbeat_cpu": statistics.median(rounds) / clients.heartbeat_s * 1000,
        "balance": statistics.median(balances) * 1000,
        "balance_cpu": (cpu() - before) / clients.groups * 1000,
        "memory": sum(resident_mb(pid, "RssAnon") or 0 for pid in pids),
    }
    print(json.dumps(figures), flush=True)


def start(arguments: Sequence[str]) -> None:
    """Run the program: protocol, address, number of clients, number of groups, process ids."""
    protocol, address, clients, groups, *pids = arguments
    load = KINDS[protocol](address, int(clients), int(groups))
    net.run(main(load, [int(pid) for pid in pids]))
