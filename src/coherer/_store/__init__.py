"""The node's files: RocketMQ 4.9's commit log, consume queues, key index and checkpoint."""

from __future__ import annotations

from coherer._store.files import Files, OsFiles
from coherer._store.model import (
    Appended,
    Damage,
    Draft,
    Drafts,
    Entry,
    ReadStatus,
    RecoveryReport,
    Slices,
    StoreOptions,
)
from coherer._store.store import Store

__all__ = [
    "Appended",
    "Damage",
    "Draft",
    "Drafts",
    "Entry",
    "Files",
    "OsFiles",
    "ReadStatus",
    "RecoveryReport",
    "Slices",
    "Store",
    "StoreOptions",
]
