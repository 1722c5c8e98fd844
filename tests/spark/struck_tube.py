"""Lands messages of Java's TubeMQ broker in a table while Python workers, driver and broker die.

    python -m tests.spark.struck_tube 2000000

A topic has three stores of four partitions each. Numbered messages of many sizes go in, a stream
lands them in Parquet, and at random moments a Python process of Spark, the driver, or the broker is
killed. In the end the table is compared with all that the broker holds, which a plain read from the
first offset to the last of each partition tells: each message once, with its size, tag and
checksum. Java's broker confirms what is in its memory only, and `kill -9` takes that back. So the
stream reads with `onDisk`, and the table has nothing else either.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from coherer.blocking.tubemq import connect
from tests.interop.peers.cache import prepare
from tests.interop.peers.java import QUICK_FLUSH, JavaBroker, JavaMaster, wait_writable
from tests.spark.struck_messages import acknowledged, message, size_of, tag_of

TOPIC = "struck"
STORES = 3
PARTITIONS = 4
VICTIMS = {
    "worker": "spark.daemon",
    "planner": "source_runner",
    "driver": "SparkSubmit",
    "broker": "",
}
"""Whom to kill, and a word of its command line."""
RECOVERY_S = 60
ROOT = Path(__file__).parents[2]
FLUSHED_S = 60


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Job:
    """The stream's driver, started again after each death.

    Args:
        url: of the cluster.
        topic: to land.
        home: of the table and the checkpoint.
        options: of the source, `name=value`.
    """

    def __init__(self, url: str, topic: str, home: Path, options: list[str]) -> None:
        self._arguments = [url, topic, str(home)]
        self._options = options
        self._home = home
        self.rows: dict[int, int] = {}
        self.failures: Counter[str] = Counter()
        self._process: subprocess.Popen[str]
        self._listener: threading.Thread

    def start(self, until: str = "until=killed") -> None:
        with (self._home / "errors").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.struck_job", *self._arguments, until,
                 *self._options],
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,))
        self._listener.start()

    def _listen(self, lines: Iterator[str]) -> None:
        for line in lines:
            kind, _, rest = line.strip().partition(" ")
            if kind == "batch":
                number, rows = map(int, rest.split())
                self.rows[number] = rows
            elif kind == "failed":
                self.failures[rest[:160]] += 1

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        code = self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def below(self, word: str) -> list[int]:
        """The processes of the job with a word in their command line."""
        parents: dict[int, int] = {}
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    text = (entry / "stat").read_text()
                    parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
                    if word.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return sorted(one for one in found if self._process.pid in _above(one, parents))


def _above(process: int, parents: dict[int, int]) -> Iterator[int]:
    while (process := parents.get(process, 0)) > 1:
        yield process


class Killer:
    """Kills something at random moments: each victim once, and then any.

    Args:
        job: with workers and driver.
        broker: Java's; None if nobody kills it.
        chances: decides.
        weights: how often each of `VICTIMS` dies, relative to the others.
    """

    def __init__(
        self,
        job: Job,
        broker: JavaBroker | None,
        chances: random.Random,
        weights: Sequence[int] = (1, 1, 1, 1),
    ) -> None:
        self._weights = weights
        self._job = job
        self._broker = broker
        self._chances = chances
        self._due = chances.sample(list(VICTIMS), len(VICTIMS))
        self.kills: Counter[str] = Counter()

    def strike(self) -> None:
        any_kind = self._chances.choices(list(VICTIMS), self._weights)[0]
        kind = self._due[-1] if self._due else any_kind
        if kind == "broker":
            kind = self._kill_broker()
        else:
            victims = self._job.below(VICTIMS[kind])
            if not victims:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chances.choice(victims), signal.SIGKILL)
        self.kills[kind] += 1
        self._due = self._due[:-1]

    def strike_while(self, going: Callable[[], bool], every_s: float) -> None:
        """Strikes at random moments; after a slow start the stream gets the time for a batch."""
        said = time.monotonic()
        while going():
            before, deaths = len(self._job.rows), self.kills.total() - self.kills["worker"]
            self.strike()
            slow = self.kills.total() - self.kills["worker"] > deaths
            time.sleep(self._chances.uniform(0, 2 * every_s))
            until = time.monotonic() + slow * RECOVERY_S
            while going() and len(self._job.rows) == before and time.monotonic() < until:
                time.sleep(0.2)
            if time.monotonic() > said + 15:
                said = time.monotonic()
                rows = self._job.rows
                say(f"landed {sum(rows.values())} in {len(rows)} batches, kills {dict(self.kills)}")

    def _kill_broker(self) -> str:
        assert self._broker is not None
        assert self._broker.child is not None
        politely = self._chances.random() < 0.25
        if politely:
            self._broker.crash()
        else:
            self._broker.child.kill()
        self._broker.start()
        self._broker.wait()
        return "broker (TERM)" if politely else "broker (KILL)"


def held(url: str, topic: str, *, on_disk: bool = False) -> int:
    """The sum of the ends of the partitions."""
    with connect(url, on_disk=on_disk) as client:
        return sum(end for _, end in client.offsets(topic).values())


def plain_read(url: str, topic: str) -> Counter[int]:
    """All numbers, read from the first offset to the last, without cuts."""
    found: Counter[int] = Counter()
    with connect(url) as client:
        for partition, (start, end) in client.offsets(topic).items():
            with client.reader(partition, start, end=end, columns=True) as reader:
                for batch in reader:
                    found.update(numbers(batch.to_arrow(["value"]).column("value")))
                assert reader.left_out == 0
    return found


def numbers(values: pa.BinaryArray) -> list[int]:
    heads = pc.binary_slice(values, 0, 9).cast(pa.string())
    return heads.cast(pa.int32()).to_pylist()


def files_of(table: Path) -> list[str]:
    """The files that count, by the log of Spark's file sink."""
    log = sorted(
        (path for path in (table / "_spark_metadata").iterdir() if path.stem.isdigit()),
        key=lambda path: int(path.stem),
    )
    compacted = [index for index, path in enumerate(log) if path.suffix == ".compact"]
    lines = (line for path in log[max(compacted, default=0) :] for line in path.open())
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    assert {entry["action"] for entry in entries} == {"add"}
    return [unquote(urlsplit(entry["path"]).path) for entry in entries]


