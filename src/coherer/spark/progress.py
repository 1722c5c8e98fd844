"""How far a stream is behind its queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import msgspec

from coherer.spark.offsets import Offsets, flatten, split_start


class Lag(msgspec.Struct, frozen=True):
    """Messages that a stream has still to read.

    Args:
        total: over all partitions of all sources of ours.
        partitions: by topic, by `broker:partition`.
    """

    total: int
    partitions: Offsets


def lag(progress: Mapping[str, object]) -> Lag:
    """How many messages a stream was behind, from its progress.

    Args:
        progress: `query.lastProgress`, an element of `query.recentProgress`, or the `progress` of
            the event that a `StreamingQueryListener` is told.

    >>> place = '{"flights": {"1:0": 40}}', '{"flights": {"1:0": 100}}'
    >>> source = {"endOffset": place[0], "latestOffset": place[1]}
    >>> lag({"sources": [{"description": "PythonSource", **source}]})
    Lag(total=60, partitions={'flights': {'1:0': 60}})
    """
    behind: Offsets = {}
    for source in cast("list[Mapping[str, object]]", progress["sources"]):
        end, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, key, offset in flatten(newest):
            rows = max(0, offset - end.get(topic, {}).get(key, 0))
            places = behind.setdefault(topic, {})
            places[key] = places.get(key, 0) + rows
    return Lag(sum(rows for _, _, rows in flatten(behind)), behind)


def _offsets(told: object) -> Offsets:
    """Offsets of one of our sources; those of others look different and count nothing."""
    try:
        text = told if isinstance(told, str) else json.dumps(told)
        return split_start(msgspec.json.decode(text, type=dict[str, dict[str, int]]))[0]
    except msgspec.DecodeError:
        return {}
