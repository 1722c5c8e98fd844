"""What a server asks other servers: brokers name servers, slaves their master.

One connection per address, made when it is needed and kept.
"""

from __future__ import annotations

import asyncio

from coherer import _net as net
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._wire.rocketmq.acl import Signer
from coherer._wire.rocketmq.command import Command
from coherer.errors import UsageError


class RemotingClient:
    """Connections to other servers, by address.

    Args:
        tls: how connections are made secret; None for plain ones.
        sign: adds account and signature to the fields of a request; None for neither.
    """

    def __init__(self, tls: net.TlsOptions | None = None, sign: Signer | None = None) -> None:
        self._remoting = RemotingServer({})
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
        """Ask a server and wait for its answer, whatever its code.

        Args:
            address: host:port.
            code: what is asked.
            fields: the header.
            body: the body.
            timeout_ms: for the connection, and again for the answer.

        Raises:
            UnavailableError: no connection, or no answer in time; the connection is closed then.
            UsageError: the address is none.
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
        """End all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    async def _channel(self, address: str, timeout_ms: int) -> Channel:
        async with self._locks.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                host, port = host_and_port(address)
                door = await net.dial(
                    host, port, self._remoting.make, tls=self._tls, timeout_ms=timeout_ms
                )
                channel = self._channels[address] = door.channel
            return channel


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address.

    Raises:
        UsageError: it is none.

    >>> host_and_port("10.0.0.1:9876"), host_and_port("[::1]:9876")
    (('10.0.0.1', 9876), ('::1', 9876))
    """
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no host:port.")
    return host.strip("[]"), int(port)