def landed(home: Path) -> Counter[int]:
    """The numbers in the table; each row is checked against what was sent."""
    table = dataset(files_of(home / "table")).to_table(["number", "size", "sum", "tag"])
    found = table["number"].to_pylist()
    rows = zip(found, *(table[name].to_pylist() for name in ("size", "sum", "tag")), strict=True)
    for number, size, checksum, tag in rows:
        assert size == size_of(number), number
        assert tag == tag_of(number), number
        assert checksum == zlib.crc32(message("", number).body), number
    return Counter(found)


def until_flushed(url: str, topic: str) -> None:
    deadline = time.monotonic() + FLUSHED_S
    while held(url, topic, on_disk=True) < held(url, topic):
        assert time.monotonic() < deadline, "the broker does not flush"
        time.sleep(0.5)


def strike_until_sent(given: argparse.Namespace, url: str, home: Path, killer: Killer) -> None:
    """Sends and strikes at the same time; returns when all is sent."""
    sender = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.struck_messages", url, TOPIC, str(given.messages),
         str(home / "acknowledged"), str(given.rate)],
        cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    # A producer waits 10 s for a broker when it starts, and Java's takes as long on a busy machine.
    # Its output fits into the pipe: a line a second.
    assert sender.stdout is not None
    assert sender.stdout.readline(), "the sender has ended"
    killer.strike_while(lambda: sender.poll() is None, given.every)
    assert sender.returncode == 0


def compare(url: str, home: Path) -> bool:
    """Prints how table and broker differ; whether they are equal."""
    broker, table = plain_read(url, TOPIC), landed(home)
    sent = set(acknowledged(home / "acknowledged"))
    taken_back = len(sent - broker.keys())
    missing, extra = broker.keys() - table.keys(), table.keys() - broker.keys()
    twice = [number for number, count in table.items() if count > 1]
    say(f"acknowledged {len(sent)}, of which the broker lost {taken_back} when it was killed")
    say(f"the broker holds {broker.total()} messages, {len(broker)} different ones, "
        f"{min(broker)} to {max(broker)}")  # fmt: skip
    say(f"the table has {table.total()} rows, {len(table)} different ones, "
        f"{min(table)} to {max(table)}")  # fmt: skip
    say(f"missing {len(missing)} {sorted(missing)[:5]}, twice {len(twice)} {twice[:5]}, "
        f"not at the broker {len(extra)} {sorted(extra)[:5]}")  # fmt: skip
    return broker == table and set(broker.values()) == {1}


def report(job: Job, killer: Killer) -> None:
    rows = list(job.rows.values())
    say(f"kills: {dict(killer.kills)}")
    say(f"micro-batches: {len(rows)} reported, rows: median {statistics.median(rows):.0f}, "
        f"largest {max(rows)}")  # fmt: skip
    for reason, count in job.failures.most_common(12):
        say(f"  the query failed {count} times: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("messages", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between deaths")
    parser.add_argument("--rate", type=int, default=4_000, help="messages sent in a second")
    parser.add_argument(
        "--weights", type=int, nargs=4, default=(30, 3, 3, 1),
        help="how often workers, planner, driver and broker die, relative to each other",
    )  # fmt: skip
    parser.add_argument("--home", type=Path)
    parser.add_argument("--option", action="append", default=[], help="of the source, name=value")
    given = parser.parse_args()
    home = given.home or Path(tempfile.mkdtemp(prefix="struck-"))
    home.mkdir(parents=True, exist_ok=True)
    say(f"in {home}")
    tube = prepare("tubemq", say)
    master = JavaMaster(tube, home / "master")
    broker = JavaBroker(tube, home / "broker", 1, master.address)
    url = f"tubemq://{master.address}"
    job = Job(url, TOPIC, home, given.option or ["onDisk=true"])
    killer = Killer(job, broker, random.Random(given.seed), given.weights)
    try:
        master.wait()
        broker.add_to(master.web)
        master.web.change(
            "admin_add_new_topic_record", topicName=TOPIC, brokerId=1, numPartitions=PARTITIONS,
            numTopicStores=STORES, **QUICK_FLUSH,
        )  # fmt: skip
        broker.start()
        broker.wait()
        say(f"the topic is writable after {wait_writable(master.web, [TOPIC]):.0f} s")
        job.start()
        strike_until_sent(given, url, home, killer)
        until_flushed(url, TOPIC)
        job.kill()
        say("all is sent; landing the rest")
        job.start("until=end")
        killer.strike_while(lambda: job.running, given.every)
        assert job.wait() == 0
        report(job, killer)
        return 0 if compare(url, home) else 1
    finally:
        job.kill()
        broker.stop()
        master.stop()


if __name__ == "__main__":
    sys.exit(main())
