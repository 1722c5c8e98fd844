"""Reads and writes a topic where the workers' Python lacks the package; for `test_cluster`.

The arguments are the URL of a node, a topic, and a Python with pyarrow but without the package.
Prints Spark's errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coherer.spark import configure

WRAPPER: Final = """\
#!/bin/sh
case "$*" in
  "-m pyspark.daemon pyspark.worker") exec {bare} "$@" ;;
  *) exec {whole} "$@" ;;
esac
"""
"""Tasks run the one Python, and what Spark starts on the driver runs the other."""


def errors_of(action: Callable[[], object]) -> str:
    """The text of the error that an action raises."""
    try:
        action()
    except PySparkException as error:
        return str(error)
    return "no error"


def main(url: str, topic: str, bare: Path) -> None:
    """Prints the errors of a read and a write."""
    wrapper = bare.parent / "either"
    wrapper.write_text(WRAPPER.format(bare=bare, whole=sys.executable))
    wrapper.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = str(wrapper)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = configure(
        builder, java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    ).getOrCreate()
    rows = spark.read.format("tubemq").option("url", url).load(topic)
    print(errors_of(rows.write.format("noop").mode("overwrite").save))
    sink = spark.range(1).selectExpr("cast(id as string) value").write.format("tubemq")
    writer = sink.option("url", url).mode("append")
    print("=== writing", errors_of(lambda: writer.save(topic)), sep="\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
