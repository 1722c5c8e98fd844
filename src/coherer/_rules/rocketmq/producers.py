"""The producers that are connected to a RocketMQ broker (rocketmq 3.9, 3.10).

Different from Java's manager: a client that has left one of its groups, or that has come back on a
second connection, is still found by its id, so that answers reach it (2.14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from coherer._common.logs import Log
from coherer._rules.rocketmq.clients import EXPIRED_MS, ClientInfo

C = TypeVar("C", bound=Hashable)

_log = Log(logging.getLogger(__name__))

_TRIES = 3


class ProducerManager(Generic[C]):
    """The groups of producers, and every producer by its client id.

    >>> manager = ProducerManager[str]()
    >>> manager.register("g", ClientInfo("channel", "me", "PYTHON", 399, 0))
    >>> manager.available("g", lambda channel: True), manager.find("me")
    ('channel', 'channel')
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[C, ClientInfo[C]]] = {}
        self._channels: dict[str, C] = {}
        self._of_channel: dict[C, set[str]] = {}
        self._turn = 0

    def members(self, group: str) -> list[ClientInfo[C]] | None:
        """The producers of a group; None when there is no such group."""
        found = self._groups.get(group)
        return None if found is None else list(found.values())

    def find(self, client_id: str) -> C | None:
        """The channel of a client, or None."""
        return self._channels.get(client_id)

    def register(self, group: str, info: ClientInfo[C]) -> None:
        """Take a producer's heartbeat."""
        members = self._groups.setdefault(group, {})
        known = members.get(info.channel)
        if known is not None:
            known.updated_ms = info.updated_ms
            return
        members[info.channel] = info
        self._channels[info.client_id] = info.channel
        self._of_channel.setdefault(info.channel, set()).add(group)
        _log.info("Producer group %s: %s joined (%s)", group, info.client_id, info.language)

    def unregister(self, group: str, channel: C) -> None:
        """A producer says good-bye."""
        members = self._groups.get(group, {})
        info = members.pop(channel, None)
        if info is None:
            return
        if not members:
            del self._groups[group]
        groups = self._of_channel[channel]
        groups.discard(group)
        if not groups:
            del self._of_channel[channel]
            if self._channels.get(info.client_id) == channel:
                del self._channels[info.client_id]

    def close(self, channel: C) -> None:
        """A connection is gone."""
        for group in list(self._of_channel.get(channel, ())):
            self.unregister(group, channel)

    def expire(self, now_ms: int) -> list[C]:
        """Forget producers that were not heard of in time. Returns their channels, to be closed."""
        gone = [
            (group, channel)
            for group, members in self._groups.items()
            for channel, member in members.items()
            if now_ms - member.updated_ms > EXPIRED_MS
        ]
        for group, channel in gone:
            self.unregister(group, channel)
        return list(dict.fromkeys(channel for _, channel in gone))

    def available(
        self,
        group: str,
        alive: Callable[[C], bool],
        writable: Callable[[C], bool] = lambda _: True,
    ) -> C | None:
        """A producer of a group that can be asked something, by turns.

        Args:
            group: the group.
            alive: whether a channel is connected.
            writable: whether it takes more to send at the moment.

        Returns:
            One that is alive and writable when a few tries find it, else one that is alive.
        """
        channels = list(self._groups.get(group, ()))
        if not channels:
            return None
        self._turn = self._turn + 1 & 0x7FFFFFFF
        last: C | None = None
        for step in range(_TRIES):
            channel = channels[(self._turn + step) % len(channels)]
            if alive(channel):
                if writable(channel):
                    return channel
                last = channel
        return last
