"""Half batches: many messages, one half message, one commit, whatever a power cut takes of it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import msgspec
import pytest

from coherer._record.batches import encode_batch_item
from coherer._record.properties import decode, encode
from coherer._record.system_topics import OP_HALF_TOPIC
from coherer._rules.rocketmq.transactions import half, with_count
from coherer._store import AppendResult, Draft, OsFiles, Store
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.testing import ManualClock
from tests.copies import copy_tree
from tests.server.rocketmq.test_transaction_service import COMMIT, OPTIONS, ROLL_BACK, Node

BODIES = [b"a", b"b", b"b", b"d"]
"""Two of them are equal."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = await Node(tmp_path / "store", ManualClock()).start()
    yield made
    await made.close()


def prepare(node: Node, bodies: list[bytes] = BODIES) -> AppendResult:
    """Store a half batch."""
    text = encode({"TRAN_MSG": "true", "PGROUP": "payers", "CLUSTER": "C"})
    items = [encode_batch_item(body, b"TAGS\x01" + body) for body in bodies]
    now_ms = node.clock.wall_ms()
    sent = half(Draft("t", 2, b"".join(items), text, born_ms=now_ms, sys_flag=4))
    return node.store.append([with_count(sent, len(bodies))])[0]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def cut(node: Node, name: str, *places: int) -> Node:
    """The node that starts after a power cut which took the records at these log offsets."""
    image = node.store.directory.with_name(name)
    copy_tree(node.store.directory, image, ignore=shutil.ignore_patterns("*.tmp"))
    with (image / "commitlog" / f"{0:020}").open("r+b") as log:
        for place in places:
            log.seek(place)
            log.write(bytes(len(node.store.record_at(place) or b"")))
    return await Node(image, ManualClock(node.clock.wall_ms()), OPTIONS).start()


async def test_a_commit_stores_all_messages_and_one_mark(node: Node) -> None:
    prepared = prepare(node)
    assert node.bodies("t", 2) == []
    assert (await node.end(prepared, COMMIT)).code == 0
    records = node.records("t", 2)
    assert [record.body for record in records] == BODIES
    assert {(one.sys_flag, one.prepared_offset) for one in records} == {
        (8, prepared.physical_offset)
    }
    assert decode(records[0].properties) == {"TAGS": "a", "CLUSTER": "C"}
    (mark,) = node.records(OP_HALF_TOPIC)
    assert (mark.body, decode(mark.properties)["cohererMessages"]) == (b"0", "4")
    assert (await node.end(prepared, COMMIT)).code == 0
    assert (await node.end(prepared, ROLL_BACK)).code == 1
    assert node.bodies("t", 2) == BODIES


async def test_on_a_full_disk_all_of_a_commit_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(node)
    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "write", full)
        assert (await node.end(prepared, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert node.bodies("t", 2) == node.bodies(OP_HALF_TOPIC) == []
    assert (await node.end(prepared, COMMIT)).code == 0
    assert node.bodies("t", 2) == BODIES


async def test_a_rollback_stores_only_a_mark(node: Node) -> None:
    prepared = prepare(node)
    assert (await node.end(prepared, ROLL_BACK)).code == 0
    assert (await node.end(prepared, COMMIT)).code == 1
    assert node.bodies("t", 2) == []


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"an order", "3"),
        (b"an order", "many"),
        (encode_batch_item(b"a", b""), "2"),
        (encode_batch_item(b"a", b""), "0"),
    ],
    ids=["no batch", "no number", "another number", "zero"],
)
async def test_a_property_of_an_application_makes_no_half_batch(
    node: Node, body: bytes, count: str
) -> None:
    """Older brokers stored the property of any half message."""
    sent = half(Draft("t", 2, body, encode({"TRAN_MSG": "true", "PGROUP": "payers"}), sys_flag=4))
    text = sent.properties + b"\x02" + encode({"cohererMessages": count})
    prepared = node.store.append([msgspec.structs.replace(sent, properties=text)])[0]
    assert (await node.end(prepared, COMMIT)).code == 0
    (found,) = node.records("t", 2)
    assert (bytes(found.body), decode(found.properties)["cohererMessages"]) == (body, count)
    (mark,) = node.records(OP_HALF_TOPIC)
    assert "cohererMessages" not in decode(mark.properties)


async def test_a_copy_is_the_same_half_batch(node: Node) -> None:
    prepared = prepare(node)
    await node.beat()
    (question,) = node.questions
    copy = AppendResult(question.half_offset, question.physical_offset, 0)
    assert (await node.end(copy, COMMIT)).code == 0
    assert (await node.end(prepared, COMMIT)).code == 0
    assert node.bodies("t", 2) == BODIES


