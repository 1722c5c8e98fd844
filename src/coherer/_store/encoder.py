"""Encodes messages as bytes of the log and entries of queues: the hot path of writing.

Nothing is written here. One pass gives every message its queue offset and its log offset. The store
then writes one chunk for each log file, nearly always one; the entries stay in memory for a while
(`consume_queue`).

Single messages go through a loop (`Encoder._encode`). A `DraftBatch` is columns and stays columns
(`Encoder._encode_columns`): each step processes a whole column in a loop in C.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, repeat
from typing import NamedTuple, cast

from coherer._common.checksum import crc32
from coherer._record.layout import (
    BLANK_BYTES,
    COMMITTED,
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
from coherer._store.index_file import IndexKeys, key_hasher
from coherer._store.model import AppendResult, Draft, DraftBatch
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX

_SHORT = struct.Struct(">H").pack
_COMPRESSED = 1
_IN_COLUMNS = _COMPRESSED | COMMITTED
"""The flags with which the messages of a `DraftBatch` stay columns."""


class EncodedBatch(NamedTuple):
    """The bytes, queue entries and keys of a batch of messages."""

    chunks: list[tuple[int, bytes]]
    queues: list[ConsumeQueue]
    results: list[AppendResult]
    keys: IndexKeys | None
    end: int


class _BatchBuilder:
    """Collects the parts of a batch.

    Attributes:
        store_ms: the store time of all messages.
        store_host: the store host of all messages.
        limit: the largest log offset at which a record may end: after it the log file has space
            for the header of a blank.
        parts: the bytes for the current log file.
        queues: the queues with new entries.
        hashes: the hashes of the keys.
        key_offsets: the log offset of each key.
    """

    __slots__ = (
        "_begin",
        "_chunks",
        "_segment_bytes",
        "hashes",
        "key_offsets",
        "limit",
        "parts",
        "queues",
        "store_host",
        "store_ms",
    )

    def __init__(self, segment_bytes: int, begin: int, store_ms: int, store_host: bytes) -> None:
        self._segment_bytes = segment_bytes
        self._begin = begin
        self._chunks: list[tuple[int, bytes]] = []
        self.limit = begin - begin % segment_bytes + segment_bytes - BLANK_BYTES
        self.parts: list[bytes] = []
        self.queues: list[ConsumeQueue] = []
        self.hashes: list[int] = []
        self.key_offsets: list[int] = []
        self.store_ms = store_ms
        self.store_host = store_host

    def start_file(self) -> int:
        """Fill the log file with a blank; return the offset at which the next file begins."""
        data = b"".join(self.parts)
        end = self.limit + BLANK_BYTES
        self._chunks.append((self._begin, data + blank(end - self._begin - len(data))))
        self._begin, self.parts = end, []
        self.limit = end + self._segment_bytes - BLANK_BYTES
        return end

    def finish(self, results: list[AppendResult], end: int) -> EncodedBatch:
        """Return the batch."""
        if self.parts:
            self._chunks.append((self._begin, b"".join(self.parts)))
        keys: IndexKeys | None = None
        if self.hashes:
            keys = IndexKeys(self.hashes, self.key_offsets, [self.store_ms] * len(self.key_offsets))
        return EncodedBatch(self._chunks, self.queues, results, keys, end)


class Encoder:
    """Encodes batches.

    Args:
        segment_bytes: the size of a log file; a record never crosses its end.
    """

    def __init__(self, segment_bytes: int, find_queue: Callable[[str, int], ConsumeQueue]) -> None:
        self._segment_bytes = segment_bytes
        self._find_queue = find_queue
        self._known: dict[tuple[str, int], ConsumeQueue] = {}
        self._hasher = key_hasher("")  # of the last topic

    def forget_queues(self) -> None:
        """Look up the queues again, because some were deleted."""
        self._known.clear()

    def encode(
        self, drafts: Sequence[Draft | DraftBatch], begin: int, store_ms: int, store_host: bytes
    ) -> EncodedBatch:
        """Encode a batch that begins at log offset `begin`.

        Raises:
            UsageError: a message cannot be stored; then none of the batch is.
        """
        builder = _BatchBuilder(self._segment_bytes, begin, store_ms, store_host)
        try:
            results, end = self._encode_all(drafts, begin, builder)
        except BaseException:
            for queue in builder.queues:
                queue.new_entries.clear()
            raise
        for queue in builder.queues:
            if queue.delay_ms is not None:
                queue.set_delivery_times(store_ms)
        return builder.finish(results, end)

    def _encode_all(
        self, drafts: Sequence[Draft | DraftBatch], position: int, builder: _BatchBuilder
    ) -> tuple[list[AppendResult], int]:
        if DraftBatch not in map(type, drafts):
            return self._encode(cast("Sequence[Draft]", drafts), position, builder)
        results: list[AppendResult] = []
        for draft in drafts:
            if isinstance(draft, DraftBatch):
                result, position = self._encode_columns(
                    draft, self._queue(draft), position, builder
                )
                results.append(result)
            else:
                single, position = self._encode([draft], position, builder)
                results += single
        return results, position

    def _encode(
        self, drafts: Sequence[Draft], position: int, builder: _BatchBuilder
    ) -> tuple[list[AppendResult], int]:
        known, store_ms, store_host = self._known, builder.store_ms, builder.store_host
        short_hosts = len(store_host) == 8
        results: list[AppendResult] = []
        limit, parts, key_offsets = builder.limit, builder.parts, builder.key_offsets
        keys: list[str] = []  # consecutive keys of one topic
        hasher = self._hasher
        for draft in drafts:
            queue_id = draft.queue_id
            queue = known.get((draft.topic, queue_id)) or self._queue(draft)
            if keys and hasher is not queue.key_hashes:
                builder.hashes += hasher.hash_all(keys)
                keys = []
            hasher = queue.key_hashes
            body, properties, born_host = draft.body, draft.properties, draft.born_host
            size = queue.fixed + len(body) + len(properties)
            pending, sys_flag = queue.new_entries, draft.sys_flag
            plain = short_hosts and len(born_host) == 8
            if not plain:
                size += len(born_host) + len(store_host) - 16
            if len(properties) > PROPERTIES_BYTES_MAX or position + size > limit:
                self._check(draft, len(properties), size)
                if position + size > limit:
                    position = builder.start_file()
                    limit, parts = builder.limit, builder.parts
            offset = queue.next + len(pending)
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
                    builder.queues.append(queue)
                pending.append(ENTRY.pack(position, size, draft.tag_code))
            results.append(AppendResult(offset, position, size))
            for key in draft.keys:
                keys.append(key)
                key_offsets.append(position)
            position += size
        builder.hashes += hasher.hash_all(keys)
        self._hasher = hasher
        return results, position

    def _encode_columns(
        self, drafts: DraftBatch, queue: ConsumeQueue, begin: int, builder: _BatchBuilder
    ) -> tuple[AppendResult, int]:
        hosts_bytes = len(builder.store_host) + len(drafts.born_host)
        if drafts.sys_flag & ~_IN_COLUMNS or hosts_bytes != 16:
            results, end = self._encode(drafts.to_drafts(), begin, builder)
            return _merge(results), end
        lengths = list(map(len, drafts.bodies))
        texts = list(map(len, drafts.properties))
        fixed, limit = queue.fixed, builder.limit
        sizes = [fixed + length + text for length, text in zip(lengths, texts, strict=True)]
        positions = list(accumulate(sizes, initial=begin))
        if positions[-1] > limit or max(texts) > PROPERTIES_BYTES_MAX:
            self._check(drafts, max(texts), max(sizes))
            return self._encode_across_files(
                drafts, queue, bisect_right(positions, limit) - 1, begin, builder
            )
        end = positions.pop()
        if not queue.new_entries:
            builder.queues.append(queue)
        offset = queue.next + len(queue.new_entries)
        queue.new_entries.extend(map(ENTRY.pack, positions, sizes, drafts.tag_codes))
        shared = HEAD_SHARED.pack(
            drafts.sys_flag,
            drafts.born_ms,
            drafts.born_host,
            builder.store_ms,
            builder.store_host,
            drafts.reconsume_times,
            drafts.prepared_offset,
        )
        sums = [crc32(body) & CRC_MASK for body in drafts.bodies]
        heads = map(
            HEAD_OWN.pack,
            sizes,
            repeat(MAGIC),
            sums,
            repeat(queue.queue_id),
            drafts.flags,
            count(offset),
            positions,
            repeat(shared),
            lengths,
        )
        middles = {text: queue.topic_head + _SHORT(text) for text in set(texts)}
        rows = [b""] * (4 * len(sizes))
        rows[0::4], rows[1::4], rows[3::4] = heads, drafts.bodies, drafts.properties
        rows[2::4] = map(middles.__getitem__, texts)
        builder.parts += rows
        builder.key_offsets += [
            at for at, keys in zip(positions, drafts.keys, strict=True) for _ in keys
        ]
        builder.hashes += queue.key_hashes.hash_all(chain.from_iterable(drafts.keys))
        return AppendResult(offset, begin, end - begin, len(drafts), positions), end

    def _encode_across_files(
        self,
        drafts: DraftBatch,
        queue: ConsumeQueue,
        fitting: int,
        begin: int,
        builder: _BatchBuilder,
    ) -> tuple[AppendResult, int]:
        """Encode the first messages for the current log file and the others for the next one."""
        results: list[AppendResult] = []
        if fitting:
            first, _ = self._encode_columns(drafts.part(slice(fitting)), queue, begin, builder)
            results.append(first)
        begin = builder.start_file()
        rest, end = self._encode_columns(drafts.part(slice(fitting, None)), queue, begin, builder)
        return _merge([*results, rest]), end

    def _queue(self, draft: Draft | DraftBatch) -> ConsumeQueue:
        key = draft.topic, draft.queue_id
        queue = self._known.get(key)
        if queue is None:
            queue = self._known[key] = self._find_queue(*key)
        return queue

    def _check(self, draft: Draft | DraftBatch, text_bytes: int, size: int) -> None:
        if text_bytes > PROPERTIES_BYTES_MAX:
            raise UsageError(
                f"The properties have {text_bytes} bytes; the limit is {PROPERTIES_BYTES_MAX}.",
                topic=draft.topic,
                partition=draft.queue_id,
            )
        if size > self._segment_bytes - BLANK_BYTES:
            raise UsageError(
                f"A record of {size} bytes does not fit into a log file.",
                topic=draft.topic,
                partition=draft.queue_id,
            )


def _merge(results: Sequence[AppendResult]) -> AppendResult:
    """Merge the results of the parts of a `DraftBatch`."""
    offsets = [at for one in results for at in one.physical_offsets or (one.physical_offset,)]
    size_bytes = sum(one.size_bytes for one in results)
    return AppendResult(results[0].queue_offset, offsets[0], size_bytes, len(offsets), offsets)


def _queue_offset(draft: Draft, offset: int) -> int:
    # Prepared messages and rollbacks are in no queue (docs/protocol/rocketmq.md, section 6.2).
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
