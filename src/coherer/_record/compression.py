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


class InflatedTooLargeError(DamagedStoreError):
    """A compressed body is larger than what is taken."""


def compress(body: bytes, level: int = LEVEL) -> bytes:
    """Compress a body.

    >>> decompress(compress(b"a" * 10_000), limit_bytes=20_000) == b"a" * 10_000
    True
    """
    return zlib.compress(body, level)


def looks_compressed(data: bytes | memoryview) -> bool:
    """Whether bytes begin as zlib data do. If not, `decompress` refuses them at once.

    >>> looks_compressed(compress(b"hello")), looks_compressed(b"hello")
    (True, False)
    """
    return len(data) > 1 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0


def decompress(data: bytes | memoryview, *, limit_bytes: int) -> bytes:
    """Give back a compressed body.

    Raises:
        InflatedTooLargeError: more than `limit_bytes` come out.
        DamagedStoreError: it is not whole zlib data.
    """
    machine = zlib.decompressobj()
    try:
        body = machine.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise DamagedStoreError(f"The body is not zlib data: {error}.") from error
    if len(body) > limit_bytes:
        raise InflatedTooLargeError(f"The body takes more than {limit_bytes} bytes when inflated.")
    if not machine.eof:
        raise DamagedStoreError("The compressed body is cut short.")
    return body
