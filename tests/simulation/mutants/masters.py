"""Planted bugs of several TubeMQ masters: their election, and their metadata."""

from __future__ import annotations

from typing import Any, Final

import pytest

from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.tubemq.master.state import MasterState
from coherer._server.tubemq.master.zookeeper import Election, Lease
from tests.server.tubemq.master.keeper import Transaction

Patch = pytest.MonkeyPatch


def reads_prove_that_a_master_acts(patch: Patch) -> None:
    """An active master asks for its node, and does not write it."""
    real = Election._check

    def check(election: Any) -> None:
        client = election._client
        election._client = _ReadsOnly(client) if election._active else client
        try:
            real(election)
        finally:
            election._client = client

    patch.setattr(Election, "_check", check)


class _ReadsOnly:
    def __init__(self, client: Any) -> None:
        self._client = client

    def set(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def sessions_last_as_long_as_wanted(patch: Patch) -> None:
    """A master takes the timeout that it has asked for as the one that ZooKeeper has granted."""
    patch.setattr(Election, "_granted", lambda *_: None)


def masters_act_for_ever(patch: Patch) -> None:
    """A master acts until it learns that another one does."""
    patch.setattr(Lease, "holds", True)


def former_masters_write(patch: Patch) -> None:
    """Writes do not carry the number of their election."""
    patch.setattr(Transaction, "check", lambda *_: None)


def answers_before_zookeeper_has_it(patch: Patch) -> None:
    """A change of the catalog is acknowledged before it is stored."""

    async def nothing(_: object) -> None:
        pass

    patch.setattr(DeferredSaver, "flush", nothing)


def elected_masters_load_nothing(patch: Patch) -> None:
    """A master that becomes active does not load what the one before has changed."""
    real = MasterState.begin

    def begin(state: Any) -> None:
        if not hasattr(state, "catalog"):
            real(state)

    patch.setattr(MasterState, "begin", begin)


MUTANTS: Final = {
    "tubemq": (
        reads_prove_that_a_master_acts,
        sessions_last_as_long_as_wanted,
        masters_act_for_ever,
        former_masters_write,
        answers_before_zookeeper_has_it,
        elected_masters_load_nothing,
    )
}
