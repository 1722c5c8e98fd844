"""Leases: one consumer of a group at a time."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.tubemq.leases import Lease, LeaseTable

TIMEOUT_MS = 30_000


def keys(leases: Iterable[Lease]) -> set[tuple[str, str, int]]:
    return {lease.key for lease in leases}


def test_groups_do_not_disturb_one_another() -> None:
    table = LeaseTable[Lease](TIMEOUT_MS)
    for lease in (Lease("a", "g", "t", 0), Lease("b", "h", "t", 0), Lease("a", "g", "t", 1)):
        assert table.take(lease, 0) is None
    assert keys(table.held_by("a")) == {("g", "t", 0), ("g", "t", 1)}
    assert len(table) == 3
    assert table.held_by("nobody") == []


def test_a_consumer_can_take_its_partition_again() -> None:
    table = LeaseTable[Lease](TIMEOUT_MS)
    first, second = Lease("a", "g", "t", 0), Lease("a", "g", "t", 0)
    table.take(first, 0)
    assert table.take(second, 10) is None
    assert not first.live
    assert table.find("g", "t", 0) is second
    table.release(first)  # has ended already
    assert table.find("g", "t", 0) is second


def test_a_renewed_lease_excludes_others() -> None:
    table = LeaseTable[Lease](TIMEOUT_MS)
    mine, other = Lease("a", "g", "t", 0), Lease("b", "g", "t", 0)
    table.take(mine, 0)
    table.renew(mine, 20_000)
    assert table.take(other, 49_999) is mine
    assert table.expire(49_999) == []
    assert table.take(other, 50_000) is None
    assert not mine.live


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "renew", "release", "expire"]),
            st.sampled_from("ab"),
            st.integers(0, 2),
            st.integers(0, 20_000),
        )
    )
)
def test_a_partition_never_has_two_holders(steps: list[tuple[str, str, int, int]]) -> None:
    table = LeaseTable[Lease](TIMEOUT_MS)
    live: list[Lease] = []
    now_ms = 0
    for step, holder, partition, wait_ms in steps:
        now_ms += wait_ms
        lease = table.find("g", "t", partition)
        if step == "take":
            new = Lease(holder, "g", "t", partition)
            refused = table.take(new, now_ms)
            assert (refused is not None) == (
                lease is not None and lease.holder != holder and now_ms < lease.deadline_ms
            )
            live.append(new)
        elif step == "expire":
            assert all(now_ms >= over.deadline_ms for over in table.expire(now_ms))
        elif lease is not None and step == "renew":
            table.renew(lease, now_ms)
        elif lease is not None:
            table.release(lease)
        live = [lease for lease in live if lease.live]
        assert len(keys(live)) == len(live) == len(table)
        assert sorted(keys(table)) == sorted(keys(table.held_by("a")) | keys(table.held_by("b")))
