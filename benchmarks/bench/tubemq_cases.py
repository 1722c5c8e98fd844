"""The cases of TubeMQ."""

from __future__ import annotations

from bench.cases import COHERER, Case, blocking, blocking_many, latencies, spread


def _produce(size: int, window: int, count: int) -> Case:
    name = "1 KiB" if size == 1024 else f"{size} B"
    return Case(
        f"produce-{size}-{window}",
        f"produce {name}, {window:,} in flight",
        "produce",
        count,
        {"size": size, "window": window},
        goal=1.3,
    )


def _sync(callers: int, count: int, goal: float) -> Case:
    title = f"send and wait, {callers} caller{'s' * (callers > 1)}"
    parameters = {"size": 1024, "threads": callers}
    return Case(f"sync-{callers}", title, "sync", count, parameters, goal=goal)


CASES = [
    _produce(1024, 500, 200_000),
    _produce(1024, 5000, 200_000),
    _produce(100, 500, 300_000),
    _produce(100, 5000, 300_000),
    *spread("", 300_000),
    _sync(1, 20_000, 1.0),
    _sync(16, 100_000, 1.3),
    blocking("", 1, 20_000),
    blocking("", 16, 100_000),
    blocking_many("", "produce-1024-5000", "produce", 200_000),
    Case(
        "pull",
        "consume message by message (Java: pull)",
        "consume_pull",
        400_000,
        topic="consume",
        goal=1.5,
    ),
    Case(
        "batches",
        "consume in batches (to Java's pull)",
        "consume_batches",
        400_000,
        topic="consume",
        clients=(COHERER,),
        reference="pull",
        goal=2.0,
    ),
    Case(
        "arrow",
        "consume as Arrow (to Java's pull)",
        "consume_arrow",
        400_000,
        topic="consume",
        clients=(COHERER,),
        reference="pull",
    ),
    Case(
        "push",
        "consume with a handler (Java: push)",
        "consume_push",
        400_000,
        topic="consume",
        goal=1.2,
    ),
    *latencies(""),
]
"""The cases, in the order of the table."""
