"""How much may wait for peers that do not read, all together: the more they are, the less for each.

One connection may keep `limits.OUTBOX_HIGH_BYTES`. A thousand such would fill the memory, so those
that lag share `limits.OUTBOXES_BYTES`; what a connection may keep is looked up when it has more to
write and something from before still waits.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from coherer import limits

SWEEP_S: Final = 1.0
"""How often those are looked for that have caught up."""


class Outbox(Protocol):
    """A connection, by what waits for its peer."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        ...


class Outboxes:
    """The connections whose peers lag.

    >>> outboxes = Outboxes()
    >>> outboxes.share(0), outboxes.share(100), outboxes.share(100_000)
    (16777216, 2684354, 65536)
    """

    def __init__(self) -> None:
        self._lagging: set[Outbox] = set()
        self._next_sweep_s = 0.0

    def lags(self, outbox: Outbox) -> int:
        """Something waits for a peer; gives how much may."""
        now_s = time.monotonic()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_S
            self._lagging = {one for one in self._lagging if one.unsent_bytes}
        self._lagging.add(outbox)
        return self.share(len(self._lagging))

    def caught_up(self, outbox: Outbox) -> None:
        """Nothing waits, or nobody."""
        self._lagging.discard(outbox)

    def share(self, lagging: int) -> int:
        """How much may wait for each of so many."""
        share = limits.OUTBOXES_BYTES // max(lagging, 1)
        return max(limits.OUTBOX_SHARE_BYTES_MIN, min(share, limits.OUTBOX_HIGH_BYTES))


OUTBOXES: Final = Outboxes()
"""Those of this process."""
