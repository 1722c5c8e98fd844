"""Which messages a consumer with filters gets.

A filter is a set of words; a message passes when its tag is one of them. The broker compares hash
codes, as the consume queue holds nothing else, so that a consumer checks the word again.
"""

from __future__ import annotations

from collections.abc import Iterable

from coherer._record.properties import java_hash


def tag_codes(filters: Iterable[str]) -> frozenset[int] | None:
    """The codes that pass, or None when everything does.

    >>> sorted(tag_codes(["TagA", " TagB ", ""]))
    [2598919, 2598920]
    >>> tag_codes([" "]) is None
    True
    """
    return frozenset(java_hash(word) for item in filters if (word := item.strip())) or None
