"""`spark-pipelines run` in `examples/flights`: killed in the middle, and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer import Message
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer.blocking.rocketmq import connect
from coherer.cli.demo import dataset
from coherer.cli.demo.pipeline import BROKEN, copy_project
from coherer.spark import use_java

if TYPE_CHECKING:
    import pyarrow as pa

    from coherer.blocking.rocketmq import Client
    from coherer.testing import EmbeddedNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = [
    str(Path(sys.executable).with_name("spark-pipelines")),
    *("run", "--conf", "spark.sql.catalogImplementation=hive"),
    *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
]
ATTEMPTS = 4
WAIT_S = 240


def send(client: Client, flights: pa.Table) -> int:
    """Sends flights and one of each broken message; the number of all."""
    with client.producer(dataset.TOPIC) as producer:
        broken = [Message(dataset.TOPIC, body) for body in BROKEN]
        for chunk in (*dataset.messages(flights), broken):
            producer.send_many(chunk).check()
    return flights.num_rows + len(broken)


def stored(folder: Path, table: str) -> list[tuple[object, ...]]:
    """Places in the topic of a table's rows; only what Spark's log of the table lists."""
    import json

    import pyarrow.parquet as parquet

    files: set[Path] = set()
    for log in sorted((folder / "spark-warehouse" / table / "_spark_metadata").glob("[0-9]*")):
        for line in log.read_text("utf-8").splitlines()[1:]:
            files.add(Path(json.loads(line)["path"].removeprefix("file:")))
    columns = ["broker", "partition", "offset"]
    tables = [parquet.read_table(path, columns=columns).to_pydict() for path in files]
    return [row for one in tables for row in zip(*(one[name] for name in columns), strict=True)]


class Pipeline:
    """A copy of the project in a folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = copy_project(folder / "flights").parent
        self._environment: Mapping[str, str] = {
            **os.environ,
            "FLIGHTS_URL": url,
            "FLIGHTS_ROWS_PER_BATCH": "200",
            "JAVA_HOME": str(use_java()),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(
                COMMAND,
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, complete: Callable[[], bool]) -> None:
        """Runs until everything has arrived: flows may run side by side, or end early."""
        for _ in range(ATTEMPTS):
            process = self.start()
            try:
                process.wait(WAIT_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            if complete():
                return
        raise AssertionError((self.folder / "run.log").read_text("utf-8")[-3000:])

    def run_and_kill(self) -> None:
        """Kills the run in the middle of bronze, after its first batches."""
        process = self.start()
        commits = self.folder / "storage/_checkpoints/spark_catalog/default/bronze/bronze/0/commits"
        try:
            while not (commits / "1").exists():
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ends(client: Client, topic: str) -> int:
    """How many messages a topic has; 0 before the first one creates it."""
    try:
        return sum(end - low for low, end in client.offsets(topic).values())
    except TopicNotExistError:
        return 0


def letters(client: Client, topic: str) -> list[Message]:
    count = ends(client, topic)
    with client.consumer(f"check_{topic}", topic, start="earliest") as consumer:
        # The range comes first: the consumer would wait for one message more.
        return [message for _, message in zip(range(count), consumer, strict=False)]


def test_it_is_killed_and_run_again(coherer_node: EmbeddedNode, tmp_path: Path) -> None:
    flights = dataset.flights(2_000)
    pipeline = Pipeline(tmp_path, coherer_node.rocketmq_url)
    with connect(coherer_node.rocketmq_url) as client:
        sent = send(client, flights.slice(0, 1_200))
        pipeline.run_and_kill()
        assert 0 < len(stored(pipeline.folder, "bronze")) < sent
        sent += send(client, flights.slice(1_200))

        def complete() -> bool:
            return len(stored(pipeline.folder, "silver")) + ends(client, "flights_dead") >= sent

        pipeline.run(complete)
        bronze, silver = (stored(pipeline.folder, table) for table in ("bronze", "silver"))
        assert len(bronze) == len(set(bronze)) == sent
        assert len(silver) == len(set(silver)) == flights.num_rows
        dead = letters(client, "flights_dead")
        places = {message.properties["of"] for message in dead}
        assert places == {":".join(map(str, place)) for place in set(bronze) - set(silver)}
        assert sorted({message.body for message in dead}) == sorted(BROKEN)
        assert {message.properties["reason"] for message in dead} == {
            "not the JSON of a flight",
            "origin SFO",
            "distance -762.0",
        }
