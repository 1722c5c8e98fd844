"""With async flush, a queue offset never means two messages, whatever a power cut takes back."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._server.core.core import Core
from coherer._store import DraftBatch, OsFiles
from coherer._store.offset_reserve import LEAD_MIN, Gap, Reserve
from coherer.errors import StoreError
from tests.copies import copy_tree
from tests.power import Unknown

SEEDS = 16
Place = tuple[str, int, int]


def append(harness: Any, store: Any, given: dict[Place, str], drafts: list[Any]) -> None:
    """Append messages and note which offsets they were given."""
    for draft, placed in zip(drafts, store.append(drafts), strict=True):
        place = draft.topic, draft.queue_id, placed.queue_offset
        name = draft.body.split(b";")[0].decode()
        assert given.setdefault(place, name) == name


def check(harness: Any, store: Any, given: dict[Place, str]) -> None:
    """Every message that is there has the offset that it was given."""
    assert not [piece for piece in store.recovery.damage if "queue" in piece.reason]
    for (topic, queue_id), queue in harness.everything(store).items():
        for offset, name in queue.items():
            assert given[topic, queue_id, offset] == name


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_offset_means_two_messages(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """Lives of a store that end by a power cut, a kill, or a stop; readers see all at once."""
    chance = random.Random(seed)
    file_bytes = [20_000, 400][seed % 2]  # a gap is shorter, or longer, than a file of a queue
    directory, number = tmp_path / "life0", 0
    boot: bytes | None = None
    given: dict[Place, str] = {}
    for life in range(6):
        files = power_files()
        files.boot = boot or files.boot
        files.adopt(directory)
        store = harness.open(directory, files=files, queue_segment_bytes=file_bytes)
        check(harness, store, given)
        for _ in range(chance.randint(0, 12)):
            step = chance.random()
            if step < 0.7:
                topic = chance.choice("ttu") if chance.random() < 0.9 else f"v{life}"
                count = chance.choice([1, 3, 3, 300])
                drafts = [
                    harness.draft(number + n, topic, chance.randrange(2), size=20)
                    for n in range(count)
                ]
                number += count
                append(harness, store, given, drafts)
            elif step < 0.8:
                store.flush()
            elif step < 0.9:
                store.flush_queues()
            else:
                store.tick()
            harness.clock.ms += chance.choice([0, 1, 700, 6000])
        image, end = tmp_path / f"life{life + 1}", chance.choice(["cut", "cut", "kill", "stop"])
        if end == "stop":
            store.close()
        if end == "cut":
            files.cut(directory, image, chance)
        else:
            copy_tree(directory, image)
        boot = files.boot if end == "kill" else None
        directory = image
    store = harness.open(directory, queue_segment_bytes=file_bytes)
    check(harness, store, given)
    drafts = [harness.draft(number + n, "tu"[n % 2], n // 2) for n in range(4)]
    append(harness, store, given, drafts)
    check(harness, store, given)


class NothingSurvives(random.Random):
    """A power cut that loses everything that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


def cut_after(
    harness: Any, files: Any, tmp_path: Path, durable: int, lost: int, name: str = "image"
) -> Path:
    """A store that loses its last messages in a power cut."""
    store = harness.open(files=files)
    if durable:
        store.append([harness.draft(n) for n in range(durable)])
    store.flush_queues()
    for number in range(durable, durable + lost):
        store.append([harness.draft(number)])
    image = tmp_path / name
    files.cut(harness.directory, image, NothingSurvives())
    return image


