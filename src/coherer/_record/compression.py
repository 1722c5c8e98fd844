"""Compression of bodies: RocketMQ's clients use zlib. The store does not look inside bodies."""

from __future__ import annotations

import zlib
from typing import Final

from coherer.errors import DamagedStoreError

COMPRESSED: Final = 1
"""The flag in `sys_flag` of a compressed body."""

THRESHOLD_BYTES: Final = 4096
"""Java's producer compresses bodies of this length or more."""

LEVEL: Final = 5
"""Java's default level."""


RATIO_MAX: Final = 1032
"""How many bytes one byte of zlib data becomes at most."""


class InflatedTooLargeError(DamagedStoreError):
    """A decompressed body exceeds the limit."""


def compress(body: bytes, level: int = LEVEL) -> bytes:
    """Compress a body.

    >>> decompress(compress(b"a" * 10_000), limit_bytes=20_000) == b"a" * 10_000
    True
    """
    return zlib.compress(body, level)


def looks_compressed(data: bytes | memoryview) -> bool:
    """Whether bytes begin like zlib data. If not, `decompress` raises an error at once.

    >>> looks_compressed(compress(b"hello")), looks_compressed(b"hello")
    (True, False)
    """
    return len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0


def decompress(data: bytes | memoryview, *, limit_bytes: int) -> bytes:
    """Decompress a body.

    Raises:
        InflatedTooLargeError: the result is larger than `limit_bytes`.
        DamagedStoreError: it is not complete zlib data.
    """
    decompressor = zlib.decompressobj()
    try:
        body = decompressor.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise DamagedStoreError(f"The body is not zlib data: {error}.") from error
    if len(body) > limit_bytes:
        raise InflatedTooLargeError(f"The decompressed body exceeds {limit_bytes} bytes.")
    if not decompressor.eof:
        raise DamagedStoreError("The compressed body is truncated.")
    return body
