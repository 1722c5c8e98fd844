"""Recovery of runs of records: the same result as of one record after the other."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coherer._record.layout import COMMITTED, PREPARED, ROLLED_BACK, RecordSummary
from coherer._record.properties import TIMER_OUT_MS, encode
from coherer._record.runs import Fields
from coherer._record.system_topics import OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._store import Draft, Store, scanner
from coherer._store.recovery import Replayer
from coherer.errors import StoreError
from tests.copies import copy_tree
from tests.store.conftest import tiny

SEEDS = int(os.environ.get("COHERER_RUN_SEEDS", "24"))
TOPICS = ("t", "u", "gone", TIMER_TOPIC, SCHEDULE_TOPIC, OP_HALF_TOPIC)


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Examine, compare and replay each record alone."""

    def each(
        call: Callable[[Replayer, RecordSummary], str],
    ) -> Callable[[Replayer, Sequence[Fields]], Iterator[tuple[RecordSummary, str]]]:
        def all_of(
            replayer: Replayer, run: Sequence[Fields]
        ) -> Iterator[tuple[RecordSummary, str]]:
            for fields in run:
                record = RecordSummary(*fields)
                wrong = call(replayer, record)
                if wrong:
                    yield record, wrong

        return all_of

    patch.setattr(scanner, "examine_run", lambda *_: [])
    patch.setattr(Replayer, "check_all", each(Replayer.check))
    patch.setattr(Replayer, "replay_all", each(Replayer.replay))


def some_draft(chance: random.Random, number: int) -> Draft:
    topic = chance.choice(TOPICS)
    properties = {
        name: text
        for name, text in (
            ("TAGS", chance.choice(["", "a", "b"])),
            ("KEYS", chance.choice(["", "", "k", f"k{number} {number}"])),
            ("x", "\0" * 600 if chance.random() < 0.02 else ""),
            (TIMER_OUT_MS, f"{number}" if topic == TIMER_TOPIC else ""),
        )
        if text
    }
    size = chance.choice([9, 9, 9, chance.randint(0, 900), 3_000])
    kind = chance.choice([0] * 12 + [PREPARED, COMMITTED, COMMITTED, ROLLED_BACK])
    return Draft(
        topic,
        chance.randrange(3),
        bytes([number % 256]) * size,
        encode(properties),
        keys=tuple(properties.get("KEYS", "").split()),
        sys_flag=kind,
        born_host=bytes(20) if chance.random() < 0.05 else bytes(8),
    )


def live(store: Store, clock: Any, chance: random.Random) -> None:
    for number in range(chance.randint(3, 40)):
        step = chance.random()
        if step < 0.8:
            count = chance.choice([1, 5, 60])
            store.append([some_draft(chance, number + n) for n in range(count)])
        elif step < 0.86:
            store.flush()
        elif step < 0.93:
            store.flush_queues()
        elif "gone" in store.topics():
            store.delete_topic("gone")
        clock.ms += chance.choice([0, 1, 1000])


def damage(directory: Path, chance: random.Random) -> None:
    """Change, cut or remove a few files."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.parent != directory]
    log = [path for path in files if path.parent.name == "commitlog"]
    for _ in range(chance.choice([0, 0, 1, 3])):
        path = chance.choice(log if log and chance.random() < 0.6 else files)
        if not path.exists():
            continue
        what, size = chance.random(), path.stat().st_size
        if what < 0.1:
            path.unlink()
        elif what < 0.15 and path not in log:
            os.truncate(path, size // 2)
        else:
            data = bytearray(path.read_bytes())
            used = len(data.rstrip(b"\0")) or 1
            at = chance.randrange(used)
            data[at : at + chance.choice([1, 30, 600])] = bytes([chance.randrange(256)])
            path.write_bytes(data[:size] + bytes(size - len(data[:size])))
    if chance.random() < 0.15:
        shutil.rmtree(directory / "consumequeue", ignore_errors=True)
    if chance.random() < 0.15:
        (directory / "checkpoint").unlink(missing_ok=True)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("lock", "history.json", "removals")
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_result_is_that_of_single_records(
    harness: Any,
    clock: Any,
    power_files: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)
    files = power_files()
    files.adopt(harness.directory.parent)
    store = harness.open(files=files)
    live(store, clock, chance)
    ending = chance.random()
    if ending < 0.2:
        store.close()
    image = tmp_path / "image"
    if ending < 0.6:
        copy_tree(harness.directory, image)
    else:
        files.cut(harness.directory, image, chance)
    if not image.exists():
        image.mkdir()
    damage(image, chance)
    changes = {"verify_bytes": chance.choice([0, 3_000, 1 << 30]), "replica": chance.random() < 0.2}
    found: list[Any] = []
    for name in ("runs", "single"):
        target = tmp_path / name
        copy_tree(image, target)
        with monkeypatch.context() as patch:
            if name == "single":
                one_by_one(patch)
            try:
                opened = Store.open(target, tiny(**changes), now_ms=lambda: clock.ms)
            except (StoreError, OSError) as error:
                found.append(type(error))
                continue
        after = contents(target)
        report = opened.recovery
        opened.close()
        found.append((report, after, contents(target)))
    assert found[0] == found[1]