@pytest.mark.parametrize("kept", list(product([True, False], repeat=5)), ids=str)
async def test_whatever_a_power_cut_takes_of_a_commit_it_is_done_once(
    node: Node, kept: tuple[bool, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the next start is killed, and if nobody commits again but a message was left."""
    before, prepared = prepare(node, [b"before"]), prepare(node)
    node.store.flush_queues()
    assert (await node.end(before, COMMIT)).code == 0
    assert (await node.end(prepared, COMMIT)).code == 0
    places = [record.physical_offset for record in node.records("t", 2)[1:]]
    places.append(node.records(OP_HALF_TOPIC)[1].physical_offset)
    lost = [place for place, keep in zip(places, kept, strict=True) if not keep]
    again = await cut(node, "cut", *lost)
    if any(kept[:4]):
        await again.beat()
        assert sorted(again.bodies("t", 2)) == sorted([b"before", *BODIES])
    for name in ("killed", "killed again"):
        asked = again.caller.begin(37, again.fields(prepared, COMMIT))
        await again.beat()
        assert (await asked).code == 0
        assert sorted(again.bodies("t", 2)) == sorted([b"before", *BODIES])
        later = await cut(again, name)
        await again.close()
        again = later
    assert await again.beat() == []
    assert (await again.end(prepared, COMMIT)).code == 0
    assert sorted(again.bodies("t", 2)) == sorted([b"before", *BODIES])
    assert "is skipped" not in caplog.text
    await again.close()


@pytest.mark.parametrize("killed_at", range(1, 5))
async def test_a_start_that_completes_a_commit_may_lose_power_itself(
    node: Node, killed_at: int
) -> None:
    """What it had stored counts, and what it had not is stored by the next start."""
    prepared = prepare(node)
    node.store.flush_queues()
    assert (await node.end(prepared, COMMIT)).code == 0
    places = [record.physical_offset for record in node.records("t", 2)]
    first = await cut(node, "first", *places[1:], node.records(OP_HALF_TOPIC)[0].physical_offset)
    await first.beat()
    ends = [record.physical_offset for record in first.records("t", 2)]
    ends.append(first.records(OP_HALF_TOPIC)[-1].physical_offset)
    second = await cut(first, "second", *ends[killed_at:])
    await second.beat()
    assert (await second.end(prepared, COMMIT)).code == 0
    assert sorted(second.bodies("t", 2)) == sorted(BODIES)
    third = await cut(second, "third")
    await third.beat()
    assert (await third.end(prepared, COMMIT)).code == 0
    assert sorted(third.bodies("t", 2)) == sorted(BODIES)
    for one in (first, second, third):
        await one.close()


async def test_a_commit_may_cross_the_end_of_a_log_file(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, segment_bytes=16 << 10)
    node = await Node(tmp_path / "store", ManualClock(), options).start()
    node.store.flush_queues()
    bodies = [[b"%d-%d" % (n, m) + bytes(300) for m in range(12)] for n in range(7)]
    prepared = [prepare(node, some) for some in bodies]
    for one in prepared:
        assert (await node.end(one, COMMIT)).code == 0
    places = [entry.physical_offset for entry in node.store.entries("t", 2, 0, 1000)]
    parts = [{place >> 14 for place in places[n : n + 12]} for n in range(0, len(places), 12)]
    assert any(len(files) > 1 for files in parts)
    again = await cut(node, "killed")
    assert (again.store.recovery.unmarked, again.store.recovery.void) == ((), ())
    asked = [again.caller.begin(37, again.fields(one, COMMIT)) for one in prepared]
    await again.beat()
    assert [(await one).code for one in asked] == [0] * len(prepared)
    assert again.store.queue_range("t", 2) == (0, len(places))
    await again.close()
    await node.close()


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("copied", [1, 3, 4, None], ids=str)
async def test_a_slave_that_becomes_the_master_completes_a_commit(
    node: Node, copied: int | None, stopped: bool
) -> None:
    """It has copied a part of it, or all of it, and synced the first half or all."""
    prepared = prepare(node)
    assert (await node.end(prepared, COMMIT)).code == 0
    places = [record.physical_offset for record in node.records("t", 2)]
    places.append(node.records(OP_HALF_TOPIC)[0].physical_offset)
    end = node.store.end_offset if copied is None else places[copied]
    slave = node.store.directory.with_name("slave")
    options = msgspec.structs.replace(OPTIONS, replica=True)
    replica = Store.open(slave, options, now_ms=node.clock.wall_ms)
    middle = min(places[2], end)
    replica.append_raw(0, bytes(node.store.read_raw(0, middle)))
    replica.flush_queues()
    replica.append_raw(middle, bytes(node.store.read_raw(middle, end - middle)))
    if stopped:
        replica.close()
    image = slave.with_name("promoted")
    copy_tree(slave, image)
    again = await Node(image, ManualClock(node.clock.wall_ms()), OPTIONS).start()
    asked = again.caller.begin(37, again.fields(prepared, COMMIT))
    await again.beat()
    assert (await asked).code == 0
    assert sorted(again.bodies("t", 2)) == sorted(BODIES)
    assert await again.beat() == []
    await again.close()
    if not stopped:
        replica.close()


async def test_a_deleted_topic_gets_no_message_back(node: Node) -> None:
    prepared = prepare(node)
    node.store.flush_queues()
    assert (await node.end(prepared, COMMIT)).code == 0
    lost = node.records("t", 2)[1:]
    again = await cut(node, "cut", *[record.physical_offset for record in lost])
    again.store.delete_topic("t")
    await again.beat()
    assert (await again.end(prepared, COMMIT)).code == 0
    assert again.bodies("t", 2) == []
    await again.close()
