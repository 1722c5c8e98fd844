"""The numbers of RocketMQ's releases, which every header carries (protocol page, 1.7)."""

from __future__ import annotations

from typing import Final

V3_0_7_SNAPSHOT: Final = 28
"""Consumers from here on can reset their offsets and tell their status (222, 223)."""
V3_0_11: Final = 37
"""Brokers from here on register with a `RegisterBrokerBody` (103)."""
V3_1_8_SNAPSHOT: Final = 62
"""Consumers from here on answer 307 and 309."""
V3_4_9: Final = 121
"""From here on `maxReconsumeTimes` in a header counts (36, sends to retry topics)."""
V4_1_0_SNAPSHOT: Final = 232
"""Brokers from here on filter by SQL92."""
V4_9_1: Final = 395
"""Brokers before it cannot take a message back (36) without `maxReconsumeTimes`."""
V4_9_3: Final = 399
"""This release: what we say of ourselves."""
V5_0_0: Final = 413
"""Brokers from here on keep timed messages."""
HIGHEST: Final = 612
"""Stands for every later one."""

_BETAS: Final = (
    "V3_0_0_SNAPSHOT",
    "V3_0_0_ALPHA1",
    "V3_0_0_BETA1",
    "V3_0_0_BETA2",
    "V3_0_0_BETA3",
    "V3_0_0_BETA4",
    "V3_0_0_BETA5",
    "V3_0_0_BETA6_SNAPSHOT",
    "V3_0_0_BETA6",
    "V3_0_0_BETA7_SNAPSHOT",
    "V3_0_0_BETA7",
    "V3_0_0_BETA8_SNAPSHOT",
    "V3_0_0_BETA8",
    "V3_0_0_BETA9_SNAPSHOT",
    "V3_0_0_BETA9",
    "V3_0_0_FINAL",
)
_MINORS: Final = (
    # (first number, major, minor, first patch, one beyond the last patch)
    (16, 3, 0, 1, 16),
    (46, 3, 1, 0, 10),
    (66, 3, 2, 0, 10),
    *((86 + 18 * (minor - 3), 3, minor, 1, 10) for minor in range(3, 10)),
    *((212 + 20 * minor, 4, minor, 0, 10) for minor in range(10)),
    *((412 + 20 * minor, 5, minor, 0, 10) for minor in range(10)),
)


def version_name(number: int) -> str:
    """Returns the name of a version, as Java prints it.

    >>> [version_name(number) for number in (399, 398, 121, 28, 213, 5000)]
    ['V4_9_3', 'V4_9_3_SNAPSHOT', 'V3_4_9', 'V3_0_7_SNAPSHOT', 'V4_0_0', 'HIGHER_VERSION']
    """
    if number >= HIGHEST:
        return "HIGHER_VERSION"
    if 0 <= number < len(_BETAS):
        return _BETAS[number]
    for first, major, minor, patch, stop in _MINORS:
        if first <= number < first + 2 * (stop - patch):
            steps, release = divmod(number - first, 2)
            name = f"V{major}_{minor}_{patch + steps}"
            return name if release else f"{name}_SNAPSHOT"
    return _BETAS[0]
