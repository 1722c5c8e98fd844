"""The page about Spark says what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer.spark.options import ACCESS_TABLE, READ_TABLE, WRITE_TABLE, Option
from coherer.spark.reading import names

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", [ACCESS_TABLE, READ_TABLE, WRITE_TABLE])
def test_every_option_is_there_in_its_words(table: tuple[Option, ...]) -> None:
    rows = [f"| `{option.name}` | {option.meaning} |" for option in table]
    assert "\n".join(rows) in PAGE


def test_every_column_is_there() -> None:
    for name in names(include_headers=True):
        assert f"| `{name}` |" in PAGE
