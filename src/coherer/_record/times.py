"""A message's own time as text, in the property `$msgTime$` that both doors store.

TubeMQ's clients write minutes (`yyyyMMddHHmm`), and no zone. RocketMQ's have no such property; ours
writes the same text for whole minutes and `yyyyMMddHHmmssSSS` for others. Both forms are read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

MINUTE_CHARS: Final = 12
MILLISECOND_CHARS: Final = 17


@lru_cache(maxsize=1024)
def encode_time(time: datetime) -> str:
    """Write a time: to the minute if that is all of it, otherwise to the millisecond.

    Aware times become UTC.

    >>> encode_time(datetime(2024, 1, 2, 3, 4)), encode_time(datetime(2024, 1, 2, 3, 4, 5, 6789))
    ('202401020304', '20240102030405006')
    """
    if time.tzinfo is not None:
        time = time.astimezone(UTC)
    minute = f"{time.year:04}{time.month:02}{time.day:02}{time.hour:02}{time.minute:02}"
    if not time.second and time.microsecond < 1000:
        return minute
    return f"{minute}{time.second:02}{time.microsecond // 1000:03}"


@lru_cache(maxsize=1024)
def decode_time(text: str) -> datetime | None:
    """Read a time of either form; None when it is none. The result is naive.

    >>> decode_time("202401020304"), decode_time("yesterday")
    (datetime.datetime(2024, 1, 2, 3, 4), None)
    >>> decode_time("20240102030405006")
    datetime.datetime(2024, 1, 2, 3, 4, 5, 6000)
    """
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) not in (MINUTE_CHARS, MILLISECOND_CHARS):
        return None
    second, fraction = text[12:14] or "0", text[14:] or "0"
    try:
        return datetime(  # noqa: DTZ001 - the text knows no zones
            int(text[:4]),
            int(text[4:6]),
            int(text[6:8]),
            int(text[8:10]),
            int(text[10:12]),
            int(second),
            int(fraction) * 1000,
        )
    except ValueError:
        return None
