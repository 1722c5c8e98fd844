"""The page about Spark lists the options and columns of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer.spark.options import ACCESS_TABLE, READ_TABLE, WRITE_TABLE, Option
from coherer.spark.reading import names

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", [ACCESS_TABLE, READ_TABLE, WRITE_TABLE])
def test_the_page_lists_every_option(table: tuple[Option, ...]) -> None:
    rows = [f"| `{option.name}` | {option.meaning} |" for option in table]
    assert "\n".join(rows) in PAGE


def test_the_page_lists_every_column() -> None:
    for name in names(include_headers=True):
        assert f"| `{name}` |" in PAGE
