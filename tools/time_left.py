"""Divides the time that all tests may take among their parts.

`.ci/run` has to end in time on every machine, and the slowest need three times as long as others.
It sets `COHERER_TESTS_END`, by the clock that all processes of a machine share and nobody can set
(`time.monotonic`). Each part then may use a share of the time that is left when it begins. What
would begin later is left out and listed; it differs from run to run. Without the variable, nothing
is left out.
"""

from __future__ import annotations

import os
import time
from typing import Final

END: Final = "COHERER_TESTS_END"


def end_of(share: float) -> float:
    """Return when a part of the tests has to end that may take a share of what is left.

    Args:
        share: 0.0 to 1.0.

    Returns:
        The time by `time.monotonic`, in seconds, or infinity without a limit.
    """
    end = os.environ.get(END)
    if not end:
        return float("inf")
    now = time.monotonic()
    return now + share * max(float(end) - now, 0.0)
