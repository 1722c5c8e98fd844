"""The programs of docs/how-to/landing.md, to be run with other addresses and directories."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "landing.md"
POSTGRES = {"PostgreSQL": "flights", "PostgreSQL, from the workers": "flights_by_place"}
"""The recipes that need a server, and their tables."""

TARGETS = ("Parquet", "Delta Lake", "Iceberg", "DuckDB", *POSTGRES)
ROWS_PER_BATCH = 100
Names = dict[str, object]
Run = Callable[["DataStreamWriter"], None]


def blocks() -> dict[str, str]:
    """The page's programs by their heading; the beginning of all has the heading of the page."""
    sections = re.split(r"^#+ ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for section in sections:
        (found[section.partition("\n")[0]],) = re.findall(
            r"```python\n(.*?)```", section, re.DOTALL
        )
    return found


def program(target: str, home: Path, url: str, topic: str, database: str, run: Run | None) -> Names:
    """Runs the beginning and a recipe as they are printed.

    Args:
        target: heading of the recipe.
        home: for its files.
        url: of the node.
        topic: to land.
        database: how to connect to PostgreSQL.
        run: called in place of the page's function, with the writer that the recipe makes.

    Returns:
        The program's names.
    """
    beginning, *_ = (page := blocks()).values()
    values = {
        "/data/flights": str(home),
        "tubemq://127.0.0.1:8715": url,
        'load("flights")': f'load("{topic}")',
        "100_000": str(ROWS_PER_BATCH),
        "host=127.0.0.1 dbname=flights user=flights": database,
    }
    names: Names = {"__name__": "recipe"}
    for number, block in enumerate((beginning, page[target])):
        for printed, value in values.items():
            block = block.replace(printed, value)
        if number == 1 and run is not None:
            names["run"] = run
        exec(compile(block, f"{PAGE.name}: {target}", "exec"), names)
    return names


def landed(target: str, home: Path, database: str, names: Names) -> list[str]:
    """The column `flight` of a recipe's table, read without the recipe."""
    if target == "Parquet":
        rows: DataFrame = names["spark"].read.parquet(str(home / "table"))  # type: ignore[attr-defined]
        return [row["flight"] for row in rows.select("flight").collect()]
    if target == "Delta Lake":
        from deltalake import DeltaTable

        column = DeltaTable(str(home / "table")).to_pyarrow_table(columns=["flight"])["flight"]
        return [str(value) for value in column.to_pylist()]
    if target == "Iceberg":
        table = names["catalog"].load_table("lake.flights")  # type: ignore[attr-defined]
        return [str(value) for value in table.scan().to_arrow()["flight"].to_pylist()]
    if target == "DuckDB":
        import duckdb

        with duckdb.connect(str(home / "flights.duckdb"), read_only=True) as duck:
            return [flight for (flight,) in duck.execute("SELECT flight FROM flights").fetchall()]
    import psycopg

    with psycopg.connect(database) as connection:
        select = f"SELECT flight FROM {POSTGRES[target]}"
        return [flight for (flight,) in connection.execute(select.encode())]
