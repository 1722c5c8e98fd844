"""Lets Spark find `format("rocketmq")` with nothing registered; see `pyspark_tubemq`."""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from coherer.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
