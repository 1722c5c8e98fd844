"""The cases of TubeMQ."""

from __future__ import annotations

from bench.cases import COHERER, Case, blocking, spread


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


CASES = [
    _produce(1024, 500, 200_000),
    _produce(1024, 5000, 200_000),
    _produce(100, 500, 300_000),
    _produce(100, 5000, 300_000),
    *spread("", 300_000),
    Case("sync-1", "send and wait, 1 caller", "sync", 20_000, {"size": 1024, "threads": 1}),
    Case("sync-16", "send and wait, 16 callers", "sync", 100_000, {"size": 1024, "threads": 16}),
    blocking("", 1, 20_000, 0.6),
    blocking("", 16, 100_000, 0.9),
    Case(
        "pull", "consume message by message (Java: pull)", "consume_pull", 400_000, topic="consume"
    ),
    Case(
        "batches",
        "consume in batches (to Java's pull)",
        "consume_batches",
        400_000,
        topic="consume",
        clients=(COHERER,),
        reference="pull",
        goal=1.0,
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
    Case("push", "consume with a handler (Java: push)", "consume_push", 400_000, topic="consume"),
    Case(
        "latency",
        "end to end at 1,000/s, p50",
        "latency",
        5_000,
        {"rate": 1000, "size": 100, "warm": 1000},
        topic="latency",
        goal_ms=2.0,
    ),
]
"""The cases, in the order of the table."""
