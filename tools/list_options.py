"""Writes the tables of `docs/spark.md` from the tables of `coherer.spark`.

    python tools/list_options.py           # write the page
    python tools/list_options.py --check   # exit with 1 if it is out of date

A table lies between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from coherer.spark import kafka
from coherer.spark.columns import COLUMNS
from coherer.spark.options import ACCESS_TABLE, READ_TABLE, WRITE_TABLE, Option

PAGE = Path(__file__).parent.parent / "docs" / "spark.md"


def options(table: Iterable[Option]) -> list[str]:
    """The rows of a table of options."""
    return ["| option | |", "|---|---|", *(f"| `{one.name}` | {one.meaning} |" for one in table)]


def columns() -> list[str]:
    """The rows of the table of columns."""
    rows = [f"| `{one.name}` | `{one.sql}` | {one.meaning} |" for one in COLUMNS]
    return ["| column | type | |", "|---|---|---|", *rows]


def names(table: Sequence[kafka.Row]) -> list[str]:
    """The rows of a table of Kafka's names."""
    rows: list[str] = []
    for one in table:
        ours = f"`{one.coherer}`" if one.coherer else "none"
        rows.append(f"| `{one.kafka}` | {ours} | {one.note or 'The same.'} |")
    return ["| Kafka | Coherer | |", "|---|---|---|", *rows]


def tables() -> dict[str, list[str]]:
    """All tables, by name."""
    return {
        "read options": options(READ_TABLE),
        "write options": options(WRITE_TABLE),
        "access options": options(ACCESS_TABLE),
        "columns": columns(),
        "kafka read": names(kafka.READ),
        "kafka write": names(kafka.WRITE),
        "kafka columns": names(kafka.READ_COLUMNS),
        "kafka write columns": names(kafka.WRITE_COLUMNS),
        "kafka metrics": names(kafka.METRICS),
    }


def written(page: str) -> str:
    """The page with current tables.

    Raises:
        ValueError: it lacks a table, or names an unknown one.
    """
    found = tables()
    missing = dict.fromkeys(found)

    def table(match: re.Match[str]) -> str:
        missing.pop(match[1], None)
        return "\n".join([f"<!-- table: {match[1]} -->", "", *found[match[1]], "", "<!-- end -->"])

    page = re.sub(r"<!-- table: ([a-z ]+) -->.*?<!-- end -->", table, page, flags=re.DOTALL)
    if missing:
        raise ValueError(f"The page lacks tables: {', '.join(missing)}.")
    return page


def main() -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    page = PAGE.read_text("utf-8")
    current = written(page)
    if parser.parse_args().check:
        return int(page != current)
    PAGE.write_text(current, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
