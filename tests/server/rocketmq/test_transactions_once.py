"""A transaction ends once: after checks, restarts and kills, and whatever the log contains."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer._record import layout
from coherer._record.ids import encode_offset_id
from coherer._record.properties import encode
from coherer._record.system_topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.ended import PAGES_MAX, OffsetSet
from coherer._rules.rocketmq.transactions import Question
from coherer._server.rocketmq.broker import transactions
from coherer._store import AppendResult, Draft, ReadResult, Store, StoreOptions
from coherer.testing import ManualClock
from tests.copies import copy_tree
from tests.server.rocketmq.test_transaction_service import (
    COMMIT,
    END,
    HOST,
    OPTIONS,
    RESUME,
    ROLL_BACK,
    Node,
)

SMALL = msgspec.structs.replace(
    OPTIONS, segment_bytes=16 << 10, retention_bytes=64 << 10, retention_hours=None
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    made = await Node(tmp_path / "store", clock, SMALL).start()
    yield made
    await made.close()


async def killed(node: Node, name: str, options: StoreOptions = SMALL) -> Node:
    """The node that finds the files as they are now: nothing was saved."""
    source = node.store.directory
    copy_tree(source, source.with_name(name), ignore=shutil.ignore_patterns("*.tmp"))
    return await Node(source.with_name(name), ManualClock(node.clock.wall_ms()), options).start()


def place_of(question: Question) -> AppendResult:
    return AppendResult(question.half_offset, question.physical_offset, 0)


@pytest.mark.parametrize("how", [COMMIT, ROLL_BACK])
async def test_a_request_that_is_repeated_stores_nothing(node: Node, how: int) -> None:
    prepared = node.prepare("a")
    assert (await node.end(prepared, how)).code == 0
    end = node.store.end_offset
    assert (await node.end(prepared, how)).code == 0
    opposite = await node.end(prepared, COMMIT + ROLL_BACK - how)
    was = "committed" if how == COMMIT else "rolled back"
    assert (opposite.code, opposite.remark) == (1, f"The transaction was {was} before.")
    assert node.store.end_offset == end


async def test_requests_that_cross_end_a_transaction_once(node: Node) -> None:
    prepared = node.prepare("a")
    asked = [node.caller.begin(END, node.fields(prepared, COMMIT)) for _ in range(20)]
    asked.append(node.caller.begin(END, node.fields(prepared, ROLL_BACK)))
    assert [(await one).code for one in asked] == [0] * 20 + [1]
    assert node.bodies("t", 2) == [b"a"]
    assert len(node.bodies(OP_HALF_TOPIC)) == 1


async def test_all_copies_are_one_transaction(node: Node) -> None:
    prepared = node.prepare("a")
    for _ in range(3):
        assert await node.beat() == ["a"]
    copies = [prepared, *map(place_of, node.questions)]
    assert len({one.queue_offset for one in copies}) == 4
    assert (await node.end(copies[1], COMMIT)).code == 0
    for copy in copies:
        assert (await node.end(copy, COMMIT)).code == 0
        assert (await node.end(copy, ROLL_BACK)).code == 1
    assert await node.beat() == []
    assert node.bodies("t", 2) == [b"a"]


async def test_after_a_kill_a_transaction_ends_once(node: Node) -> None:
    """The positions were never saved, so every half message is found again."""
    places = [[node.prepare(str(number))] for number in range(30)]
    for _ in range(2):
        await node.beat()
        for number, question in enumerate(node.questions[-30:]):
            places[number].append(place_of(question))
    for number in range(20):  # by the first, the second or the third copy
        assert (await node.end(places[number][number % 3], COMMIT)).code == 0
    again = await killed(node, "killed")
    assert sorted(await again.beat(), key=int) == [str(n) for n in range(20, 30)]
    for number in range(30):
        for place in places[number]:
            assert (await again.end(place, COMMIT)).code == 0
    for question in again.questions:
        assert (await again.end(place_of(question), COMMIT)).code == 0
    assert sorted(again.bodies("t", 2), key=int) == [str(n).encode() for n in range(30)]
    assert await again.beat() == []
    await again.close()


@pytest.mark.parametrize("torn", [0, 2], ids=["in the middle", "at the end"])
async def test_a_mark_that_a_power_cut_took_alone_is_stored_again(node: Node, torn: int) -> None:
    """The committed message is in the log, so a second commit stores nothing."""
    prepared = [node.prepare(str(number)) for number in range(4)]
    for one in prepared[:3]:
        assert (await node.end(one, COMMIT)).code == 0
    place = node.store.place_of(OP_HALF_TOPIC, 0, torn)
    assert place is not None
    size = len(node.store.record_at(place) or b"")
    image = node.store.directory.with_name("cut")
    copy_tree(node.store.directory, image, ignore=shutil.ignore_patterns("*.tmp"))
    with (image / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place)
        log.write(bytes(size))
    again = await Node(image, ManualClock(node.clock.wall_ms()), SMALL).start()
    asked = [again.caller.begin(END, again.fields(one, COMMIT)) for one in prepared]
    await again.beat()
    assert [(await one).code for one in asked] == [0] * 4
    assert sorted(again.bodies("t", 2)) == [b"0", b"1", b"2", b"3"]
    damaged = torn == 0  # the place of the first mark stays empty
    assert (again.store.queue_range(OP_HALF_TOPIC, 0)[1] > 4) == damaged
    later = await killed(again, "later")
    asked = [later.caller.begin(END, later.fields(one, COMMIT)) for one in prepared]
    await later.beat()
    assert [(await one).code for one in asked] == [0] * 4
    assert len(later.bodies("t", 2)) == 4
    await later.close()
    await again.close()


async def test_a_mark_whose_message_a_power_cut_took_never_counts(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even after starts that do not see what was torn."""
    prepared = node.prepare("a")
    node.store.flush_queues()
    place = node.store.end_offset
    assert (await node.end(prepared, COMMIT)).code == 0
    image = node.store.directory.with_name("cut")
    copy_tree(node.store.directory, image, ignore=shutil.ignore_patterns("*.tmp"))
    with (image / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place)
        log.write(bytes(len(node.store.record_at(place) or b"")))
    for _ in range(3):
        again = await Node(image, ManualClock(node.clock.wall_ms()), SMALL).start()
        assert again.bodies("t", 2) == []
        await again.close()
    again = await Node(image, ManualClock(node.clock.wall_ms()), SMALL).start()
    assert await again.beat() == ["a"]
    assert (await again.end(prepared, COMMIT)).code == 0
    assert again.bodies("t", 2) == [b"a"]
    assert "is skipped" not in caplog.text  # nothing is wrong with it
    await again.close()


