"""Bodies of RocketMQ messages are compressed by the client with zlib; the store never looks."""

from __future__ import annotations

import zlib
from typing import Final

from coherer.errors import DamagedStoreError

COMPRESSED: Final = 1
"""The bit of `sys_flag` that says so."""

THRESHOLD_BYTES: Final = 4096
"""Java's producer compresses bodies of this length or more."""

LEVEL: Final = 5
"""Java's default level."""


def compress(body: bytes, level: int = LEVEL) -> bytes:
    """Compress a body.

    >>> decompress(compress(b"a" * 10_000), limit_bytes=20_000) == b"a" * 10_000
    True
    """
    return zlib.compress(body, level)


def decompress(data: bytes | memoryview, *, limit_bytes: int) -> bytes:
    """Give back a compressed body.

    Raises:
        DamagedStoreError: it is not whole zlib data, or more than `limit_bytes` come out.
    """
    machine = zlib.decompressobj()
    try:
        body = machine.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise DamagedStoreError(f"The body is not zlib data: {error}.") from error
    if len(body) > limit_bytes:
        raise DamagedStoreError(f"The body takes more than {limit_bytes} bytes when inflated.")
    if not machine.eof:
        raise DamagedStoreError("The compressed body is cut short.")
    return body
