"""What the loads of `bench.connections_main` have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

TOPIC: Final = "consume"
MEMBERS: Final = 10
"""Consumers of a group."""
AT_ONCE: Final = 200
"""Clients that connect, or send a heartbeat, together."""


class Clients(ABC):
    """All clients of one system.

    Args:
        address: of the broker or the master, host:port.
        clients: how many there are.
        groups: how many groups of `MEMBERS` consumers are among them; the others are producers.

    Attributes:
        heartbeat_s: how often Java's client sends its heartbeat.
        place: host and port.
    """

    heartbeat_s: int

    def __init__(self, address: str, clients: int, groups: int) -> None:
        host, _, port = address.rpartition(":")
        self.place = host, int(port)
        self.clients, self.groups = clients, groups

    @abstractmethod
    async def connect(self) -> None:
        """Open all connections, and register all clients."""

    @abstractmethod
    async def beat(self) -> None:
        """Send the heartbeat of each client once."""

    @abstractmethod
    async def lose_members(self) -> list[float]:
        """In each group a consumer goes; return the seconds until the others have its share."""

    @staticmethod
    async def in_parts(items: Iterable[T], act: Callable[[T], Coroutine[None, None, None]]) -> None:
        """Do something with all items, with `AT_ONCE` of them at a time."""
        left = iter(items)
        while some := list(islice(left, AT_ONCE)):
            await asyncio.gather(*map(act, some))
