"""Java's `String.hashCode`: tags and index keys are looked up by it (RocketMQ 4.9)."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Give Java's hash of a string, a signed 32-bit number.

    Java counts UTF-16 units: a character beyond U+FFFF counts as its two surrogates.

    >>> java_hash("TagA"), java_hash("refund"), java_hash("😀")
    (2598919, -934813832, 1772899)
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tag_code(tag: str | None) -> int:
    """Give the code of a tag in the consume queue: its hash, 0 for none.

    >>> tag_code("TagB"), tag_code(None), tag_code("")
    (2598920, 0, 0)
    """
    return java_hash(tag) if tag else 0
