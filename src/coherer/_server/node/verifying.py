"""Checks and repairs the directory of a node that does not run: its store and its configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.delays import DelayPositions
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE
from coherer._server.node.identity import IDENTITY_FILE, Identity
from coherer._server.rocketmq.broker.admin.settings import SETTINGS_FILE
from coherer._server.rocketmq.broker.clients import FILTERS_FILE
from coherer._server.rocketmq.broker.delays import DELAY_FILE
from coherer._server.rocketmq.namesrv.nameserver import CHECKS
from coherer._server.tubemq.door import MASTER_FILE
from coherer._server.tubemq.master.state import check_saved
from coherer._store import OsFiles, Store, StoreOptions
from coherer._store.config_files import ConfigFiles
from coherer._store.verify import Problem, VerifyReport, verify_store
from coherer._wire.rocketmq import fastjson, settings

CONFIG_FILES: Final[dict[str, Callable[[bytes], object]]] = {
    TOPICS_FILE: partial(TopicTable.load, loads=fastjson.loads),
    GROUPS_FILE: partial(GroupTable.load, loads=fastjson.loads),
    OFFSETS_FILE: OffsetTable.load,
    DELAY_FILE: DelayPositions.load,
    FILTERS_FILE: fastjson.loads,
    MASTER_FILE: check_saved,
    SETTINGS_FILE: partial(settings.parse_file, SETTINGS_FILE),
    IDENTITY_FILE: Identity.parse,
    **CHECKS,
}
"""The files of `config/`, and what raises where their content is not what it should be."""

_WHOLE_LOG_BYTES = 1 << 62
_NO_STORE = VerifyReport(closed=True, log_begin=0, log_end=0, records=0, queues=0, problems=[])


def _has_store(directory: Path) -> bool:
    """Whether there should be one: a master alone, or a name server, has only `config/`."""
    names = {path.name for path in directory.glob("*")}
    return bool(names & {"commitlog", "consumequeue", "checkpoint"}) or "config" not in names


def verify(directory: Path) -> VerifyReport:
    """Check the directory of a node. Nothing is changed.

    Raises:
        UsageError: there is no store in it.
        StoreError: another process uses it, or the disk failed.
    """
    found = verify_store(directory) if _has_store(directory) else _NO_STORE
    files = ConfigFiles(OsFiles(), directory / "config")
    problems = [
        Problem(part="config", where=name, what=flaw.what, repairable=flaw.repairable)
        for name, parse in CONFIG_FILES.items()
        if (flaw := files.check(name, parse)) is not None
    ]
    return msgspec.structs.replace(found, problems=[*found.problems, *problems])


def repair(directory: Path) -> None:
    """Make again what can be made again: queues and index from the log, files from their `.bak`.

    What is lost stays lost; readers pass over it.

    Raises:
        UsageError: there is no store in it.
        StoreError: another process uses it, or the disk failed.
    """
    if _has_store(directory):
        options = StoreOptions(verify_bytes=_WHOLE_LOG_BYTES)
        Store.open(directory, options, now_ms=lambda: time.time_ns() // 10**6).close()
    files = ConfigFiles(OsFiles(), directory / "config")
    for name, parse in CONFIG_FILES.items():
        flaw = files.check(name, parse)
        if flaw is not None and flaw.repairable:
            files.restore(name)
