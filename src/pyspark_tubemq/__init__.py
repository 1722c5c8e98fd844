"""Lets Spark find `format("tubemq")` with nothing registered.

Spark imports every top-level module named `pyspark_*` and uses its `DefaultSource`. A module that
fails to import hides all others, so this one never fails: without the packages of the data source
it has no `DefaultSource`, and Spark reports an unknown format.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from coherer.spark.source import TubeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
