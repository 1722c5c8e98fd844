"""The node's files: RocketMQ 4.9's commit log, consume queues, key index and checkpoint."""

from __future__ import annotations

from coherer._store.files import Files, OsFiles
from coherer._store.model import (
    AppendResult,
    DamagedRange,
    Draft,
    DraftBatch,
    QueueEntry,
    ReadResult,
    ReadStatus,
    RecoveryReport,
    StoreOptions,
)
from coherer._store.store import Store, UnsavedTopicError

__all__ = [
    "AppendResult",
    "DamagedRange",
    "Draft",
    "DraftBatch",
    "Files",
    "OsFiles",
    "QueueEntry",
    "ReadResult",
    "ReadStatus",
    "RecoveryReport",
    "Store",
    "StoreOptions",
    "UnsavedTopicError",
]
