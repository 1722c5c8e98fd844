"""A process is killed while it appends: every acknowledged message is found."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROUNDS = 12

CHILD = """
import random, sys, threading, time
from pathlib import Path
from coherer._store import Draft, Store, StoreOptions

directory, first, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
options = StoreOptions(
    segment_bytes=1 << 18, queue_segment_bytes=4000, index_slots=500, index_entries=3000,
    flush_interval_ms=1, queue_flush_interval_ms=5,
)
store = Store.open(directory, options, now_ms=lambda: time.time_ns() // 1_000_000)

def tick():
    while True:
        store.tick()

threading.Thread(target=tick, daemon=True).start()
number = first
while True:
    drafts = []
    for _ in range(chance.randint(1, 40)):
        body = b"%d;" % number + bytes(chance.choice([0, 100, 3000]))
        text = b"KEYS\\x01k%d" % number
        drafts.append(Draft("t", number % 8, body, text, keys=(f"k{number}",)))
        number += 1
    placed = store.append(drafts)
    lines = [f"{d.body.split(b';')[0].decode()} {p.queue_offset}" for d, p in zip(drafts, placed)]
    print(*lines, sep="\\n", flush=True)
"""


def live_and_die(directory: Path, first: int, seed: int, lines: int) -> dict[int, int]:
    """Kill a process after it has acknowledged some messages; return them."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(first), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    acknowledged: dict[int, int] = {}
    assert child.stdout is not None
    with child, child.stdout as output:
        for count, line in enumerate(output):
            if count == lines:
                child.kill()
            if line.endswith("\n"):
                number, offset = line.split()
                acknowledged[int(number)] = int(offset)
    watchdog.cancel()
    assert len(acknowledged) >= lines
    return acknowledged


def test_every_acknowledged_message_is_found(harness: Any) -> None:
    chance = random.Random(7)
    known: dict[int, int] = {}
    for round_number in range(ROUNDS):
        first = max(known, default=-1) + 10_000
        known |= live_and_die(harness.directory, first, round_number, chance.randint(1, 1500))
        store = harness.open(index_slots=500, index_entries=3000)
        assert not store.recovery.clean
        assert not store.recovery.damage
        found = {
            int(name): offset
            for queue_id in store.queues("t")
            for offset, name in harness.labels(store, "t", queue_id).items()
        }
        assert known.items() <= found.items()
        for number in chance.sample(sorted(found), 20):
            (record,) = store.by_key("t", f"k{number}")
            assert harness.label(record) == str(number)
        known = found
        if round_number % 3:
            store.close()  # otherwise the next open finds an unfinished recovery
        else:
            crashed = harness.crash(f"round{round_number}")
            store.close()
            harness.directory = crashed
