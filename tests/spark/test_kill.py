"""A stream whose processes are killed neither loses nor repeats messages, over each protocol."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from tests.spark.landing import finish, land_and_kill, landed, run_to_the_end, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client | RocketClient]:
    with endpoint.connect() as client:
        yield client


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_k"
    coherer_node.create_topic(name, 4)
    return name


@pytest.mark.slow
def test_a_driver_killed_in_the_middle(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(10_000))
    assert land_and_kill(endpoint.format, endpoint.url, topic, tmp_path, 500) < 10_000
    send(client, topic, range(10_000, 11_000))
    assert land_and_kill(endpoint.format, endpoint.url, topic, tmp_path, 1_500) < 11_000
    assert finish(spark, endpoint.format, endpoint.url, topic, tmp_path) == Counter(range(11_000))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_workers_killed_in_the_middle(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    send(client, topic, range(5_000))
    struck = tmp_path / "struck"

    def strike(number: str) -> str:
        """Kills all workers of the daemon, this one last, at the first sight of some rows."""
        mark = Path(f"{struck}-{number}")
        if int(number) % 1_000 == 999 and not mark.exists():
            mark.touch()
            daemon = os.getppid()
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    try:
                        parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    except OSError:
                        continue
                    if parent == daemon:
                        os.kill(int(entry.name), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    rows = (
        spark.readStream.format(endpoint.format)
        .option("url", endpoint.url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "900")
        .load(topic)
        .select(F.col("value").cast("string").alias("number"), "partition", "offset")
    )
    struck_rows = rows.withColumn("number", F.udf(strike, "string", useArrow=False)("number"))
    run_to_the_end(struck_rows.writeStream, tmp_path)
    assert len(list(tmp_path.glob("struck-*"))) == 5
    assert landed(spark, tmp_path) == Counter(range(5_000))
