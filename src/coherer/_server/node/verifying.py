"""Checks and repairs the directory of a stopped node: its store and its configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from coherer._common import machine
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.delays import DelayPositions
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE
from coherer._server.node.identity import IDENTITY_FILE, Identity
from coherer._server.node.tubemq import MASTER_FILE
from coherer._server.node.version import check_version
from coherer._server.rocketmq.broker.admin_settings import SETTINGS_FILE
from coherer._server.rocketmq.broker.clients import FILTERS_FILE, LOCKS_FILE, parse_locks
from coherer._server.rocketmq.broker.delays import DELAY_FILE
from coherer._server.rocketmq.namesrv.nameserver import CHECKS
from coherer._server.tubemq.master.state import check_saved
from coherer._store import OsFiles, Store, StoreOptions, power_cuts
from coherer._store.backup_files import is_backup
from coherer._store.config_files import ConfigFiles, ConfigProblem
from coherer._store.files import translate_os_errors
from coherer._store.history import HISTORY_FILE, ensure_history, load_history
from coherer._store.restore import verify_backup
from coherer._store.verify import LOST, Problem, VerifyReport, verify_store
from coherer._wire.rocketmq import fastjson, java_properties
from coherer.errors import DamagedStoreError, UsageError

CONFIG_FILES: Final[dict[str, Callable[[bytes], object]]] = {
    TOPICS_FILE: partial(TopicTable.load, loads=fastjson.loads),
    GROUPS_FILE: partial(GroupTable.load, loads=fastjson.loads),
    OFFSETS_FILE: OffsetTable.load,
    DELAY_FILE: DelayPositions.load,
    FILTERS_FILE: fastjson.loads,
    LOCKS_FILE: parse_locks,
    power_cuts.FILE: power_cuts.load,
    MASTER_FILE: check_saved,
    SETTINGS_FILE: partial(java_properties.parse_file, SETTINGS_FILE),
    IDENTITY_FILE: Identity.parse,
    **CHECKS,
}
"""The files of `config/`, and functions that raise if their content is invalid."""

RESTORED_BY_CLIENTS: Final[dict[str, str]] = {
    FILTERS_FILE: "consumers restore it after the next start",
    LOCKS_FILE: "consumers restore it after the next start",
}
"""Files whose damage does not keep a node from starting, and who restores their content."""

_PREVIOUS_USED: Final = "the next start uses its .bak"
_WHOLE_LOG_BYTES = 1 << 62
_NO_STORE = VerifyReport(closed=True, log_begin=0, log_end=0, records=0, queues=0, problems=[])


def _has_store(directory: Path) -> bool:
    """Whether there should be a store: a master or name server alone has only `config/`."""
    names = {path.name for path in directory.glob("*")}
    return bool(names & {"commitlog", "consumequeue", "checkpoint"}) or "config" not in names


def verify(directory: Path) -> VerifyReport:
    """Check the directory of a node, or a backup, without changing it.

    Raises:
        UsageError: it contains no store, or its version is unknown.
        StoreError: another process uses it, or the disk failed.
    """
    if is_backup(directory):
        return verify_backup(directory)
    check_version(directory)
    found = verify_store(directory) if _has_store(directory) else _NO_STORE
    files = ConfigFiles(OsFiles(), directory / "config")
    problems = [
        _problem(name, flaw)
        for name, parse in CONFIG_FILES.items()
        if (flaw := files.check(name, parse)) is not None
    ]
    problems += _problems_of_history(directory)
    return msgspec.structs.replace(found, problems=[*found.problems, *problems])


def _problems_of_history(directory: Path) -> list[Problem]:
    with translate_os_errors(f"read {directory / HISTORY_FILE}"):
        try:
            load_history(directory)
        except DamagedStoreError as error:
            outcome = "the next start gives the directory a new id, and its backups begin anew"
            return [Problem(part="config", where=HISTORY_FILE, what=error.text, outcome=outcome)]
    return []


def _problem(name: str, flaw: ConfigProblem) -> Problem:
    outcome = _PREVIOUS_USED if flaw.repairable else RESTORED_BY_CLIENTS.get(name, LOST)
    return Problem(
        part="config", where=name, what=flaw.what, repairable=outcome != LOST, outcome=outcome
    )


def repair(directory: Path) -> None:
    """Rebuild queues and index from the log, and restore configuration files from their `.bak`.

    An invalid file that clients restore is removed.

    Lost messages stay lost; readers skip them.

    Raises:
        UsageError: the directory contains no store, or it is a backup.
        StoreError: another process uses it, or the disk failed.
    """
    if is_backup(directory):
        raise UsageError(
            f"{directory} is a backup, which cannot be repaired.", hint="Take another backup."
        )
    check_version(directory)
    if _has_store(directory):
        options = StoreOptions(verify_bytes=_WHOLE_LOG_BYTES)
        Store.open(directory, options, now_ms=lambda: machine.wall_ns() // 1_000_000).close()
    else:
        ensure_history(OsFiles(), directory)
    files = ConfigFiles(OsFiles(), directory / "config")
    for name, parse in CONFIG_FILES.items():
        flaw = files.check(name, parse)
        if flaw is not None and flaw.repairable:
            files.restore(name)
        elif flaw is not None and name in RESTORED_BY_CLIENTS:
            files.remove(name)
