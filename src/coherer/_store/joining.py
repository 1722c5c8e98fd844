"""Reads the scattered records of a queue as one piece of memory, with numpy.

The records of a queue are mixed with those of other queues, in the order in which they arrived. A
slice for each of them and a join cost 0.3 to 0.5 µs per record. Here the entries of the queue are
an array, and one call copies all records of the same size: 0.05 to 0.1 µs per record. Adjacent
records stay slices of the log. If the records have too many different sizes, the caller has to read
them in another way.

The module needs numpy, which a node can do without; see `reading.Joining`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coherer._record.layout import BLANK_BYTES, MAGIC
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue
from coherer._store.model import ReadResult, ReadStatus

Numbers = NDArray[np.int64]

FEWEST_PER_SIZE: Final = 8
"""The least average number of records of each size for which one call per size pays."""

FEWEST_PER_STRETCH: Final = 8
"""The least average number of records in a slice for which adjacent records stay slices."""

_ENTRY: Final = np.dtype([("at", ">i8"), ("size", ">i4"), ("code", ">i8")])


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
        The records, without `offsets`; None if they have too many sizes, or if an entry does not
        lead to a record of its size.
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
        firsts, lasts = [0, *breaks.tolist()], [*(breaks - 1).tolist(), count - 1]
        stops = places + sizes
        records = [view[places[a] : stops[b]] for a, b in zip(firsts, lasts, strict=True)]
    else:
        piece = joined(view, places, sizes, behind)
        if piece is None:
            return None
        records = [piece]
    if not _are_records(view, places, sizes):
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


def joined(view: memoryview, places: Numbers, sizes: Numbers, behind: Numbers) -> memoryview | None:
    """Copy pieces of a buffer into one, in order; None if they have too many different sizes.

    Args:
        view: the buffer.
        places: where the pieces begin in it; not empty.
        sizes: the sizes of the pieces.
        behind: for each piece, the sum of the sizes up to its end.

    >>> places, sizes = np.array([5, 0]), np.array([3, 3])
    >>> bytes(joined(memoryview(b"def..abc"), places, sizes, np.cumsum(sizes)))
    b'abcdef'
    """
    order = np.argsort(sizes, kind="stable")
    by_size = sizes[order]
    edges = [0, *(np.flatnonzero(by_size[1:] != by_size[:-1]) + 1).tolist(), len(order)]
    if len(edges) - 1 > max(1, len(order) // FEWEST_PER_SIZE):
        return None
    if len(edges) == 2:
        return _pieces(view, int(sizes[0]))[places].view(np.uint8).data
    found = np.empty(int(behind[-1]), np.uint8).data
    for first, end in pairwise(edges):
        which = order[first:end]
        size = int(by_size[first])
        _pieces(found, size)[behind[which] - size] = _pieces(view, size)[places[which]]
    return found


def _pieces(view: memoryview, size: int) -> NDArray[np.void]:
    """Return all pieces of a size in a buffer, as an array that shares its memory."""
    return np.ndarray((len(view) - size + 1,), f"V{size}", view, 0, (1,))
