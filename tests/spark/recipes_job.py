"""The landing recipes with a function for each batch, until they are killed; for `test_landing`.

Each recipe stops in its third batch, after it has added the batch to its table and before Spark
notes it in the checkpoint. Prints the name of a recipe that has come so far.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from coherer.spark import configure
from tests.spark.landing import LATE
from tests.spark.recipes import POSTGRES, TARGETS, program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STOP_AT = 2
Add = Callable[["DataFrame", int], None]


class Halt:
    """Calls a recipe's function, and never returns from the third batch."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self.reached = threading.Event()

    def __call__(self, batch: DataFrame, number: int) -> None:
        self._add(batch, number)
        if number == STOP_AT:
            self.reached.set()
            threading.Event().wait()


def halt(target: str, folder: Path, url: str, topic: str, database: str) -> None:
    """Runs a recipe until it halts; again if the machine was too busy to start a worker."""
    names = program(target, folder, url, topic, database, lambda _writer: None)
    halt = Halt(names["add"])  # type: ignore[arg-type]
    writer = names["rows"].writeStream.foreachBatch(halt)  # type: ignore[attr-defined]
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query = writer.start()
    while not halt.reached.wait(0.05):
        if not query.isActive:
            assert LATE in str(query.exception())
            query = writer.start()
    print(target, flush=True)


if __name__ == "__main__":
    url, topic, database, home = *sys.argv[1:4], Path(sys.argv[4])
    builder = configure(
        SparkSession.builder.master("local[2]"),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    builder.config("spark.local.dir", str(home / "local")).getOrCreate()
    for target in TARGETS:
        if target != "Parquet" and (target not in POSTGRES or database):
            halt(target, home / target, url, topic, database)
    threading.Event().wait()
