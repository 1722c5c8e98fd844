"""Benchmark cases: an action of a client process, with its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

JAVA = "java"
COHERER = "coherer"
CPP = "cpp"
QUICK = 0.15
BEHIND = "behind"
"""The parameter of cases in which another process reads `consume` from the beginning meanwhile."""


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Args:
        key: for `--only` and the JSON.
        title: for the table.
        action: of the client process.
        count: number of messages in a full run.
        parameters: of the action.
        topic: that it uses.
        clients: that support it.
        brokers: to measure it with.
        reference: the case of the Java pair to compare with.
        baseline: the case of Coherer's own pair to compare with instead.
        goal: minimum ratio to the reference or the baseline.
        goal_ms: maximum p50, for latency.
        goal_p99_ms: maximum p99.
        goal_cpp: minimum ratio of Coherer's client to the C++ client, both with Java's broker.
    """

    key: str
    title: str
    action: str
    count: int
    parameters: dict[str, int] = field(default_factory=dict)
    topic: str = "produce"
    clients: tuple[str, ...] = (JAVA, COHERER)
    brokers: tuple[str, ...] = (JAVA, COHERER)
    reference: str = ""
    baseline: str = ""
    goal: float | None = None
    goal_ms: float | None = None
    goal_p99_ms: float | None = None
    goal_cpp: float | None = None

    def counted(self, *, quick: bool) -> int:
        """The number of messages in this run."""
        return max(int(self.count * QUICK), 1000) if quick else self.count


def blocking(prefix: str, threads: int, count: int) -> Case:
    """The case `sync` with the blocking client, compared with the asyncio one."""
    threads_text = "1 thread" if threads == 1 else f"{threads} threads"
    return Case(
        f"{prefix}blocking-{threads}",
        f"send and wait, blocking, {threads_text} (to asyncio)",
        "blocking",
        count,
        {"size": 1024, "threads": threads},
        clients=(COHERER,),
        brokers=(COHERER,),
        baseline=f"{prefix}sync-{threads}",
        goal=0.6,
    )


def blocking_many(prefix: str, baseline: str, title: str, count: int) -> Case:
    """`send_many` of the blocking client, compared with the asyncio one."""
    return Case(
        f"{prefix}blocking-many",
        f"{title} 1 KiB, 5,000 in flight, blocking (to asyncio)",
        "blocking_produce",
        count,
        {"size": 1024, "window": 5_000},
        clients=(COHERER,),
        brokers=(COHERER,),
        baseline=baseline,
        goal=0.9,
    )


def latencies(prefix: str) -> list[Case]:
    """From the send to the handler: at two rates, and beside a reader of old messages.

    Java's clients are compared at the lower rate only.
    """
    ours = {"clients": (COHERER,), "brokers": (COHERER,)}
    slow = {"rate": 1_000, "size": 100, "warm": 1_000}
    fast = {"rate": 10_000, "size": 100, "warm": 10_000}

    def case(key: str, title: str, count: int, parameters: dict[str, int], **more: Any) -> Case:
        return Case(
            f"{prefix}{key}",
            f"end to end at {title}",
            "latency",
            count,
            parameters,
            topic="latency",
            **more,
        )

    return [
        case("latency", "1,000/s", 5_000, slow, goal_ms=0.25, goal_p99_ms=1.0),
        case("fast-latency", "10,000/s", 50_000, fast, goal_p99_ms=5.0, **ours),
        case(
            "behind-latency",
            "10,000/s, while another consumer reads from the beginning",
            50_000,
            {**fast, BEHIND: 1},
            goal_p99_ms=5.0,
            **ours,
        ),
    ]


def spread(prefix: str, count: int) -> list[Case]:
    """The same messages, sent to one topic, and round-robin to many topics.

    Measures Coherer alone, compared with the rate of one topic. A node lets its clients create
    10,000 topics, including its own and those of other cases.
    """
    goals = {1: None, 1_000: 0.95, 9_990: 0.9}
    return [
        Case(
            f"{prefix}topics-{topics}",
            f"send 1 KiB, 5,000 in flight, {topics:,} topics (to 1 topic)".replace(
                "1 topics (to 1 topic)", "1 topic"
            ),
            "spread",
            count,
            {"size": 1024, "window": 5_000, "topics": topics},
            clients=(COHERER,),
            brokers=(COHERER,),
            baseline="" if topics == 1 else f"{prefix}topics-1",
            goal=goal,
        )
        for topics, goal in goals.items()
    ]
