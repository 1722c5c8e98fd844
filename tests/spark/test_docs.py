"""The tables of the page about Spark are those of the code, and its Python runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from coherer.spark import kafka, options
from coherer.spark.columns import BY_NAME
from coherer.spark.files import FILES_TABLE
from coherer.spark.progress import SourceMetrics
from coherer.spark.rows import COLUMNS as SINK_COLUMNS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_page_has_the_tables_of_the_code() -> None:
    command = [sys.executable, "tools/list_options.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, check=False)
    assert checked.returncode == 0, "run tools/list_options.py, and commit the page"


def test_the_page_lists_the_options_of_files() -> None:
    rows = [f"| `{option.name}` | {option.meaning} |" for option in FILES_TABLE]
    assert "\n".join(rows) in PAGE


def test_no_name_of_kafka_is_unexplained() -> None:
    """Each has a name of Coherer's that exists, or a reason."""
    read = {one.name for one in (*options.ACCESS_TABLE, *options.READ_TABLE)}
    write = {one.name for one in (*options.ACCESS_TABLE, *options.WRITE_TABLE)}
    metrics = {*SourceMetrics.__struct_fields__, "latestOffset"}
    known = [
        (kafka.READ, read),
        (kafka.WRITE, write),
        (kafka.READ_COLUMNS, set(BY_NAME)),
        (kafka.WRITE_COLUMNS, set(SINK_COLUMNS)),
        (kafka.METRICS, metrics),
    ]
    for table, names in known:
        for row in table:
            assert row.coherer in names if row.coherer else row.note


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"(?m)^#+ (.+)$", PAGE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}
    assert set(re.findall(r"\(#([a-z-]+)\)", PAGE)) <= anchors
