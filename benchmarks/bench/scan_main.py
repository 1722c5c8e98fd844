"""Fills a store, and reads it with `coherer.arrow.scan` and plainly: see `store_files`."""

from __future__ import annotations

import random
import string
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.store_files import bytes_of, forget, read_plainly
from coherer import Message
from coherer.arrow import scan
from coherer.blocking.rocketmq import connect
from coherer.testing import embedded_node

TOPIC, QUEUES, LINES, SEED, BATCH = "scanned", 8, 2_000, 11, 32
COLUMNS = {"all columns": None, "offset and value": ["offset", "value"]}


def fill(store: Path, size: int, count: int) -> None:
    """Sends messages to a node, and stops it."""
    chance = random.Random(SEED)
    letters = string.ascii_lowercase + string.digits
    bodies = ["".join(chance.choices(letters, k=size)).encode() for _ in range(LINES)]
    with embedded_node(store) as node:
        node.create_topic(TOPIC, QUEUES)
        with connect(node.rocketmq_url) as client, client.producer() as producer:
            for first in range(0, count, BATCH):
                numbers = range(first, min(first + BATCH, count))
                producer.send_batch([Message(TOPIC, bodies[n % LINES]) for n in numbers])


def timed(store: Path, read: Callable[[], object]) -> float:
    """The seconds of a read whose log is not in the page cache."""
    forget(store)
    begin = time.perf_counter()
    read()
    return time.perf_counter() - begin


def main(store: Path, size: int, count: int, repetitions: int) -> None:
    """Prints the rates of the scans and of the plain reads, for some columns in a line each."""
    fill(store, size, count)
    length = bytes_of(store, TOPIC)
    for name, columns in COLUMNS.items():

        def rows(columns: list[str] | None = columns) -> None:
            found = sum(batch.num_rows for batch in scan(f"file:{store}", TOPIC, columns=columns))
            assert found == count, found

        rows()
        scans, plain = [], []
        for _ in range(repetitions):
            plain.append(count / timed(store, lambda: read_plainly(store, length)))
            scans.append(count / timed(store, rows))
        print(name, " ".join(map(str, scans)), " ".join(map(str, plain)), sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
