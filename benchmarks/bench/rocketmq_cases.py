"""The cases of RocketMQ; their keys begin with `rocketmq-`.

Both brokers allow 1,000 messages per pull, so the client's request decides: 32, the default limit
of Java's broker, or 1,000.
"""

from __future__ import annotations

from bench.cases import COHERER, CPP, JAVA, Case, blocking, blocking_many, latencies, spread

ALL = (JAVA, COHERER, CPP)
KIB = {"size": 1024}


def _produce(window: int, goal: float) -> Case:
    return Case(
        f"rocketmq-produce-{window}",
        f"send 1 KiB, {window:,} in flight",
        "produce",
        150_000,
        KIB | {"window": window},
        goal=goal,
    )


def _sync(callers: int, count: int, goal_cpp: float) -> Case:
    callers_text = "1 caller" if callers == 1 else f"{callers} callers"
    return Case(
        f"rocketmq-sync-{callers}",
        f"send and wait, {callers_text}",
        "sync",
        count,
        KIB | {"threads": callers},
        clients=ALL,
        goal_cpp=goal_cpp,
    )


def _batch(callers: int, count: int) -> Case:
    callers_text = "1 caller" if callers == 1 else f"{callers} callers"
    return Case(
        f"rocketmq-batch-{callers}",
        f"batches of 32, {callers_text}",
        "batch",
        count,
        KIB | {"threads": callers, "batch": 32},
        goal=1.1,
    )


def _consume(how: str, per_pull: int, title: str, goal: float | None, **more: object) -> Case:
    return Case(
        f"rocketmq-{how}-{per_pull}",
        f"{title}, {per_pull:,} per pull",
        f"consume_{how}",
        400_000,
        {"per_pull": per_pull},
        topic="consume",
        goal=goal,
        **more,  # type: ignore[arg-type]
    )


CASES = [
    _produce(500, 1.5),
    _produce(5000, 1.6),
    *spread("rocketmq-", 200_000),
    _sync(1, 20_000, 1.5),
    _sync(16, 80_000, 2.5),
    blocking("rocketmq-", 1, 20_000),
    blocking("rocketmq-", 16, 80_000),
    blocking_many("rocketmq-", "rocketmq-produce-5000", "send", 200_000),
    _batch(1, 200_000),
    _batch(16, 400_000),
    _consume("pull", 32, "pull, message by message", 1.0, clients=ALL, goal_cpp=3.0),
    _consume("pull", 1000, "pull, message by message", 1.3),
    _consume("batches", 32, "in batches", None, clients=(COHERER,), reference="rocketmq-pull-32"),
    _consume(
        "batches", 1000, "in batches", None, clients=(COHERER,), reference="rocketmq-pull-1000"
    ),
    _consume("push", 32, "push", None, clients=ALL, goal_cpp=10.0),
    _consume("push", 1000, "push", 1.3),
    *latencies("rocketmq-"),
]
"""The cases, in the order of the table."""
