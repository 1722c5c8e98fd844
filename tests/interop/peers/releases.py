"""The releases that are tried beside the main ones, and whose turn it is.

`docs/compatibility.md` has a row for each.
"""

from __future__ import annotations

ROCKETMQ_CLIENTS = ("4.3.2", "4.7.1", "4.9.8", "5.5.0")
ROCKETMQ_SERVERS = ("4.5.2", "4.7.1", "5.5.0")
TUBEMQ_CLIENTS = ("1.5.0", "1.9.0", "1.12.0")
CASES = [
    *(f"rocketmq-client-{release}" for release in ROCKETMQ_CLIENTS),
    *(f"rocketmq-server-{release}" for release in ROCKETMQ_SERVERS),
    *(f"tubemq-client-{release}" for release in TUBEMQ_CLIENTS),
]
DAYS = 5
"""So many days until each case had its turn."""


def chosen(wanted: str, day: int) -> list[str]:
    """The cases of a run.

    Args:
        wanted: `COHERER_INTEROP_VERSIONS`.
        day: days since 1970.

    Raises:
        ValueError: there is no such case.
    """
    if wanted == "all":
        return CASES
    if not wanted:
        return CASES[day % DAYS :: DAYS]
    names = wanted.split(",")
    unknown = set(names) - set(CASES)
    if unknown:
        raise ValueError(f"COHERER_INTEROP_VERSIONS names {unknown}; there are {CASES}")
    return [case for case in CASES if case in names]
