"""Rounds through the half messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._record import layout
from coherer._record.properties import decode, encode
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from coherer._rules.rocketmq.transaction_checks import CheckOptions, Plan, TransactionLedger
from coherer._rules.rocketmq.transactions import Op, done_mark, half, name_of, read_op
from coherer._store import Draft

HOST = bytes(8)


class Harness:
    """A half topic, an op topic, and a clock."""

    def __init__(self, **options: int) -> None:
        self.options = CheckOptions(**options)
        self.halves: list[layout.Record] = []
        self.ops: list[layout.Record] = []
        self.lost: list[layout.Record] = []
        self.now_ms = 1_000_000
        self.ledger = TransactionLedger(0, 0, self.options)
        self.saved = 0, 0

    def send(self, name: str = "m", *, age_ms: int = 0, **properties: str) -> int:
        text = encode({"PGROUP": "g", "TRAN_MSG": "true", **properties})
        draft = Draft("t", 0, name.encode(), text, born_ms=self.now_ms - age_ms)
        return self._put(self.halves, half(draft))

    def _put(self, queue: list[layout.Record], draft: Draft) -> int:
        queue.append(
            layout.decode(
                layout.encode(
                    draft.topic, draft.body, draft.properties,
                    queue_id=0, queue_offset=len(queue), physical_offset=0, store_ms=self.now_ms,
                    born_ms=draft.born_ms, born_host=HOST, sys_flag=draft.sys_flag, flag=draft.flag,
                    prepared_offset=draft.prepared_offset,
                )
            )
        )  # fmt: skip
        return len(queue) - 1

    def end(self, offset: int) -> None:
        name = name_of(self.halves[offset])
        at = self._put(self.ops, done_mark(offset, HOST, self.now_ms, name=name))
        self.ledger.mark(self.op(at))

    def op(self, at: int) -> Op:
        op = read_op(self.ops[at])
        assert op is not None
        return op

    def read(self, offset: int) -> tuple[Sequence[layout.Record], int]:
        records = self.halves[offset : offset + 3]
        return records, offset + len(records)

    def plan(self) -> Plan:
        return self.ledger.plan(self.now_ms, self.now_ms, self.read)

    def carry_out(self, plan: Plan) -> list[str]:
        """Store the plan; return the bodies of the messages to check."""
        offsets: list[int] = []
        for draft in plan.drafts:
            queue = self.halves if draft.topic == HALF_TOPIC else self.lost
            offsets.append(self._put(queue, draft))
        self.ledger.carried_out(plan, offsets)
        asked = zip(plan.drafts, plan.asked, strict=True)
        return [bytes(draft.body).decode() for draft, ask in asked if ask]

    def round(self) -> list[str]:
        """A whole round."""
        asked: list[str] = []
        started_ms = self.now_ms
        while True:
            plan = self.ledger.plan(started_ms, self.now_ms, self.read)
            asked += self.carry_out(plan)
            if not plan.more:
                return asked

    def restart(self) -> None:
        """Only older offsets of both topics survive; the marks are read again."""
        self.ledger = TransactionLedger(*self.saved, self.options, read_to=len(self.ops))
        for at in reversed(range(len(self.ops))):
            self.ledger.mark_older(self.op(at))

    def save(self) -> None:
        self.saved = self.ledger.half_offset, self.ledger.op_offset


def test_nothing_to_do() -> None:
    harness = Harness()
    assert harness.round() == []
    assert (harness.ledger.half_offset, harness.ledger.op_offset) == (0, 0)


def test_marked_messages_are_stepped_over() -> None:
    harness = Harness()
    for _ in range(5):
        harness.send()
    for offset in (1, 0, 3):
        harness.end(offset)
    assert harness.ledger.advance()
    assert (harness.ledger.half_offset, harness.ledger.op_offset) == (2, 2)
    assert not harness.ledger.advance()


def test_a_young_message_ends_the_round() -> None:
    harness = Harness()
    harness.send()
    harness.now_ms += 6_000
    assert harness.round() == []
    assert harness.ledger.half_offset == 0
    harness.now_ms += 1
    assert harness.round() == ["m"]
    assert (harness.ledger.half_offset, len(harness.halves)) == (1, 2)
    assert decode(harness.halves[1].properties)["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_message_of_this_round_waits_for_the_next() -> None:
    harness = Harness()
    started_ms = harness.now_ms
    harness.send()
    harness.now_ms += 60_000
    assert not harness.ledger.plan(started_ms, harness.now_ms, harness.read).drafts
    assert harness.round() == ["m"]


@pytest.mark.parametrize("age_ms", [-20_000, -5_000, 10_000, 7_200_000])
def test_the_clock_of_the_producer_does_not_bring_a_check_forward(age_ms: int) -> None:
    """Otherwise it could be asked before it knows that the message is stored."""
    harness = Harness()
    harness.send(age_ms=age_ms)
    harness.now_ms += 6_000
    assert harness.round() == []
    harness.now_ms += 1
    assert harness.round() == ["m"]


def test_a_message_is_given_up_after_the_last_check() -> None:
    harness = Harness(checks_max=3)
    harness.send()
    asked = 0
    for _ in range(6):
        harness.now_ms += 60_000
        asked += len(harness.round())
    assert asked == 3
    assert [record.topic for record in harness.lost] == [CHECK_MAX_TIME_TOPIC]
    assert decode(harness.lost[0].properties)["TRANSACTION_CHECK_TIMES"] == "3"
    assert harness.ledger.half_offset == len(harness.halves) == 4


def test_an_expired_message_is_given_up_without_a_check() -> None:
    harness = Harness(keep_ms=100_000)
    harness.send()
    harness.now_ms += 100_001
    assert harness.round() == []
    assert len(harness.lost) == 1


def test_an_immune_message_waits_at_the_end_and_costs_no_checks() -> None:
    harness = Harness()
    harness.send("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="200")
    harness.send("other")
    asked: list[str] = []
    for _ in range(3):
        harness.now_ms += 60_000
        asked += harness.round()
    assert asked == ["other"] * 3
    last = decode(harness.halves[-2].properties)
    assert last["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in last
    harness.now_ms += 60_000
    assert sorted(harness.round()) == ["immune", "other"]


def test_an_invalid_immunity_time_is_the_default() -> None:
    harness = Harness()
    harness.send(CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    harness.now_ms += 6_001
    assert harness.round() == ["m"]


def test_the_end_of_an_older_copy_ends_the_newest() -> None:
    harness = Harness()
    harness.send()
    for _ in range(3):
        harness.now_ms += 60_000
        harness.round()
    harness.end(0)  # the answer to the producer's own send, long under way
    harness.now_ms += 60_000
    assert harness.round() == []
    assert (harness.ledger.half_offset, harness.ledger.op_offset) == (4, 1)


def test_the_end_of_an_immune_message_is_found_after_a_restart() -> None:
    harness = Harness()
    harness.send("first")
    harness.send("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    harness.now_ms += 60_000
    harness.round()
    harness.end(1)
    harness.save()
    harness.restart()
    harness.now_ms += 60_000
    assert harness.round() == ["first"]
    harness.now_ms += 600_000
    assert harness.round() == ["first"]


def test_an_end_between_plan_and_storing_counts() -> None:
    harness = Harness()
    harness.send()
    harness.now_ms += 60_000
    plan = harness.plan()
    harness.end(0)
    harness.carry_out(plan)
    assert (harness.ledger.half_offset, harness.ledger.op_offset) == (2, 1)


def test_a_plan_that_was_not_carried_out_changes_nothing() -> None:
    harness = Harness()
    harness.send()
    harness.now_ms += 60_000
    assert len(harness.plan().drafts) == 1
    assert len(harness.plan().drafts) == 1
    assert harness.round() == ["m"]


def test_large_rounds_come_in_pieces() -> None:
    harness = Harness(per_round=10)
    for number in range(95):
        harness.send(str(number))
    harness.now_ms += 60_000
    assert harness.plan().more
    assert harness.round() == [str(number) for number in range(95)]
    assert harness.ledger.half_offset == 95


def test_missing_half_messages_are_stepped_over() -> None:
    harness = Harness()
    harness.send("a")
    harness.send("b")
    harness.now_ms += 60_000

    def read(offset: int) -> tuple[Sequence[layout.Record], int]:
        return ([], 1) if offset == 0 else harness.read(offset)

    plan = harness.ledger.plan(harness.now_ms, harness.now_ms, read)
    assert [bytes(draft.body) for draft in plan.drafts] == [b"b"]
    assert plan.end == 2


def test_deleted_marks_are_skipped() -> None:
    ledger = TransactionLedger(0, 3)
    ledger.skip_ops(10)
    assert (ledger.op_offset, ledger.read_to) == (10, 10)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["send", "end", "late", "round", "save", "restart", "wait"]), max_size=60
    )
)
def test_every_transaction_is_settled_once_and_not_checked_after_its_end(steps: list[str]) -> None:
    """Only open transactions are checked, also after restarts with old positions."""
    harness = Harness(checks_max=1_000)
    open_offsets: dict[str, int] = {}
    ended: set[str] = set()
    for number, step in enumerate(steps):
        if step == "send":
            open_offsets[str(number)] = harness.send(str(number))
        elif step in ("end", "late") and open_offsets:
            name = min(open_offsets) if step == "end" else max(open_offsets)
            harness.end(open_offsets.pop(name))
            ended.add(name)
        elif step == "round":
            harness.now_ms += 60_000
            asked = harness.round()
            assert not ended & set(asked)
            assert set(open_offsets) <= set(asked)
        elif step == "restart":
            harness.restart()
        elif step == "save":
            harness.save()
        else:
            harness.now_ms += 1_000
    harness.now_ms += 60_000
    harness.round()
    if not open_offsets:
        assert harness.ledger.half_offset == len(harness.halves)
        assert harness.ledger.op_offset == len(harness.ops)
