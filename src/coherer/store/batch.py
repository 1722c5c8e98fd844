"""Drafts become the bytes of the log and the entries of the queues: the hot path of writing.

Nothing is written here. One pass gives every draft its queue offset and its place in the log; the
store then writes one piece per file of the log (nearly always one) and one per touched queue.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX
from coherer.record.layout import (
    BLANK_BYTES,
    CRC_MASK,
    HEAD_V4,
    MAGIC,
    PREPARED,
    ROLLED_BACK,
    blank,
    encode,
)
from coherer.store.keys import Keys
from coherer.store.model import Appended, Draft
from coherer.store.queue import ENTRY, ConsumeQueue

_SHORT = struct.Struct(">H").pack


class Batch(NamedTuple):
    """What is to be written for a batch of drafts."""

    chunks: list[tuple[int, bytes]]
    queues: list[ConsumeQueue]
    appended: list[Appended]
    keys: Keys
    end: int


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

    def forget(self) -> None:
        """Ask for the queues anew: some were deleted."""
        self._known.clear()

    def encode(
        self, drafts: Sequence[Draft], begin: int, store_ms: int, store_host: bytes
    ) -> Batch:
        """Encode a batch that begins at offset `begin` of the log.

        Raises:
            UsageError: a draft cannot be stored; nothing of the batch is.
        """
        queues: list[ConsumeQueue] = []
        try:
            batch = self._encode(drafts, begin, store_ms, store_host, queues)
        except BaseException:
            for queue in queues:
                queue.pending.clear()
            raise
        for queue in queues:
            queue.schedule(store_ms)
        return batch

    def _encode(
        self,
        drafts: Sequence[Draft],
        begin: int,
        store_ms: int,
        store_host: bytes,
        queues: list[ConsumeQueue],
    ) -> Batch:
        known = self._known
        short_hosts = len(store_host) == 8
        chunks: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        appended: list[Appended] = []
        keys = Keys()
        position, limit = begin, self._limit(begin)
        for draft in drafts:
            topic, queue_id = draft.topic, draft.queue_id
            queue = known.get((topic, queue_id)) or self._queue(draft)
            body, properties, born_host = draft.body, draft.properties, draft.born_host
            size = queue.fixed + len(body) + len(properties)
            pending, sys_flag = queue.pending, draft.sys_flag
            plain = short_hosts and len(born_host) == 8
            if not plain:
                size += len(born_host) + len(store_host) - 16
            if len(properties) > PROPERTIES_BYTES_MAX or position + size > limit:
                self._check(draft, size)
                if position + size > limit:
                    chunks.append(self._finish(parts, begin, limit))
                    begin = position = limit + BLANK_BYTES
                    limit, parts = self._limit(begin), []
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
                    queues.append(queue)
                pending.append(ENTRY.pack(position, size, draft.tag_code))
            appended.append(Appended(offset, position, size))
            if draft.keys:
                keys.add(queue.key_hashes.of(draft.keys), position, store_ms)
            position += size
        if parts:
            chunks.append((begin, b"".join(parts)))
        return Batch(chunks, queues, appended, keys, position)

    def _limit(self, position: int) -> int:
        # A record may reach up to here: behind it the file has room for the head of a blank.
        return position - position % self._segment_bytes + self._segment_bytes - BLANK_BYTES

    def _queue(self, draft: Draft) -> ConsumeQueue:
        queue = self._queue_of(draft.topic, draft.queue_id)
        self._known[draft.topic, draft.queue_id] = queue
        return queue

    def _finish(self, parts: list[bytes], begin: int, limit: int) -> tuple[int, bytes]:
        data = b"".join(parts)
        return begin, data + blank(limit + BLANK_BYTES - begin - len(data))

    def _check(self, draft: Draft, size: int) -> None:
        if len(draft.properties) > PROPERTIES_BYTES_MAX:
            raise UsageError(
                f"Properties of {len(draft.properties)} bytes; {PROPERTIES_BYTES_MAX} is the most.",
                topic=draft.topic,
                partition=draft.queue_id,
            )
        if size > self._segment_bytes - BLANK_BYTES:
            raise UsageError(
                f"A record of {size} bytes does not fit into a file of the log.",
                topic=draft.topic,
                partition=draft.queue_id,
            )


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
