"""Adds a broker's report about itself (GET_BROKER_RUNTIME_INFO) to its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from coherer._record.properties import number_in
from coherer._wire.rocketmq.codes import version_name
from coherer.admin import Broker

_DISK: Final = re.compile(r"Total\s*:\s*([\d.]+)\s*(\w+),\s*Free\s*:\s*([\d.]+)\s*(\w+)")
_UNITS: Final = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


def with_runtime(broker: Broker, reported: Mapping[str, str], version: int) -> Broker:
    """Add a broker's report about itself to its record.

    Args:
        reported: its values by Java's names.
        version: the number of its release, from the header of its answer.
    """
    total, free = _disk(reported.get("commitLogDirCapacity", ""))
    return replace(
        broker,
        status="running",
        version=reported.get("brokerVersionDesc") or version_name(version),
        in_per_s=_first(reported.get("putTps", "")),
        out_per_s=_first(reported.get("getTransferedTps", "")),
        disk_used=_ratio(reported.get("commitLogDiskRatio", "")),
        disk_bytes=total,
        disk_free_bytes=free,
        started_ms=number_in(reported.get("bootTimestamp")),
        reported=reported,
    )


def _first(numbers: str) -> float:
    """The first of several numbers, or 0 for an empty text.

    >>> _first("12.5 3.0 1.0"), _first("")
    (12.5, 0.0)
    """
    try:
        return float(numbers.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return 0.0


def _disk(words: str) -> tuple[int | None, int | None]:
    """The size of a disk and its free space, in bytes.

    >>> _disk("Total : 100.0 GiB, Free : 512 MiB."), _disk("")
    ((107374182400, 536870912), (None, None))
    """
    found = _DISK.search(words)
    if found is None:
        return None, None
    total, total_unit, free, free_unit = found.groups()
    return _bytes(total, total_unit), _bytes(free, free_unit)


def _bytes(number: str, unit: str) -> int | None:
    factor = _UNITS.get(unit[0].upper())
    return None if factor is None else int(float(number) * factor)


def _ratio(words: str) -> float | None:
    """Parse a share of 1; None for an unknown one, which brokers report as a negative number."""
    try:
        value = float(words)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