async def test_a_slave_that_becomes_the_master_ends_no_transaction_twice(node: Node) -> None:
    """It was stopped when it had copied the message, and not the mark."""
    prepared = node.prepare("a")
    assert (await node.end(prepared, COMMIT)).code == 0
    mark = node.store.place_of(OP_HALF_TOPIC, 0, 0)
    assert mark is not None
    slave = node.store.directory.with_name("slave")
    options = msgspec.structs.replace(SMALL, replica=True)
    with Store.open(slave, options, now_ms=node.clock.wall_ms) as replica:
        replica.append_raw(0, bytes(node.store.read_raw(0, mark)))
    again = await Node(slave, ManualClock(node.clock.wall_ms()), SMALL).start()
    asked = again.caller.begin(END, again.fields(prepared, COMMIT))
    await again.beat()
    assert (await asked).code == 0
    assert again.bodies("t", 2) == [b"a"]
    assert again.bodies(OP_HALF_TOPIC) == [b"0"]
    await again.close()


async def test_a_request_waits_until_the_marks_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = [node.prepare(str(number)) for number in range(10)]
    for number in range(9):
        await node.end(prepared[number], COMMIT)
    monkeypatch.setattr(transactions, "MARKS_AT_ONCE", 1)
    again = await killed(node, "killed")
    asked = [again.caller.begin(END, again.fields(one, COMMIT)) for one in prepared]
    await again.caller.ask(RESUME, {"msgId": ""})  # all of them have arrived
    assert not any(one.done() for one in asked)
    for _ in range(10):
        again.service.tick()
        await asyncio.sleep(0)
    assert [(await one).code for one in asked] == [0] * 10
    assert len(again.bodies("t", 2)) == 10
    await again.close()


