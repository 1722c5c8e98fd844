"""Spark reads from and writes to a queue: `format("tubemq")`, `format("rocketmq")`, and helpers.

The formats need no import: Spark finds them through `pyspark_tubemq` and `pyspark_rocketmq`. The
names in this module are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# For type checkers: the names load on first use, because Spark's workers need few of them.
if TYPE_CHECKING:
    from coherer.spark.decoding import from_inlong, registry_id, registry_payload
    from coherer.spark.deduplication import deduplicate
    from coherer.spark.offsets import Lag, lag
    from coherer.spark.planning import DataLossError, Range
    from coherer.spark.progress import SourceMetrics, StreamMetrics, measured, source_metrics
    from coherer.spark.reading import BadRecordError
    from coherer.spark.session import configure, use_java

__all__ = [
    "BadRecordError",
    "DataLossError",
    "Lag",
    "Range",
    "SourceMetrics",
    "StreamMetrics",
    "configure",
    "deduplicate",
    "from_inlong",
    "lag",
    "measured",
    "registry_id",
    "registry_payload",
    "source_metrics",
    "use_java",
]

_MODULES = {
    "BadRecordError": "reading",
    "DataLossError": "planning",
    "Lag": "offsets",
    "Range": "planning",
    "SourceMetrics": "progress",
    "StreamMetrics": "progress",
    "configure": "session",
    "deduplicate": "deduplication",
    "from_inlong": "decoding",
    "lag": "offsets",
    "measured": "progress",
    "registry_id": "decoding",
    "registry_payload": "decoding",
    "source_metrics": "progress",
    "use_java": "session",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'coherer.spark' has no attribute {name!r}")
    value = getattr(import_module(f"coherer.spark.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
