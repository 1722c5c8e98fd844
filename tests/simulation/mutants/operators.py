"""Planted bugs of what operators rely on: accounts, retention, resets, deleted topics, backups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from coherer._administration import replay
from coherer._client.rocketmq.administration import groups, messages
from coherer._client.rocketmq.consuming.membership import GroupMembership
from coherer._rules.common.offsets import OffsetTable
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._store import backup, retention
from coherer._store.retention import Holds
from coherer._store.store import Store

Patch = pytest.MonkeyPatch
SENDS: Final = (10, 310)


def accounts_change_after_a_restart(patch: Patch) -> None:
    """A changed account keeps what it was permitted until the broker is started again."""
    real = Access._write

    def write(access: Any, *args: Any) -> None:
        before = access._rules, access._unlimited
        real(access, *args)
        access._rules, access._unlimited = before

    patch.setattr(Access, "_write", write)


def removed_accounts_stay(patch: Patch) -> None:
    """An account that is removed may go on."""
    patch.setattr(Access, "delete", lambda access, key, now_ms: True)


def waiting_pulls_go_on(patch: Patch) -> None:
    """A pull that waits gets the next message although its account was removed."""
    patch.setattr(RocketBroker, "_refuse_pulls", lambda *_: None)


def sends_are_not_checked(patch: Patch) -> None:
    """Whoever is connected may send to every topic."""
    real = Access.check

    def check(access: Any, channel: Any, request: Any) -> Any:
        return None if request.code in SENDS else real(access, channel, request)

    patch.setattr(Access, "check", check)


def files_are_deleted_too_soon(patch: Patch) -> None:
    """Messages are deleted after a third of their time."""
    real = retention._is_old

    def is_old(log: Any, following: Any, options: Any, *args: Any) -> bool:
        hours = options.retention_hours
        fewer = None if hours is None else hours / 3
        return real(log, following, msgspec.structs.replace(options, retention_hours=fewer), *args)

    patch.setattr(retention, "_is_old", is_old)


def what_waits_is_deleted(patch: Patch) -> None:
    """A file is deleted although messages in it are not due yet."""
    patch.setattr(Holds, "holder_before", lambda holds, offset: "")
    patch.setattr(Holds, "room", lambda holds: 0)


def queues_keep_what_is_deleted(patch: Patch) -> None:
    """A queue still begins with the messages of a deleted file."""

    def delete_expired(store: Any, now_ms: int) -> int:
        deleted = 0
        while store.can_delete(now_ms):
            store.flush_queues()
            store._log.drop_first()
            deleted += 1
        return deleted

    patch.setattr(Store, "delete_expired", delete_expired)


def resets_are_ignored(patch: Patch) -> None:
    """Members of a group that is reset go on where they are."""

    async def nothing(*_: Any) -> None:
        pass

    patch.setattr(GroupMembership, "reset", nothing)


def resets_begin_one_late(patch: Patch) -> None:
    """A group that is reset to the beginning skips the first message of each queue."""
    real = GroupMembership.reset

    async def reset(membership: Any, topic: str, offsets: Mapping[Any, int]) -> None:
        await real(membership, topic, {queue: at + 1 for queue, at in offsets.items()})

    patch.setattr(GroupMembership, "reset", reset)


def deleted_topics_keep_their_messages(patch: Patch) -> None:
    """A topic that is deleted and created again has its old messages."""
    patch.setattr(Store, "delete_topic", lambda store, topic: None)


def positions_of_deleted_topics_stay(patch: Patch) -> None:
    """In a topic that is created again, groups begin where they stood in the deleted one."""
    patch.setattr(OffsetTable, "remove_topic", lambda table, topic: None)


def backups_lack_the_end(patch: Patch) -> None:
    """A backup holds the log up to the last checkpoint only."""

    class Walk:
        def __init__(self, *_: Any) -> None:
            pass

        def run(self, at: int) -> int:
            return at

    patch.setattr(backup, "Walk", Walk)


def continued_backups_lack_what_is_new(patch: Patch) -> None:
    """A backup that continues an earlier one has the log of the earlier one."""
    real = backup._Backup._copy_log

    def copy_log(self: Any, covered: Any, held: Any) -> Any:
        earlier = None if self._previous is None else self._previous.log
        return real(self, covered, held) if earlier is None else earlier

    patch.setattr(backup._Backup, "_copy_log", copy_log)


def replays_share_their_locks(patch: Patch) -> None:
    """Two replays of one client own each other's locks."""
    for module in (groups, messages):
        patch.setattr(module, "owner_of", lambda client_id, holder: client_id)


def replays_do_not_ask(patch: Patch) -> None:
    """A replay sends what an earlier one has sent."""

    async def never(*_: Any) -> bool:
        return False

    patch.setattr(replay, "_was_sent", never)


MUTANTS: Final = {
    "tubemq": (files_are_deleted_too_soon, backups_lack_the_end),
    "rocketmq": (
        accounts_change_after_a_restart,
        removed_accounts_stay,
        waiting_pulls_go_on,
        sends_are_not_checked,
        files_are_deleted_too_soon,
        what_waits_is_deleted,
        queues_keep_what_is_deleted,
        resets_are_ignored,
        resets_begin_one_late,
        deleted_topics_keep_their_messages,
        positions_of_deleted_topics_stay,
        backups_lack_the_end,
        continued_backups_lack_what_is_new,
        replays_share_their_locks,
        replays_do_not_ask,
    ),
}
