"""Lets Spark find `format("tubemq")` with nothing registered.

Spark imports every top-level module named `pyspark_*` and takes its `DefaultSource`. One that fails
to import hides all others, so this one never does: without what the source needs there is no
`DefaultSource`, and Spark says that the format is unknown.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from coherer.spark.source import TubeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
