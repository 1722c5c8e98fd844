"""Transactions end once and atomically; open transactions are checked.

See docs/protocol/rocketmq.md, section 6.7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._record import layout
from coherer._record.ids import encode_offset_id
from coherer._record.properties import decode, encode
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from coherer._rules.rocketmq.transaction_checks import CheckOptions
from coherer._rules.rocketmq.transactions import (
    GROUP,
    Question,
    half,
)
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.transactions import TransactionService
from coherer._server.rocketmq.remoting import RemotingServer
from coherer._store import AppendResult, Draft, Store, StoreOptions
from coherer._wire.rocketmq.command import Command
from coherer.errors import UsageError
from coherer.testing import ManualClock
from tests.server.rocketmq_caller import Caller

OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)
UNKNOWN, COMMIT, ROLL_BACK = 0, 8, 12
END, RESUME = 37, 323
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class Node:
    """A store, a core, the service, and a client."""

    def __init__(
        self, directory: Path, clock: ManualClock, options: StoreOptions = OPTIONS
    ) -> None:
        self.clock = clock
        self.store = Store.open(directory, options, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms, wall_ms=clock.wall_ms)
        self.questions: list[Question] = []
        self.slave = False
        self.untimely: set[bytes] = set()  # bodies of messages that cannot be scheduled
        self.service = TransactionService(
            self.core,
            self._ask,
            CheckOptions(),
            is_slave=lambda: self.slave,
            schedule=self._schedule,
        )
        self.caller: Caller
        self._listener: net.Listener

    async def start(self) -> Node:
        remoting = RemotingServer({END: self.service.end, RESUME: self.service.resume})
        self._listener = await net.listen("127.0.0.1", 0, remoting.make)
        self.caller = await Caller.dial(self._listener.port)
        return self

    def _schedule(self, draft: Draft) -> Draft:
        if draft.body in self.untimely:
            raise UsageError("The properties become too long.")
        return draft

    def _ask(self, question: Question) -> bool:
        self.questions.append(question)
        return True

    def prepare(self, body: str, **properties: str) -> AppendResult:
        text = encode({"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": body, **properties})
        sent = Draft("t", 2, body.encode(), text, born_ms=self.clock.wall_ms(), sys_flag=4)
        return self.store.append([half(sent)])[0]

    def fields(self, prepared: AppendResult, how: int, **changes: str) -> dict[str, str]:
        return {
            "producerGroup": "payers",
            "tranStateTableOffset": str(prepared.queue_offset),
            "commitLogOffset": str(prepared.physical_offset),
            "commitOrRollback": str(how),
            "fromTransactionCheck": "false",
            "msgId": "0A",
            **changes,
        }

    async def end(self, prepared: AppendResult, how: int, **changes: str) -> Command:
        return await self.caller.ask(END, self.fields(prepared, how, **changes))

    async def beat(self, ms: int = 60_000) -> list[str]:
        """Let time pass; gives the unique ids that somebody was asked about."""
        self.clock.advance(ms)
        before = len(self.questions)
        for _ in range(5):
            self.service.tick()
            await self.core.appender.close()  # stores what is pending
        return [question.unique_key for question in self.questions[before:]]

    def records(self, topic: str, queue_id: int = 0) -> list[layout.Record]:
        found: list[layout.Record] = []
        at, end = self.store.queue_range(topic, queue_id)
        while at < end:
            piece = self.store.read(topic, queue_id, at, max_bytes=1 << 20, max_count=1000)
            found += [layout.decode(record) for record in piece.records]
            at = piece.next_offset
        return found

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [bytes(record.body) for record in self.records(topic, queue_id)]

    def offsets(self) -> tuple[int, int]:
        found = [self.core.offsets.find(GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC)]
        return found[0].offset if found[0] else -1, found[1].offset if found[1] else -1

    async def close(self) -> None:
        """As a broker does."""
        self.service.stop()
        await self.caller.hang_up()
        await self._listener.close()
        await self.core.close()
        self.store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    made = await Node(tmp_path, clock).start()
    yield made
    await made.close()


async def test_commit_stores_the_message_and_the_mark(node: Node) -> None:
    first, second = node.prepare("a"), node.prepare("b", TAGS="TagA")
    answer = await node.end(second, COMMIT)
    assert (answer.code, answer.remark) == (0, None)
    (real,) = node.records("t", 2)
    assert (real.body, real.sys_flag, real.queue_offset) == (b"b", 8, 0)
    assert real.prepared_offset == second.physical_offset != first.physical_offset
    assert node.store.entries("t", 2, 0, 1)[0].code == 2598919
    (mark,) = node.records(OP_HALF_TOPIC)
    assert (mark.body, decode(mark.properties)) == (b"1", {"WAIT": "true", "TAGS": "d"})
    # The topics are made on demand, so that a Java broker finds them (section 6.7).
    assert node.core.topics[OP_HALF_TOPIC].perm == 6


async def test_roll_back_stores_only_the_mark(node: Node) -> None:
    answer = await node.end(node.prepare("a"), ROLL_BACK)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert node.bodies("t", 2) == []
    assert node.bodies(OP_HALF_TOPIC) == [b"0"]


async def test_an_unknown_state_is_not_answered(node: Node) -> None:
    prepared = node.prepare("a")
    nothing = node.caller.begin(END, node.fields(prepared, UNKNOWN))
    assert (await node.end(prepared, ROLL_BACK)).code == 0
    assert not nothing.done()
    assert node.bodies(OP_HALF_TOPIC) == [b"0"]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producerGroup": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": "7"}, "The transaction state table offset wrong"),
        ({"commitLogOffset": "7"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
        ({"commitOrRollback": "4"}, "commitOrRollback field wrong"),
        ({"commitOrRollback": "-8"}, "commitOrRollback field wrong"),
    ],
)
async def test_an_end_that_does_not_fit_is_refused_as_java_does(
    node: Node, changes: dict[str, str], remark: str
) -> None:
    answer = await node.end(node.prepare("a"), COMMIT, **changes)
    assert (answer.code, answer.remark) == (1, remark)
    assert node.bodies("t", 2) == node.bodies(OP_HALF_TOPIC) == []


async def test_a_slave_ends_nothing(node: Node) -> None:
    prepared = node.prepare("a")
    node.slave = True
    assert (await node.end(prepared, COMMIT)).code == 11
    assert await node.beat() == []


async def test_a_silent_producer_is_checked_every_minute(node: Node) -> None:
    node.prepare("a")
    assert await node.beat(59_999) == []
    assert await node.beat(1) == ["a"]
    assert await node.beat(30_000) == []
    assert await node.beat(30_000) == ["a"]
    question = node.questions[-1]
    message = layout.decode(question.body)
    assert (message.topic, message.queue_id, message.body) == ("t", 2, b"a")
    assert decode(message.properties)["TRANSACTION_CHECK_TIMES"] == "2"
    # It is asked about the newest copy, by which it ends the transaction.
    newest = node.records(HALF_TOPIC)[question.half_offset]
    assert newest.physical_offset == question.physical_offset
    assert node.offsets() == (2, 0)


async def test_an_answered_question_ends_it(node: Node) -> None:
    node.prepare("a")
    await node.beat()
    asked = node.questions[0]
    answer = await node.end(AppendResult(asked.half_offset, asked.physical_offset, 0), COMMIT)
    assert answer.code == 0
    assert await node.beat() == []
    assert node.bodies("t", 2) == [b"a"]
    assert node.offsets() == (2, 1)


async def test_ended_transactions_are_not_checked(node: Node) -> None:
    prepared = [node.prepare(str(number)) for number in range(10)]
    for number in (0, 1, 2, 5, 9):
        await node.end(prepared[number], ROLL_BACK)
    assert await node.beat() == ["3", "4", "6", "7", "8"]
    assert node.offsets() == (10, 5)


async def test_after_a_restart_marks_are_read_again(tmp_path: Path, clock: ManualClock) -> None:
    node = await Node(tmp_path, clock).start()
    prepared = [node.prepare(str(number)) for number in range(5)]
    for number in (0, 2, 4):
        await node.end(prepared[number], COMMIT)
    await node.close()
    again = await Node(tmp_path, clock).start()
    assert await again.beat() == ["1", "3"]
    assert again.offsets() == (5, 3)
    # Ends before and after the restart count.
    asked = again.questions[0]
    await again.end(AppendResult(asked.half_offset, asked.physical_offset, 0), COMMIT)
    assert await again.beat() == ["3"]
    await again.close()


async def test_a_given_up_message_can_be_brought_back(node: Node) -> None:
    node.prepare("a", TRANSACTION_CHECK_TIMES="15")  # the broker counts, not the client
    for _ in range(15):
        assert await node.beat() == ["a"]
    assert await node.beat() == []
    (lost,) = node.records(CHECK_MAX_TIME_TOPIC)
    identity = encode_offset_id(HOST, lost.physical_offset)
    assert (await node.caller.ask(RESUME, {"msgId": identity})).code == 0
    assert decode(node.records(HALF_TOPIC)[-1].properties)["TRANSACTION_CHECK_TIMES"] == "0"
    assert await node.beat() == ["a"]


@pytest.mark.parametrize("identity", ["", "no id", encode_offset_id(HOST, 1 << 40)])
async def test_half_messages_that_cannot_be_resumed(node: Node, identity: str) -> None:
    answer = await node.caller.ask(RESUME, {"msgId": identity})
    assert answer.code == 1
    assert answer.remark == (
        "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
    )


async def test_a_full_disk_leaves_everything_as_it_was(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coherer.errors import StoreFullError

    prepared = node.prepare("a")
    with monkeypatch.context() as full:

        def refuse(_: object) -> None:
            raise StoreFullError("No room.")

        full.setattr(node.store, "append", refuse)
        assert (await node.end(prepared, COMMIT)).code == 14
        assert await node.beat() == []
    assert await node.beat() == ["a"]
    assert (await node.end(prepared, COMMIT)).code == 0


async def test_a_half_message_with_an_invalid_destination_is_illegal(node: Node) -> None:
    text = encode({"PGROUP": "payers", "REAL_TOPIC": "a b", "REAL_QID": "0"})
    prepared = node.store.append([Draft(HALF_TOPIC, 0, b"x", text)])[0]
    assert (await node.end(prepared, COMMIT)).code == 13


async def test_requests_without_their_fields_are_refused(node: Node) -> None:
    answer = await node.caller.ask(END, {"producerGroup": "payers"})
    assert answer.code == 1


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_setting_the_clock_does_not_affect_checks(
    node: Node, clock: ManualClock, by_ms: int
) -> None:
    node.prepare("before")
    assert await node.beat(57_000) == []
    clock.turn(by_ms)
    node.prepare("after")  # three seconds old in the next round: too young
    assert await node.beat(3_000) == ["before"]
    assert sorted(await node.beat()) == ["after", "before"]
    assert sorted(await node.beat()) == ["after", "before"]
