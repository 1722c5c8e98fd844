"""Keys of messages on their way to the index: their hashes, and where the messages lie.

Of a key the index holds only the hash; who looks a key up compares the messages that are found.
So the hash is all that is kept of a key from the moment when its message is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from coherer._record.properties import java_hash

_INT_MIN = -(1 << 31)
_LONG = 20
_HEADS_KEPT = 4_096
_POWERS = {count: pow(31, count, 1 << 32) for count in (2, 8)}


class Keys:
    """Keys in the order of the log: three lists of equal length.

    One thread may add keys behind the others (`extend`) while another takes the first ones and
    drops them: a key is there when it is in the last list, and lists grow and shrink at once.
    (Many small objects instead would keep the garbage collector busy.)

    Attributes:
        hashes: of the keys.
        offsets: where the messages lie in the log.
        times_ms: when they were stored.

    >>> len(Keys([key_hash("TopicTest", "k1")], [4096], [9]))
    1
    """

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self, hashes: list[int], offsets: list[int], times_ms: list[int]) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        return len(self.times_ms)

    def extend(self, other: Keys) -> None:
        """Take what another one has behind these."""
        self.hashes += other.hashes
        self.offsets += other.offsets
        self.times_ms += other.times_ms

    def first(self, count: int) -> Keys:
        """Give the first keys, up to `count`."""
        count = min(count, len(self))  # what is only in the other lists is being added
        return Keys(self.hashes[:count], self.offsets[:count], self.times_ms[:count])

    def drop(self, count: int) -> None:
        """Forget the first keys."""
        del self.hashes[:count], self.offsets[:count], self.times_ms[:count]


def key_hash(topic: str, key: str) -> int:
    """Give the hash that a key is indexed by.

    >>> key_hash("TopicTest", "k1")
    2746024
    """
    (value,) = hashes_of(topic).of((key,))
    return value


class Hashes:
    """The hashes of a topic's keys.

    The hash of a text is made of those of its parts. So what the topic adds is worked out once for
    each length of a key, and of the ids that a client makes, only whose ends differ, mostly the
    last two characters are looked up, and what is before them: whatever topics they go to.
    """

    __slots__ = ("_terms", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic + "#"
        self._terms: dict[int, int] = {}

    def of(self, keys: Iterable[str]) -> list[int]:
        """Give the hash of each key."""
        heads, pairs, terms = _HEADS, _PAIRS, self._terms
        hashes: list[int] = []
        for key in keys:
            length = len(key)
            if length > _LONG and key.isascii():
                term = terms.get(length)
                if term is None:
                    term = terms[length] = java_hash(self._topic) * pow(31, length, 1 << 32)
                value = (term + heads[key[:-2]] + pairs[key[-2:]]) & 0xFFFFFFFF
                if value >= 0x80000000:
                    value = 0x100000000 - value if value != 0x80000000 else 0
            else:
                value = java_hash(self._topic + key)
                value = 0 if value == _INT_MIN else abs(value)
            hashes.append(value)
        return hashes


class _Heads(dict[str, int]):
    """What all but the last two characters of a key add to its hash."""

    def __missing__(self, text: str) -> int:
        # What is before the last eight stays the same for as long as a client lives.
        value = _hash_of(text[:-8]) * _POWERS[8] + java_hash(text[-8:])
        head = (value * _POWERS[2]) & 0xFFFFFFFF
        if len(self) >= _HEADS_KEPT:
            self.clear()
        self[text] = head
        return head


class _Pairs(dict[str, int]):
    """The hashes of two ASCII characters."""

    def __missing__(self, pair: str) -> int:
        value = self[pair] = java_hash(pair)
        return value


_HEADS = _Heads()
_PAIRS = _Pairs()
hashes_of = lru_cache(maxsize=256)(Hashes)
"""The hashes of a topic's keys; the same object for the same topic."""


@lru_cache(maxsize=8192)
def _hash_of(text: str) -> int:
    return java_hash(text)
