"""The bloom filter that RocketMQ's broker keeps with SQL92 subscriptions (3.11).

Each pair of group and topic has k bits of m. A broker that calculates bit maps at write time can
then skip messages at read time without evaluating the expression; ours evaluates, but writes the
same `bloomFilterData` into consumerFilter.json, because a Java broker that finds other numbers
there forgets all filters.

Java's defaults (20 % errors, 32 consumers) make k = 3 and m = 112:

>>> BloomFilter().positions("GID_PY#T1")
(5, 12, 92)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from coherer.errors import UsageError

ERROR_PERCENT: Final = 20
CONSUMERS: Final = 32


class BloomFilter:
    """Bit positions for texts.

    Args:
        error_percent: how many answers may be wrong, 1 to 99.
        consumers: for how many texts.

    Attributes:
        hashes: how many bits a text has.
        bits: how many bits there are.

    Raises:
        UsageError: a number is out of its range.
    """

    def __init__(self, error_percent: int = ERROR_PERCENT, consumers: int = CONSUMERS) -> None:
        if not 0 < error_percent < 100 or consumers < 1:
            raise UsageError(
                f"There is no bloom filter for {error_percent} % errors and {consumers} consumers."
            )
        rate = error_percent / 100
        self.hashes = math.ceil(math.log(rate) / math.log(0.5))
        needed = math.ceil(consumers * math.log2(1 / rate) * math.log2(math.e))
        self.bits = -(-needed // 8) * 8

    def positions(self, text: str) -> tuple[int, ...]:
        """Give the bits of a text; some may be equal.

        >>> BloomFilter().positions("group#topic")
        (79, 21, 21)
        """
        import mmh3

        low64 = mmh3.hash64(text.encode(), 0, True, signed=False)[0]
        first, second = low64 & 0xFFFFFFFF, low64 >> 32
        found: list[int] = []
        for number in range(1, self.hashes + 1):
            combined = first + number * second & 0xFFFFFFFF
            if combined & 0x80000000:  # negative in Java, which turns all bits then
                combined ^= 0xFFFFFFFF
            found.append(combined % self.bits)
        return tuple(found)

    def bitmap(self, positions: Iterable[int]) -> bytes:
        """Give the bits as bytes: bit p is in byte p // 8, with the value 1 << p % 8.

        >>> BloomFilter().bitmap([5, 12, 92]).hex()
        '2010000000000000000000100000'
        """
        data = bytearray(self.bits // 8)
        for position in positions:
            data[position // 8] |= 1 << position % 8
        return bytes(data)

    @staticmethod
    def holds(bitmap: bytes, positions: Iterable[int]) -> bool:
        """Tell whether all of the bits are set.

        >>> BloomFilter.contains(bytes.fromhex("2010"), [5, 12]), BloomFilter.contains(bytes.fromhex("2010"), [4])
        (True, False)
        """
        return all(bitmap[position // 8] >> position % 8 & 1 for position in positions)