async def test_a_request_that_fails_does_not_hold_up_the_others_that_wait(node: Node) -> None:
    """Those after it were never answered."""
    await node.end(node.prepare("ended"), COMMIT)
    prepared = [node.prepare(body) for body in ("too long", "good")]
    again = await killed(node, "killed")
    again.untimely.add(b"too long")
    asked = [again.caller.begin(END, again.fields(one, COMMIT)) for one in prepared]
    await again.caller.ask(RESUME, {"msgId": ""})  # all of them have arrived
    assert not any(one.done() for one in asked), "they wait for the marks"
    again.service.tick()
    async with asyncio.timeout(10):
        refused, good = [await one for one in asked]
    assert refused.code == 1
    assert "The properties become too long." in (refused.remark or "")
    assert good.code == 0
    await again.close()


async def test_others_have_their_turn_while_marks_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call ten times a second began another series of turns: they became longer and longer."""
    for number in range(50):
        await node.end(node.prepare(str(number)), COMMIT)
    monkeypatch.setattr(transactions, "MARKS_AT_ONCE", 1)
    again = await killed(node, "killed")
    reads: list[str] = []
    read = again.store.read

    def counted(topic: str, *place: int, **most: int) -> ReadResult:
        reads.append(topic)
        return read(topic, *place, **most)

    monkeypatch.setattr(again.store, "read", counted)
    for _ in range(10):
        again.service.tick()
    assert reads == [OP_HALF_TOPIC] * 10
    await asyncio.sleep(0)
    assert reads == [OP_HALF_TOPIC] * 11
    await again.close()


async def test_a_broker_that_is_closed_while_marks_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await node.end(node.prepare(str(number)), COMMIT)
    monkeypatch.setattr(transactions, "MARKS_AT_ONCE", 1)
    again = await killed(node, "killed")
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    again.service.tick()
    again.service.stop()
    await again.core.close()
    again.store.close()
    again.service.tick()
    await asyncio.sleep(0)
    assert failed == []
    await again.close()


async def test_only_half_messages_are_ended(node: Node) -> None:
    text = {"PGROUP": "payers", "TRAN_MSG": "true", "REAL_QID": "0"}
    for topic in ("victim", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC):
        fields = encode({**text, "REAL_TOPIC": topic})
        (plain,) = node.store.append([Draft("mine", 0, b"m", fields)])
        refused = await node.end(plain, COMMIT)
        assert (refused.code, refused.remark) == (1, "Find prepared transaction message failed")
        # A body that looks like a half message at this place of the log.
        begin = node.store.end_offset + 84 + 4  # where the body of the next record begins
        for queue_offset in range(2):
            inner = layout.encode(
                HALF_TOPIC, b"m", fields, queue_id=0, queue_offset=queue_offset,
                physical_offset=begin, store_ms=1, store_host=HOST,
            )  # fmt: skip
            (outer,) = node.store.append([Draft("mine", 0, inner, b"")])
            begin = outer.physical_offset + bytes(
                node.store.record_at(outer.physical_offset) or b""
            ).index(inner)
            fake = AppendResult(queue_offset, begin, 0)
            assert (await node.end(fake, COMMIT)).code == 1
        assert node.bodies(topic) == []
    (lost,) = node.store.append([Draft("mine", 0, b"m", encode({**text, "REAL_TOPIC": "t"}))])
    identity = encode_offset_id(HOST, lost.physical_offset)
    assert (await node.caller.ask(RESUME, {"msgId": identity})).code == 1
    assert node.bodies(HALF_TOPIC) == []


async def test_a_client_cannot_name_another_transaction(node: Node) -> None:
    first = node.prepare("a")
    forged = node.prepare("b", TRAN_PREPARED_QUEUE_OFFSET=str(first.queue_offset))
    assert (await node.end(forged, ROLL_BACK)).code == 0
    assert (await node.end(first, COMMIT)).code == 0
    assert node.bodies("t", 2) == [b"a"]


async def fill(node: Node, count: int) -> None:
    """Store other messages, and do what a node does meanwhile."""
    for _ in range(count):
        drafts = [Draft("other", 0, bytes(900), b"") for _ in range(5)]
        node.core.appender.submit(drafts, None, origin=Origin.ROCKETMQ_CLIENT)
        await node.core.appender.close()
        node.store.flush()
        for _ in range(4):
            node.service.tick()
            await node.core.appender.close()
        node.core.clean()


async def test_open_transactions_survive_a_log_that_turns_over(node: Node) -> None:
    prepared = [node.prepare(str(number)) for number in range(20)]
    await node.end(prepared[0], ROLL_BACK)
    await fill(node, 100)
    assert node.store.min_offset > 5 * 64 << 10
    # Their producers know only the places that the log has deleted.
    assert (await node.end(prepared[1], COMMIT)).code == 0
    assert (await node.end(prepared[2], COMMIT, producerGroup="thieves")).code == 1
    again = await killed(node, "killed")
    assert sorted(await again.beat(), key=int) == [str(number) for number in range(2, 20)]
    for question in again.questions:
        assert (await again.end(place_of(question), COMMIT)).code == 0
    assert (await again.end(prepared[2], COMMIT)).code == 1
    bodies = [str(number).encode() for number in range(1, 20)]
    assert sorted(again.bodies("t", 2), key=int) == bodies
    real = again.records("t", 2)[0]
    assert real.prepared_offset == prepared[1].physical_offset
    await fill(again, 40)
    assert again.store.holds.held_bytes == 0
    await again.close()


async def test_bad_records_are_passed_over_and_counted(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    node = await Node(tmp_path / "store", clock).start()
    digits = b"9" * 5_000
    for body in (digits, b"", b"-1", b"1e3", "\u0663".encode(), b"9" * 18, b"77"):
        node.store.append([Draft(OP_HALF_TOPIC, 0, body, b"TAGS\x01d")])
    node.store.append([Draft(OP_HALF_TOPIC, 0, b"0", b"TAGS\x01x")])
    many = digits.decode()
    for text in (
        {"TRANSACTION_CHECK_TIMES": many, "CHECK_IMMUNITY_TIME_IN_SECONDS": many},
        {"REAL_TOPIC": "t" * 300, "REAL_QID": "1"},
        {"REAL_TOPIC": "t", "REAL_QID": many},
        {"REAL_TOPIC": "t", "REAL_QID": "9" * 15},
        {"TRAN_PREPARED_QUEUE_OFFSET": many},
        {"long": "x" * (32_767 - 5)},
    ):
        node.store.append([Draft(HALF_TOPIC, 0, b"bad", encode(text))])
    again = await killed(node, "killed", OPTIONS)
    good = again.prepare("good")
    assert "good" in await again.beat()
    assert again.core.foreign.bad[OP_HALF_TOPIC] == 8
    assert len(again.bodies(CHECK_MAX_TIME_TOPIC)) > 0
    assert caplog.text.count(f"of {OP_HALF_TOPIC} at log") == 1
    assert (await again.end(good, COMMIT)).code == 0
    assert again.bodies("t", 2) == [b"good"]
    assert "good" not in await again.beat()
    await again.close()
    await node.close()


def test_the_memory_of_ended_transactions_is_bounded() -> None:
    ended = OffsetSet()
    for offset in range(40_000):
        ended.add(offset)
    for page in range(2, PAGES_MAX + 3):
        ended.add(page << 15)
    assert all(offset in ended for offset in (0, 39_999, (PAGES_MAX + 2) << 15))
    assert 40_001 in ended  # too old to know: it counts as ended
    assert (3 << 15) + 1 not in ended
