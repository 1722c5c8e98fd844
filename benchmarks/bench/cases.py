"""What is measured. A case names what a client process is asked to do, and with how much."""

from __future__ import annotations

from dataclasses import dataclass, field

JAVA = "java"
OURS = "ours"
QUICK = 0.15


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Args:
        key: for `--only` and the JSON.
        title: for the table.
        action: what the client process does.
        count: how many messages, in a full run.
        parameters: what else it is told.
        topic: from which topic's settings and content it lives.
        clients: who can do it.
        reference: the case of the Java pair that it is compared with.
        goal: the least ratio to the reference.
        goal_ms: the highest p50, for latency.
    """

    key: str
    title: str
    action: str
    count: int
    parameters: dict[str, int] = field(default_factory=dict)
    topic: str = "produce"
    clients: tuple[str, ...] = (JAVA, OURS)
    reference: str = ""
    goal: float | None = None
    goal_ms: float | None = None

    def counted(self, *, quick: bool) -> int:
        """How many messages in this run."""
        return max(int(self.count * QUICK), 1000) if quick else self.count


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
    Case("sync-1", "send and wait, 1 caller", "sync", 20_000, {"size": 1024, "threads": 1}),
    Case("sync-16", "send and wait, 16 callers", "sync", 100_000, {"size": 1024, "threads": 16}),
    Case(
        "pull", "consume message by message (Java: pull)", "consume_pull", 400_000, topic="consume"
    ),
    Case(
        "batches",
        "consume in batches (to Java's pull)",
        "consume_batches",
        400_000,
        topic="consume",
        clients=(OURS,),
        reference="pull",
        goal=1.0,
    ),
    Case(
        "arrow",
        "consume as Arrow (to Java's pull)",
        "consume_arrow",
        400_000,
        topic="consume",
        clients=(OURS,),
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
"""In the order of the table."""
