"""A case names what a client process is asked to do, and with how much."""

from __future__ import annotations

from dataclasses import dataclass, field

JAVA = "java"
OURS = "ours"
CPP = "cpp"
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
        goal_cpp: the least ratio of our client to the C++ client, both with Java's broker.
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
    goal_cpp: float | None = None

    def counted(self, *, quick: bool) -> int:
        """How many messages in this run."""
        return max(int(self.count * QUICK), 1000) if quick else self.count