def test_a_queue_that_lost_all_entries_has_no_hole_in_its_files(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """It begins files further on; the empty file that the power cut left is removed."""
    image = cut_after(harness, power_files(), tmp_path, durable=0, lost=1)
    queue = image / "consumequeue" / "t" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(bytes(400))  # 20 entries
    store = harness.open(image, queue_segment_bytes=400)
    (placed,) = store.append([harness.draft(1)])
    assert placed.queue_offset >= LEAD_MIN
    store.close()
    again = harness.open(image, queue_segment_bytes=400)
    assert harness.labels(again) == {placed.queue_offset: "t/0/1"}


@pytest.mark.parametrize("durable", [0, 10])
def test_a_queue_continues_behind_what_it_can_have_had(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, durable: int
) -> None:
    image = cut_after(harness, power_files(), tmp_path, durable, 20)
    store = harness.open(image)
    assert store.queue_range("t", 0) == (0, durable)
    placed = store.append([harness.draft(99)])
    begin = placed[0].queue_offset
    assert durable + 20 <= begin <= durable + 20 + LEAD_MIN
    # Readers pass over the gap.
    names = harness.labels(store)
    assert names == {**{n: f"t/0/{n}" for n in range(durable)}, begin: "t/0/99"}
    assert store.append([harness.draft(100)])[0].queue_offset == begin + 1


def test_the_gap_stays_when_the_store_is_opened_again(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """Nothing was appended to the queue before the restart; others were."""
    image = cut_after(harness, power_files(), tmp_path, 10, 20)
    for _ in range(2):
        store = harness.open(image)
        store.append([harness.draft(1, "u")])
        store.close()
    store = harness.open(image)
    assert store.recovery.clean
    assert store.append([harness.draft(99)])[0].queue_offset >= 30


def test_the_queues_can_be_rebuilt_from_the_log(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """After a crash, and when all queues are missing."""
    image = cut_after(harness, power_files(), tmp_path, 10, 20)
    store = harness.open(image)
    store.append([harness.draft(99)])
    store.append([harness.draft(n) for n in range(100, 110)])
    expected = harness.everything(store)
    killed = tmp_path / "killed"
    copy_tree(image, killed)
    rebuilt = tmp_path / "rebuilt"
    copy_tree(image, rebuilt)
    shutil.rmtree(rebuilt / "consumequeue")
    for directory in (killed, rebuilt):
        again = harness.open(directory)
        assert not again.recovery.damage
        assert harness.everything(again) == expected
        assert again.append([harness.draft(111)])[0].queue_offset == max(expected["t", 0]) + 1


def test_a_wrong_offset_in_the_log_is_no_gap(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """A queue has its gap once. Later messages with a jump in their offsets are damaged."""
    image = cut_after(harness, power_files(), tmp_path, 10, 20)
    store = harness.open(image)
    store.append([harness.draft(98)])
    placed = store.append([harness.draft(99)])[0]
    store.append([harness.draft(100)])
    store.flush()
    killed = tmp_path / "killed"
    copy_tree(image, killed)
    log = killed / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    assert int.from_bytes(data[placed.physical_offset + 20 : placed.physical_offset + 28]) == (
        placed.queue_offset
    )
    data[placed.physical_offset + 26] ^= 1
    log.write_bytes(data)
    again = harness.open(killed)
    assert [piece.begin for piece in again.recovery.damage] == [placed.physical_offset]
    assert "t/0/100" in harness.labels(again).values()


def test_a_killed_process_leaves_no_gap(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(n) for n in range(20)])
    again = harness.open(harness.crash())
    assert again.append([harness.draft(20)])[0].queue_offset == 20


def test_an_unknown_end_counts_as_a_power_cut(harness: Any) -> None:
    store = harness.open(files=Unknown())
    store.append([harness.draft(n) for n in range(20)])
    again = harness.open(harness.crash(), files=Unknown())
    assert again.append([harness.draft(20)])[0].queue_offset >= 20 + LEAD_MIN - 20


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_an_orderly_stop_leaves_no_gap(harness: Any, flush: str) -> None:
    store = harness.open(files=Unknown(), flush=flush)
    store.append([harness.draft(n) for n in range(20)])
    store.close()
    image = harness.crash()
    (image / "abort").touch()
    again = harness.open(image, files=Unknown())
    assert again.append([harness.draft(20)])[0].queue_offset == 20


def test_thousands_of_queues_cost_nothing(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """A gap is made with the next append to a queue, not when the store is opened."""
    files = power_files()
    store = harness.open(files=files)
    store.append([harness.draft(n, f"t{n}") for n in range(200)])
    store.flush_queues()
    store.append([harness.draft(n, f"t{n}") for n in range(200)])
    files.cut(harness.directory, tmp_path / "image", NothingSurvives())

    class Counting(OsFiles):
        writes = 0

        def write(self, handle: int, data: bytes, offset: int) -> None:
            self.writes += 1
            super().write(handle, data, offset)

    counting = Counting()
    again = harness.open(tmp_path / "image", files=counting)
    assert counting.writes < 20
    again.append([harness.draft(0, "t7")])
    assert again.queue_range("t7", 0)[1] > LEAD_MIN
    assert again.queue_range("t8", 0)[1] <= 2


def test_a_new_topic_begins_at_0(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """A topic that existed may have lost all of its messages; a new one has lost none."""
    files = power_files()
    store = harness.open(files=files)
    core = Core(store, harness.clock)
    for topic in ("known", "t"):
        core.topics.ensure_topic(topic, 1, harness.clock.ms)
    image = cut_after_saving(harness, core, files, tmp_path)
    again = harness.open(image)
    core = Core(again, harness.clock)
    core.topics.ensure_topic("new", 1, harness.clock.ms)
    placed = again.append([harness.draft(0, "new"), harness.draft(0, "known")])
    assert placed[0].queue_offset == 0
    assert placed[1].queue_offset >= 20


def cut_after_saving(harness: Any, core: Core, files: Any, tmp_path: Path) -> Path:
    core.store.flush_queues()
    core.store.append([harness.draft(n, "known") for n in range(20)])
    files.cut(harness.directory, tmp_path / "image", NothingSurvives())
    return tmp_path / "image"


def test_the_reserve_is_on_the_disk_before_offsets_are_given_out(harness: Any) -> None:
    """Without space for it no message is stored; with space again the node continues."""

    class Broken(OsFiles):
        broken = False

        def sync(self, handle: int) -> None:
            if self.broken:
                raise OSError(28, "No space left on device")
            super().sync(handle)

    files = Broken()
    store = harness.open(files=files)
    batch = DraftBatch("t", 0, [b""] * 900, [b""] * 900, [0] * 900, [0] * 900, [()] * 900)
    store.append([harness.draft(0)])
    files.broken = True
    for _ in range(2):
        with pytest.raises(StoreError, match="checkpoint"):
            store.append([batch])
    files.broken = False
    assert store.append([batch])[0].queue_offset == 1


def test_the_reserve_lasts_two_seconds() -> None:
    reserve, now_ms = Reserve(), 1_000_000
    assert not reserve.claim(1)
    reserve.limit = reserve.plan(now_ms, 1)
    assert reserve.limit == LEAD_MIN
    extended = 0
    for _ in range(1000):  # 40,000 messages a second
        now_ms += 10
        if not reserve.claim(400):
            reserve.limit = reserve.plan(now_ms, 400)
            assert reserve.claim(400)
            extended += 1
        elif reserve.is_low:
            reserve.limit = reserve.plan(now_ms, 0)
            extended += 1
        assert reserve.growth <= reserve.limit
    assert extended < 25
    assert 40_000 < reserve.limit - reserve.growth <= 80_000
    reserve.limit = reserve.plan(now_ms + 60_000, 0)  # a quiet minute
    assert reserve.limit == reserve.growth + LEAD_MIN + 0 or reserve.limit < reserve.growth + 2_000


def test_gaps_are_joined() -> None:
    from coherer._store.offset_reserve import with_gap

    gaps: tuple[Gap, ...] = ()
    for number in range(10):
        gaps = with_gap(gaps, Gap(number, number, 1))
    assert len(gaps) == 4
    assert sum(gap.entries for gap in gaps) == 10
