"""Bugs that tests plant, to see whether the checks find them.

Each is a function that patches the product. `found_by` names the check that must find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from coherer._rules.common.offsets import Position
from coherer._rules.rocketmq.transactions import COMMITTED
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.broker.transactions import TransactionService
from tests.store.conftest import PowerFiles


class Mutant(NamedTuple):
    """A planted bug."""

    plant: Callable[[pytest.MonkeyPatch], None]
    protocol: str
    found_by: str


def does_not_sync(patch: pytest.MonkeyPatch) -> None:
    """What is synced is not on the disk: after a power cut, the node cannot start."""
    patch.setattr(PowerFiles, "sync", lambda files, handle: files.before())


def positions_run_ahead(patch: pytest.MonkeyPatch) -> None:
    """A group stands one message behind the one that it has acknowledged last."""
    real = Position.move_to
    patch.setattr(Position, "move_to", lambda position, offset: real(position, offset + 1))


def timed_too_early(patch: pytest.MonkeyPatch) -> None:
    """A timed message is delivered 50 ms before it is due."""
    real = TimerService._deliver
    patch.setattr(TimerService, "_deliver", lambda timers, now_ms: real(timers, now_ms + 50))


def timed_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a start, a timed message that was due before is not looked for."""
    patch.setattr(TimerService, "_first_slot", lambda timers: 1 << 40)


def rollbacks_commit(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is rolled back becomes visible."""
    real = TransactionService._store_end

    def store_end(
        service: TransactionService, channel: Any, request: Any, record: Any, end: Any
    ) -> None:
        real(service, channel, request, record, msgspec.structs.replace(end, state=COMMITTED))

    patch.setattr(TransactionService, "_store_end", store_end)


def never_asks_back(patch: pytest.MonkeyPatch) -> None:
    """A transaction whose commit was lost is never asked about."""
    patch.setattr(TransactionService, "tick", lambda service: None)


MUTANTS: Final = {
    "does not sync": Mutant(does_not_sync, "rocketmq", "errors"),
    "positions run ahead": Mutant(positions_run_ahead, "rocketmq", "unseen"),
    "timed too early": Mutant(timed_too_early, "rocketmq", "early"),
    "timed forgotten": Mutant(timed_forgotten, "rocketmq", "lost"),
    "rollbacks commit": Mutant(rollbacks_commit, "rocketmq", "transactions"),
    "never asks back": Mutant(never_asks_back, "rocketmq", "transactions"),
}
