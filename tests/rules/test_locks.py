"""Locks on queues (docs/protocol/rocketmq.md, section 2.10, codes 41 and 42)."""

from __future__ import annotations

import pytest

from coherer import limits
from coherer._rules.rocketmq.clients import LIFE_MS, REFUSED_MAX, QueueLocks


def test_a_queue_has_one_owner() -> None:
    locks = QueueLocks[str]()
    assert locks.lock("g", "a", ["q0", "q1"], now_ms=0) == ["q0", "q1"]
    assert locks.lock("g", "b", ["q1", "q2"], now_ms=1) == ["q2"]
    assert locks.lock("h", "b", ["q1"], now_ms=1) == ["q1"]  # another group
    assert locks.owner("g", "q1", now_ms=1) == "a"
    assert locks.owner("g", "q9", now_ms=1) is None
    assert locks.lock("g", "a", ["q0", "q0"], now_ms=1) == ["q0"]  # Java has a set


def test_locks_are_renewed_or_over() -> None:
    locks = QueueLocks[str]()
    locks.lock("g", "a", ["q"], now_ms=0)
    assert locks.lock("g", "b", ["q"], now_ms=LIFE_MS) == []
    assert locks.lock("g", "a", ["q"], now_ms=LIFE_MS) == ["q"]  # renewed
    assert locks.lock("g", "b", ["q"], now_ms=LIFE_MS + 1) == []
    assert locks.owner("g", "q", now_ms=2 * LIFE_MS + 1) is None
    assert locks.lock("g", "b", ["q"], now_ms=2 * LIFE_MS + 1) == ["q"]
    assert locks.lock("g", "a", ["q"], now_ms=2 * LIFE_MS + 2) == []


def test_only_the_owner_gives_a_lock_back() -> None:
    locks = QueueLocks[str]()
    locks.lock("g", "a", ["q", "r"], now_ms=0)
    locks.unlock("g", "b", ["q"])
    assert locks.owner("g", "q", now_ms=0) == "a"
    locks.unlock("g", "a", ["q", "unknown"])
    assert locks.lock("g", "b", ["q", "r"], now_ms=0) == ["q"]
    locks.unlock("nobody", "a", ["q"])


def test_locks_that_are_over_are_forgotten() -> None:
    locks = QueueLocks[str](life_ms=10)
    locks.lock("g", "a", ["q"], now_ms=0)
    locks.lock("h", "a", ["q"], now_ms=5)
    locks.forget_expired(now_ms=11)
    assert locks.owner("g", "q", now_ms=5) is None  # though it would still be valid at that time
    assert locks.owner("h", "q", now_ms=11) == "a"


def test_unlock_returns_the_refused_consumers() -> None:
    locks = QueueLocks[str]()
    locks.lock("g", "a", ["q", "r", "s"], now_ms=0)
    assert locks.lock("g", "b", ["q", "r"], now_ms=1) == []
    assert locks.lock("g", "c", ["r"], now_ms=1) == []
    assert locks.unlock("g", "b", ["q"]) == [], "it is not b's to give back"
    assert locks.unlock("g", "a", ["q"]) == ["b"]
    assert locks.unlock("g", "a", ["q"]) == []
    assert locks.unlock("g", "a", ["r", "s"]) == ["b", "c"]
    assert locks.lock("g", "b", ["q"], now_ms=2) == ["q"]
    assert locks.unlock("g", "b", ["q"]) == [], "who got it waits no longer"


def test_expiry_returns_the_refused_consumers() -> None:
    locks = QueueLocks[str](life_ms=10)
    locks.lock("g", "a", ["q", "r"], now_ms=0)
    locks.lock("h", "a", ["q"], now_ms=0)
    assert locks.lock("g", "b", ["q"], now_ms=5) == []
    assert locks.forget_expired(now_ms=10) == {}
    assert locks.forget_expired(now_ms=11) == {"g": ["b"]}
    assert locks.forget_expired(now_ms=12) == {}


def test_the_next_owner_of_a_lock_does_not_forget_the_others_that_were_refused() -> None:
    locks = QueueLocks[str](life_ms=10)
    locks.lock("g", "a", ["q"], now_ms=0)
    assert locks.lock("g", "b", ["q"], now_ms=5) == locks.lock("g", "c", ["q"], now_ms=5) == []
    assert locks.lock("g", "b", ["q"], now_ms=11) == ["q"]
    assert locks.unlock("g", "b", ["q"]) == ["c"]


def test_the_refused_that_are_remembered_are_bounded() -> None:
    locks = QueueLocks[str]()
    locks.lock("g", "a", ["q"], now_ms=0)
    for number in range(2 * REFUSED_MAX):
        assert locks.lock("g", f"{number}", ["q"], now_ms=0) == []
    assert len(locks.unlock("g", "a", ["q"])) == REFUSED_MAX


def test_a_slave_that_becomes_the_master_waits_for_the_locks_of_its_master() -> None:
    slave = QueueLocks[str](life_ms=10)
    slave.inherit(now_ms=0)
    master = QueueLocks[str](life_ms=10)
    master.load(slave.dump(), now_ms=100)
    assert master.lock("g", "a", ["q"], now_ms=105) == []
    again = QueueLocks[str](life_ms=10)  # it is restarted meanwhile
    again.load(master.dump(), now_ms=106)
    assert again.lock("g", "a", ["q", "r"], now_ms=116) == []
    assert again.forget_expired(now_ms=117) == {"g": ["a"]}
    assert again.lock("g", "a", ["q", "r", "s"], now_ms=117) == ["q", "r", "s"]
    assert again.dump() == [("g", "a", ["q", "r", "s"])]


def test_locks_are_renewed_though_no_further_ones_are_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise another consumer would get a queue that its owner is working on."""
    locks = QueueLocks[str]()
    locks.lock("g", "a", ["q"], now_ms=0)
    monkeypatch.setattr(limits, "LOCKS_MAX", 1)
    assert locks.lock("g", "a", ["new", "q"], now_ms=LIFE_MS) == ["q"]
    assert locks.lock("g", "b", ["q"], now_ms=LIFE_MS + 1) == []
