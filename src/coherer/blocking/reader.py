"""The reader of TubeMQ without asyncio."""

from __future__ import annotations

from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.blocking.reading import BaseReader


class Reader(BaseReader[MessageBatch, Partition]):
    """Reads a range of one partition. Made by `Client.reader`; use it with `with`."""
