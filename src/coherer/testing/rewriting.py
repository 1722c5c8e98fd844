"""Replaces brokers' addresses in the traffic between a client and a master or name server.

A client asks the server in its URL for the addresses of brokers, and connects to them directly. A
proxy in front of that server alone would see no message. So in the answers of the server, ports of
the proxy replace those of the brokers; requests that repeat such an address get the original back.

The new address is as long as the old one: the same host, and a port with as many digits. So the
lengths inside of a frame stay correct, whatever its encoding is.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from coherer._wire.rocketmq import frame as rocketmq
from coherer._wire.tubemq import frame as tubemq
from coherer.errors import CohererError, ProtocolError, UsageError

_ADDRESS: Final = re.compile(rb"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3}):(\d{2,5})")
_BROKER_ID: Final = re.compile(rb"\d+:$")
_DIGITS_MIN: Final = 2
_PORTS_TRIED: Final = 100

Open = Callable[[str, int, int], Awaitable[int]]
"""Opens a port for clients: the broker's host and port, and the port to listen on, 0 for any. It
returns the port, and raises `UsageError` if it is taken.
"""


class Addresses:
    """The addresses of the brokers, and the ports of the proxy that replace them.

    Args:
        open_port: opens a port of the proxy.
    """

    def __init__(self, open_port: Open) -> None:
        self._open_port = open_port
        self._opening = asyncio.Lock()
        self._proxied: dict[bytes, bytes] = {}
        self._brokers: dict[bytes, bytes] = {}

    async def hide(self, data: bytes) -> bytes:
        """Replace the brokers' addresses; new ones get a port first."""
        async with self._opening:
            for start, end in find_addresses(data):
                if data[start:end] not in self._proxied:
                    await self._stand_in(data[start:end])
        return _replaced(data, self._proxied)

    async def restore(self, data: bytes) -> bytes:
        """Replace the proxy's addresses by the original ones."""
        return _replaced(data, self._brokers)

    async def _stand_in(self, address: bytes) -> None:
        name, _, digits = address.rpartition(b":")
        host = name.decode()
        lowest, end = max(10 ** (len(digits) - 1), 1024), min(10 ** len(digits), 65_536)
        if lowest >= end:
            raise UsageError(
                f"The proxy cannot stand in for the broker {address.decode()}: its own port would "
                f"need {len(digits)} digits, too.",
                hint="Start the broker with a port above 1023.",
            )
        for _ in range(_PORTS_TRIED):
            wanted = 0 if len(digits) == 5 else random.randrange(lowest, end)  # noqa: S311
            try:
                port = await self._open_port(host, int(digits), wanted)
            except UsageError as error:
                if "in use" in error.text:
                    continue
                raise
            proxied = f"{host}:{port}".encode()
            self._proxied[address], self._brokers[proxied] = proxied, address
            return
        raise UsageError(f"The proxy found no free port for the broker {address.decode()}.")


def find_addresses(data: bytes) -> list[tuple[int, int]]:
    """Return the begin and the end of each address in a frame.

    >>> data = b'{0:"127.0.0.1:10911"}'
    >>> [data[start:end] for start, end in find_addresses(data)]
    [b'127.0.0.1:10911']
    """
    return [(found.start(), _end(data, found)) for found in _ADDRESS.finditer(data)]


def _end(data: bytes, found: re.Match[bytes]) -> int:
    """The end of an address.

    In TubeMQ's protobuf messages the byte after a text may look like another digit of the port. The
    text is `id:host:port`, and the byte before it is its length.
    """
    broker = _BROKER_ID.search(data, max(0, found.start() - 12), found.start())
    if broker is not None and broker.start() > 0:
        end = broker.start() + data[broker.start() - 1]
        if found.start(2) + _DIGITS_MIN <= end <= found.end():
            return end
    return found.end()


def _replaced(data: bytes, replacements: Mapping[bytes, bytes]) -> bytes:
    changed = bytearray(data)
    for start, end in find_addresses(data):
        address = data[start:end]
        changed[start:end] = replacements.get(address, address)
    return bytes(changed)


class Translator:
    """One direction of one connection: it changes whole frames, and keeps their order.

    Args:
        scheme: `tubemq` or `rocketmq`.
        change: changes the contents of a frame.
        put: takes the changed bytes; None for the end of the connection.
        failed: called if the bytes are not frames, or a port could not be opened.
    """

    def __init__(
        self,
        scheme: str,
        change: Callable[[bytes], Awaitable[bytes]],
        put: Callable[[bytes | None], None],
        failed: Callable[[CohererError], None],
    ) -> None:
        self._split = _TubeFrames().split if scheme == "tubemq" else _RocketFrames().split
        self._change, self._put, self._failed = change, put, failed
        self._frames: deque[_Frame | None] = deque()
        self._working: asyncio.Task[None] | None = None

    def received(self, data: bytes | None) -> None:
        """Take bytes of the connection; None at its end."""
        try:
            self._frames += [None] if data is None else self._split(data)
        except ProtocolError as error:
            self._failed(error)
            return
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._frames:
                frame = self._frames.popleft()
                if frame is None:
                    self._put(None)
                else:
                    content, encode = frame
                    self._put(encode(await self._change(content)))
        except CohererError as error:
            self._failed(error)
        finally:
            self._working = None


_Frame = tuple[bytes, Callable[[bytes], bytes]]
"""The part of a frame that may have addresses, and how to build the frame around a new one."""


class _TubeFrames:
    def __init__(self) -> None:
        self._decoder = tubemq.FrameDecoder()

    def split(self, data: bytes) -> list[_Frame]:
        return [
            (payload, partial(tubemq.encode_frame, serial))
            for serial, payload in self._decoder.feed(data)
        ]


class _RocketFrames:
    def __init__(self) -> None:
        self._decoder = rocketmq.FrameDecoder()

    def split(self, data: bytes) -> list[_Frame]:
        def encoder(kind: int, header: bytes) -> Callable[[bytes], bytes]:
            return lambda body: rocketmq.prefix(kind, len(header), len(body)) + header + body

        return [
            (bytes(body), encoder(kind, header)) for kind, header, body in self._decoder.feed(data)
        ]
