"""Spark reads from and writes to a queue: `format("tubemq")`, `format("rocketmq")`, and helpers.

The formats need no import: Spark finds them through `pyspark_tubemq` and `pyspark_rocketmq`. Names
here load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coherer.spark.offsets import Lag, lag
    from coherer.spark.planning import DataLossError
    from coherer.spark.session import configure, use_java

__all__ = ["DataLossError", "Lag", "configure", "lag", "use_java"]

_HOMES = {
    "DataLossError": "planning",
    "Lag": "progress",
    "configure": "session",
    "lag": "progress",
    "use_java": "java",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coherer.spark' has no attribute {name!r}")
    value = getattr(import_module(f"coherer.spark.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
