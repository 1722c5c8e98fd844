"""Requests to other servers: from brokers to name servers, and from slaves to their master.

There is one connection per address. It is opened at the first request and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coherer import _net as net
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._wire.rocketmq.acl import Signer
from coherer._wire.rocketmq.command import Command
from coherer.errors import UsageError


class RemotingClient:
    """Connections to other servers, by address.

    Args:
        tls: how connections are encrypted; None for plain ones.
        sign: adds access key and signature to the fields of a request; None for unsigned requests.

    Attributes:
        lost: called with the address when a connection has ended.
    """

    def __init__(self, tls: net.TlsOptions | None = None, sign: Signer | None = None) -> None:
        self.lost: Callable[[str], None] = lambda _: None
        self._remoting = RemotingServer({}, closed=self._closed)
        self._tls = tls
        self._sign = sign
        self._channels: dict[str, Channel] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ask(
        self,
        address: str,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> Command:
        """Send a request and wait for the response, even if it is an error.

        Args:
            address: host:port.
            timeout_ms: for connecting, and again for the response.

        Raises:
            UnavailableError: no connection, or no response in time; the connection is closed then.
            UsageError: the address is not valid.
        """
        channel = await self._channel(address, timeout_ms)
        try:
            if self._sign is not None:
                fields = self._sign(fields or {}, body)
            return await channel.call(code, fields, body, timeout_ms)
        except TimeoutError:
            channel.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _closed(self, channel: Channel) -> None:
        for address, known in self._channels.items():
            if known is channel:
                self.lost(address)

    async def _channel(self, address: str, timeout_ms: int) -> Channel:
        async with self._locks.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                host, port = host_and_port(address)
                receiver = await net.dial(
                    host, port, self._remoting.make, tls=self._tls, timeout_ms=timeout_ms
                )
                channel = self._channels[address] = receiver.channel
            return channel


def host_and_port(address: str) -> tuple[str, int]:
    """Split an address.

    Raises:
        UsageError: it is not `host:port`.

    >>> host_and_port("10.0.0.1:9876"), host_and_port("[::1]:9876")
    (('10.0.0.1', 9876), ('::1', 9876))
    """
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is not host:port.")
    return host.strip("[]"), int(port)
