"""DraftBatch become the bytes of the log and the entries of the queues: the hot path of writing.

Nothing is written here. One pass gives every message its queue offset and its place in the log; the
store then writes one piece per file of the log, nearly always one; the entries stay in memory for a
while (`waiting`).

Single messages go through a loop (`Encoder._encode`). Those that came together (`DraftBatch`) are
columns, and stay so (`Encoder._together`): each step takes a whole column and is a loop in C.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, repeat
from typing import NamedTuple, cast
from zlib import crc32

from coherer._record.layout import (
    BLANK_BYTES,
    CRC_MASK,
    HEAD_OWN,
    HEAD_SHARED,
    HEAD_V4,
    MAGIC,
    PREPARED,
    ROLLED_BACK,
    blank,
    encode,
)
from coherer._store.consume_queue import ENTRY, ConsumeQueue
from coherer._store.index_file import Keys, hashes_of
from coherer._store.model import AppendResult, Draft, DraftBatch
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX

_SHORT = struct.Struct(">H").pack


class Batch(NamedTuple):
    """What is to be written for a batch of drafts."""

    chunks: list[tuple[int, bytes]]
    queues: list[ConsumeQueue]
    appended: list[AppendResult]
    keys: Keys | None
    end: int


class _Work:
    """What becomes of a batch.

    Attributes:
        store_ms: when all of it is stored.
        store_host: where.
        limit: up to here a record may reach: behind it the log's file has room for the head of a
            blank.
        parts: of the piece of the log that is being made; there is one for each file.
        queues: those that have entries pending.
        hashes: of keys.
        places: the log offset of each of them.
    """

    __slots__ = (
        "_begin", "_chunks", "_segment_bytes", "hashes", "limit", "parts", "places", "queues",
        "store_host", "store_ms",
    )  # fmt: skip

    def __init__(self, segment_bytes: int, begin: int, store_ms: int, store_host: bytes) -> None:
        self._segment_bytes = segment_bytes
        self._begin = begin
        self._chunks: list[tuple[int, bytes]] = []
        self.limit = begin - begin % segment_bytes + segment_bytes - BLANK_BYTES
        self.parts: list[bytes] = []
        self.queues: list[ConsumeQueue] = []
        self.hashes: list[int] = []
        self.places: list[int] = []
        self.store_ms = store_ms
        self.store_host = store_host

    def turn(self) -> int:
        """Fill the file with a blank; give the position where the next one begins."""
        data = b"".join(self.parts)
        end = self.limit + BLANK_BYTES
        self._chunks.append((self._begin, data + blank(end - self._begin - len(data))))
        self._begin, self.parts = end, []
        self.limit = end + self._segment_bytes - BLANK_BYTES
        return end

    def finish(self, appended: list[AppendResult], end: int) -> Batch:
        """Give all of it."""
        if self.parts:
            self._chunks.append((self._begin, b"".join(self.parts)))
        keys: Keys | None = None
        if self.hashes:
            keys = Keys(self.hashes, self.places, [self.store_ms] * len(self.places))
        return Batch(self._chunks, self.queues, appended, keys, end)


class Encoder:
    """Makes batches.

    Args:
        segment_bytes: size of a file of the log; a record never crosses its end.
        queue_of: gives the queue of a (topic, queue id), with an empty `pending`.
    """

    def __init__(self, segment_bytes: int, queue_of: Callable[[str, int], ConsumeQueue]) -> None:
        self._segment_bytes = segment_bytes
        self._queue_of = queue_of
        self._known: dict[tuple[str, int], ConsumeQueue] = {}
        self._hashes = hashes_of("")  # of the topic that came last

    def forget(self) -> None:
        """Ask for the queues anew: some were deleted."""
        self._known.clear()

    def encode(
        self, drafts: Sequence[Draft | DraftBatch], begin: int, store_ms: int, store_host: bytes
    ) -> Batch:
        """Encode a batch that begins at offset `begin` of the log.

        Raises:
            UsageError: a draft cannot be stored; nothing of the batch is.
        """
        work = _Work(self._segment_bytes, begin, store_ms, store_host)
        try:
            appended, end = self._encode_all(drafts, begin, work)
        except BaseException:
            for queue in work.queues:
                queue.pending.clear()
            raise
        for queue in work.queues:
            if queue.delay_ms is not None:
                queue.schedule(store_ms)
        return work.finish(appended, end)

    def _encode_all(
        self, drafts: Sequence[Draft | DraftBatch], position: int, work: _Work
    ) -> tuple[list[AppendResult], int]:
        if DraftBatch not in map(type, drafts):
            return self._encode(cast("Sequence[Draft]", drafts), position, work)
        appended: list[AppendResult] = []
        for draft in drafts:
            if isinstance(draft, DraftBatch):
                placed, position = self._together(draft, self._queue(draft), position, work)
                appended.append(placed)
            else:
                single, position = self._encode([draft], position, work)
                appended += single
        return appended, position

    def _encode(
        self, drafts: Sequence[Draft], position: int, work: _Work
    ) -> tuple[list[AppendResult], int]:
        known, store_ms, store_host = self._known, work.store_ms, work.store_host
        short_hosts = len(store_host) == 8
        appended: list[AppendResult] = []
        limit, parts, places = work.limit, work.parts, work.places
        keys: list[str] = []  # of the same topic
        hashes = self._hashes
        for draft in drafts:
            queue_id = draft.queue_id
            queue = known.get((draft.topic, queue_id)) or self._queue(draft)
            if keys and hashes is not queue.key_hashes:
                work.hashes += hashes.of(keys)
                keys = []
            hashes = queue.key_hashes
            body, properties, born_host = draft.body, draft.properties, draft.born_host
            size = queue.fixed + len(body) + len(properties)
            pending, sys_flag = queue.pending, draft.sys_flag
            plain = short_hosts and len(born_host) == 8
            if not plain:
                size += len(born_host) + len(store_host) - 16
            if len(properties) > PROPERTIES_BYTES_MAX or position + size > limit:
                self._check(draft, len(properties), size)
                if position + size > limit:
                    position = work.turn()
                    limit, parts = work.limit, work.parts
            offset = queue.max + len(pending)
            if plain and not sys_flag & ~1:
                parts += (
                    HEAD_V4.pack(
                        size, MAGIC, crc32(body) & CRC_MASK, queue_id, draft.flag, offset,
                        position, sys_flag, draft.born_ms, born_host, store_ms, store_host,
                        draft.reconsume_times, draft.prepared_offset, len(body),
                    ),
                    body, queue.topic_head, _SHORT(len(properties)), properties,
                )  # fmt: skip
            else:
                offset = _queue_offset(draft, offset)
                parts.append(_encode_one(draft, offset, position, store_ms, store_host))
            if sys_flag & ROLLED_BACK in (0, 8):
                if not pending:
                    work.queues.append(queue)
                pending.append(ENTRY.pack(position, size, draft.tag_code))
            appended.append(AppendResult(offset, position, size))
            for key in draft.keys:
                keys.append(key)
                places.append(position)
            position += size
        work.hashes += hashes.of(keys)
        self._hashes = hashes
        return appended, position

    def _together(
        self, drafts: DraftBatch, queue: ConsumeQueue, begin: int, work: _Work
    ) -> tuple[AppendResult, int]:
        if drafts.sys_flag & ~1 or len(work.store_host) != 8 or len(drafts.born_host) != 8:
            placed, end = self._encode(drafts.to_drafts(), begin, work)
            return _joined(placed), end
        lengths = list(map(len, drafts.bodies))
        texts = list(map(len, drafts.properties))
        fixed, limit = queue.fixed, work.limit
        sizes = [fixed + length + text for length, text in zip(lengths, texts, strict=True)]
        positions = list(accumulate(sizes, initial=begin))
        if positions[-1] > limit or max(texts) > PROPERTIES_BYTES_MAX:
            self._check(drafts, max(texts), max(sizes))
            return self._over(drafts, queue, bisect_right(positions, limit) - 1, begin, work)
        end = positions.pop()
        if not queue.pending:
            work.queues.append(queue)
        offset = queue.max + len(queue.pending)
        queue.pending.extend(map(ENTRY.pack, positions, sizes, drafts.tag_codes))
        shared = HEAD_SHARED.pack(
            drafts.sys_flag, drafts.born_ms, drafts.born_host, work.store_ms, work.store_host,
            drafts.reconsume_times, 0,
        )  # fmt: skip
        sums = [crc32(body) & CRC_MASK for body in drafts.bodies]
        heads = map(
            HEAD_OWN.pack, sizes, repeat(MAGIC), sums, repeat(queue.queue_id), drafts.flags,
            count(offset), positions, repeat(shared), lengths,
        )  # fmt: skip
        middles = {text: queue.topic_head + _SHORT(text) for text in set(texts)}
        rows = [b""] * (4 * len(sizes))
        rows[0::4], rows[1::4], rows[3::4] = heads, drafts.bodies, drafts.properties
        rows[2::4] = map(middles.__getitem__, texts)
        work.parts += rows
        work.places += [at for at, keys in zip(positions, drafts.keys, strict=True) for _ in keys]
        work.hashes += queue.key_hashes.of(chain.from_iterable(drafts.keys))
        return AppendResult(offset, begin, end - begin, len(drafts), positions), end

    def _over(
        self, drafts: DraftBatch, queue: ConsumeQueue, fitting: int, begin: int, work: _Work
    ) -> tuple[AppendResult, int]:
        """The first ones fit into the file of the log, the others go into the next."""
        placed: list[AppendResult] = []
        if fitting:
            first, _ = self._together(drafts.part(slice(fitting)), queue, begin, work)
            placed.append(first)
        begin = work.turn()
        rest, end = self._together(drafts.part(slice(fitting, None)), queue, begin, work)
        return _joined([*placed, rest]), end

    def _queue(self, draft: Draft | DraftBatch) -> ConsumeQueue:
        place = draft.topic, draft.queue_id
        queue = self._known.get(place)
        if queue is None:
            queue = self._known[place] = self._queue_of(*place)
        return queue

    def _check(self, draft: Draft | DraftBatch, text_bytes: int, size: int) -> None:
        if text_bytes > PROPERTIES_BYTES_MAX:
            raise UsageError(
                f"Properties of {text_bytes} bytes; {PROPERTIES_BYTES_MAX} is the most.",
                topic=draft.topic,
                partition=draft.queue_id,
            )
        if size > self._segment_bytes - BLANK_BYTES:
            raise UsageError(
                f"A record of {size} bytes does not fit into a file of the log.",
                topic=draft.topic,
                partition=draft.queue_id,
            )


def _joined(placed: Sequence[AppendResult]) -> AppendResult:
    """What came together and lies in several pieces."""
    places = [at for one in placed for at in one.physical_offsets or (one.physical_offset,)]
    size_bytes = sum(one.size_bytes for one in placed)
    return AppendResult(placed[0].queue_offset, places[0], size_bytes, len(places), places)


def _queue_offset(draft: Draft, offset: int) -> int:
    # Half messages and roll backs are in no queue (protocol page, 6.2).
    return 0 if draft.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK) else offset


def _encode_one(
    draft: Draft, offset: int, position: int, store_ms: int, store_host: bytes
) -> bytes:
    return encode(
        draft.topic,
        draft.body,
        draft.properties,
        queue_id=draft.queue_id,
        queue_offset=offset,
        physical_offset=position,
        store_ms=store_ms,
        store_host=store_host,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        born_ms=draft.born_ms,
        born_host=draft.born_host,
        reconsume_times=draft.reconsume_times,
        prepared_offset=draft.prepared_offset,
    )
