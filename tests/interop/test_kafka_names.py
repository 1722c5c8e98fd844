"""Spark's Kafka source and sink, from their jar: `docs/spark.md` has each of their names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coherer.spark import kafka
from tests.interop.peers.cache import UnavailableError, jars_of

pytestmark = pytest.mark.interop

PACKAGE = "org.apache.spark.sql.kafka010"
CONSTANT = re.compile(r"// String (\S+)\n\s+\d+: putstatic .*// Field \S*?([A-Z_]+):")
"""A constant of a Scala object: its text, and its name."""


@pytest.fixture(scope="module")
def jar() -> Path:
    try:
        folder = jars_of("spark-kafka")
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Kafka source: {reason}")
    (found,) = folder.glob("spark-sql-kafka-*.jar")
    return found


def code(jar: Path, name: str) -> str:
    """A class, as `javap` shows it."""
    javap = shutil.which("javap")
    if javap is None:
        assert not os.environ.get("CI"), "CI lacks a JDK"
        pytest.skip("no JDK")
    command = [javap, "-cp", str(jar), "-p", "-c", f"{PACKAGE}.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def names(*tables: tuple[kafka.Row, ...]) -> set[str]:
    return {row.kafka.lower() for table in tables for row in table}


def test_every_option_has_a_row(jar: Path) -> None:
    constants = CONSTANT.findall(code(jar, "KafkaSourceProvider$"))
    options = {text for text, name in constants if not name.startswith(("DEFAULT_", "MOCK_"))}
    assert {"subscribe", "startingoffsets", "failondataloss", "includeheaders"} < options
    assert options - names(kafka.READ, kafka.WRITE) == set()


def test_every_setting_has_a_row(jar: Path) -> None:
    settings = set(re.findall(r"// String (spark\.\S+)", code(jar, "package$")))
    assert len(settings) >= 8
    beginnings = tuple(name.removesuffix("*") for name in names(kafka.READ, kafka.WRITE))
    assert {one for one in settings if not one.lower().startswith(beginnings)} == set()


def test_every_column_has_a_row(jar: Path) -> None:
    schema = code(jar, "KafkaRecordToRowConverter$")
    read = set(re.findall(r"// String (\w+)\n\s+\d+: getstatic", schema))
    assert {"key", "timestampType", "headers"} < read
    assert {one.lower() for one in read} == names(kafka.READ_COLUMNS)
    constants = CONSTANT.findall(code(jar, "KafkaWriter$"))
    written = {text for text, name in constants if name.endswith("_ATTRIBUTE_NAME")}
    assert written == names(kafka.WRITE_COLUMNS)


def test_every_metric_has_a_row(jar: Path) -> None:
    found = set(re.findall(r"// String (\w+BehindLatest)\n", code(jar, "KafkaMicroBatchStream$")))
    assert len(found) >= 3
    assert {one.lower() for one in found} - names(kafka.METRICS) == set()
