"""Reads the scattered records of a queue as one piece of memory, with numpy.

The records of a queue are mixed with those of other queues, in the order in which they arrived. A
slice for each of them and a join cost 0.3 to 0.5 µs per record. Here the entries of the queue are
an array, and one call copies all records: 0.05 to 0.25 µs per record. Adjacent records stay slices
of the log. If a few records are much larger than the others, the caller has to read them in another
way.

The module needs numpy, which a node can do without; see `reading.Joining`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from coherer._record.layout import BLANK_BYTES, MAGIC
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue
from coherer._store.model import ReadResult, ReadStatus

Numbers = NDArray[np.int64]

WASTE_BYTES: Final = 512
"""Each record is copied as if it were as large as the largest one. If that copies more unneeded
bytes than this for an average record, slices cost less."""

FEWEST_PER_STRETCH: Final = 8
"""The least average number of records in a slice for which adjacent records stay slices."""

_ENTRY: Final = np.dtype([("at", ">i8"), ("size", ">i4"), ("code", ">i8")])
_HEAD: Final = np.dtype(
    {
        "names": ["size", "magic", "queue", "offset", "flags"],
        "formats": [">u4", ">u4", ">i4", ">i8", "u1"],
        "offsets": [0, 4, 12, 20, 39],
    }
)
"""What a record says about itself, at fixed positions (`layout.is_message`)."""


def read_joined(
    log: CommitLog, queue: ConsumeQueue, offset: int, max_bytes: int, count: int
) -> ReadResult | None:
    """Read records of a queue as one piece, or as a few slices.

    Args:
        log: a log without known damage.
        offset: the offset of the first record, which exists.
        max_bytes: the most bytes to read; the first record is read in any case.
        count: the most records to read.

    Returns:
        The records, without `offsets`; None if a few are much larger than the others, or if an
        entry does not lead to its message (see `reading`).
    """
    raw = np.frombuffer(queue.read(offset, count), _ENTRY)
    places, sizes = raw["at"].astype(np.int64), raw["size"].astype(np.int64)
    segment = log.segment_at(int(places[0])) if len(places) else None
    if segment is None:
        return None
    ends = places + sizes
    # Each log file has its own mapping: stop at its end. A blank entry is not in any file.
    ahead = np.flatnonzero((places < segment.begin) | (ends > segment.end))
    if len(ahead):
        count = int(ahead[0])
        places, sizes, ends = places[:count], sizes[:count], ends[:count]
    if not len(places) or int(sizes.min()) < BLANK_BYTES:
        return None
    behind = np.cumsum(sizes)
    if behind[-1] > max_bytes:
        count = max(1, int(np.searchsorted(behind, max_bytes, "right")))
        places, sizes, ends, behind = places[:count], sizes[:count], ends[:count], behind[:count]
    view, backlog, count = log.view_of(segment), log.shown - int(ends[-1]), len(places)
    places = places - segment.begin
    breaks = np.flatnonzero(places[1:] != ends[:-1] - segment.begin) + 1
    if (len(breaks) + 1) * FEWEST_PER_STRETCH <= count:
        firsts, lasts = np.append(0, breaks), np.append(breaks - 1, count - 1)
        ends, stops = np.union1d(firsts, lasts), places[lasts] + sizes[lasts]
        records = [view[a:b] for a, b in zip(places[firsts], stops, strict=True)]
        checked = _are_records(view, places, sizes) and _are_messages(
            view, places[ends], sizes[ends], queue, offset + ends
        )
    elif (piece := joined(view, places, sizes, behind)) is None:
        return None
    else:
        records = [piece]
        checked = _are_messages(view, places, sizes, queue, np.arange(offset, offset + count))
    if not checked:
        return None
    return ReadResult(
        ReadStatus.FOUND,
        records,
        [],
        offset + count,
        queue.min,
        queue.max,
        backlog,
        heads_match=True,
    )


def _are_records(view: memoryview, places: Numbers, sizes: Numbers) -> bool:
    """Whether records of these sizes begin at these places."""
    heads = np.ndarray((len(view) - BLANK_BYTES + 1,), "V8", view, 0, (1,))[places]
    found = heads.view(">u4").reshape(-1, 2)
    return bool((found[:, 0] == sizes).all() and (found[:, 1] == MAGIC).all())


def _are_messages(
    view: memoryview, places: Numbers, sizes: Numbers, queue: ConsumeQueue, offsets: Numbers
) -> bool:
    """Whether the records at these places say that they are these messages of a queue."""
    if int(places.max()) > len(view) - _HEAD.itemsize:
        return False
    heads = _pieces(view, _HEAD.itemsize)[places].view(_HEAD)
    wanted = (
        ("size", sizes), ("magic", MAGIC), ("queue", queue.queue_id), ("offset", offsets)
    )  # fmt: skip
    if not all((heads[name] == value).all() for name, value in wanted):
        return False
    flags = heads["flags"].astype(np.int64)
    bodies = places + 88 + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1))
    if int(bodies.max()) > len(view):
        return False
    topics = bodies + _pieces(view, 4)[bodies - 4].view(">u4").astype(np.int64)
    size = len(queue.topic_head)
    if int(topics.max()) > len(view) - size:
        return False
    found = _pieces(view, size)[topics].view(np.uint8).reshape(-1, size)
    return bool((found == np.frombuffer(queue.topic_head, np.uint8)).all())


def joined(view: memoryview, places: Numbers, sizes: Numbers, behind: Numbers) -> memoryview | None:
    """Copy pieces of a buffer into one, in order; None if a few are much larger than the others.

    Pieces of different sizes are copied in one call, as if each were as large as the largest one.
    What is too much at the end of a piece is overwritten by the next one, because numpy assigns in
    the order of the index.

    Args:
        view: the buffer.
        places: where the pieces begin in it; not empty.
        sizes: the sizes of the pieces.
        behind: for each piece, the sum of the sizes up to its end.

    >>> places, sizes = np.array([1, 5]), np.array([2, 3])
    >>> bytes(joined(memoryview(b".ab..cde"), places, sizes, np.cumsum(sizes)))
    b'abcde'
    """
    size, total = int(sizes.max()), int(behind[-1])
    if int(sizes.min()) == size:
        return _pieces(view, size)[places].view(np.uint8).data
    if size - total / len(sizes) > WASTE_BYTES:
        return None
    found = np.empty(total + size, np.uint8).data
    fits = places <= len(view) - size  # not the last ones of the buffer
    count = len(places) if fits.all() else int(fits.argmin())
    begins = behind - sizes
    _pieces(found, size)[begins[:count]] = _pieces(view, size)[places[:count]]
    for number in range(count, len(places)):
        begin, end, place = int(begins[number]), int(behind[number]), int(places[number])
        found[begin:end] = view[place : place + end - begin]
    return found[:total]


def _pieces(view: memoryview, size: int) -> NDArray[np.void]:
    """Return all pieces of a size in a buffer, as an array that shares its memory."""
    return np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
