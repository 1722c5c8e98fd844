"""Remembers which writes power cuts have torn, until the log has deleted them.

A power cut can take any part of the writes that were not synced. The start after it sees which: the
log has damage there, or a committed message without its mark. Later starts do not see it, because
they verify only newer parts of the log. But they read the same marks, and must come to the same
conclusions. So what a start has found is kept in `config/powerCuts.json`. A slave that was stopped
in the middle of a write finds the same when it is started as the master.

Invariant: the file is written before the checkpoint passes the damage. Until then every start finds
the damage again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from coherer._common.decoding import decoder
from coherer._store.model import PowerCut, RecoveryReport

FILE: Final = "powerCuts.json"


class _File(msgspec.Struct, frozen=True):
    cuts: tuple[PowerCut, ...] = ()


def load(data: bytes) -> tuple[PowerCut, ...]:
    """Read the content of the file.

    Raises:
        msgspec.DecodeError: it is invalid.
    """
    return decoder(_File).decode(data).cuts


def dump(cuts: Sequence[PowerCut]) -> bytes:
    """The content of the file.

    >>> from coherer._store.model import DamagedRange
    >>> load(dump([PowerCut(end=900, torn=(DamagedRange(400, 500, "zeros"),))]))[0].tears(500)
    True
    """
    return msgspec.json.encode(_File(tuple(cuts)))


def update(known: Sequence[PowerCut], report: RecoveryReport) -> tuple[PowerCut, ...]:
    """Add what a start has found, and forget what the log does not have any more.

    Args:
        known: what earlier starts have found.

    >>> from coherer._store.model import DamagedRange
    >>> piece = DamagedRange(400, 500, "zeros")
    >>> report = RecoveryReport(clean=False, replayed_from=300, log_end=900, damage=(piece,))
    >>> cuts = update((), report)
    >>> cuts == (PowerCut(end=900, torn=(piece,)),)
    True
    >>> update(cuts, msgspec.structs.replace(report, log_end=950)) == cuts
    True
    >>> update(cuts, RecoveryReport(log_begin=900, log_end=950))
    ()
    """
    kept = tuple(cut for cut in known if report.log_begin < cut.end <= report.log_end)
    before = {piece.begin for cut in kept for piece in cut.torn}
    marked = {place for cut in kept for place in cut.unmarked}
    torn = tuple(
        piece
        for piece in report.damage
        if not report.clean and piece.begin >= report.replayed_from and piece.begin not in before
    )
    unmarked = tuple(place for place in report.unmarked if place not in marked)
    voided = {place for cut in kept for place in cut.void}
    void = tuple(place for place in report.void if place not in voided)
    if not torn and not unmarked and not void:
        return kept
    return (*kept, PowerCut(report.log_end, torn, unmarked, void))
