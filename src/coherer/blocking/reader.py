"""The reader of TubeMQ without asyncio."""

from __future__ import annotations

from coherer.blocking.reading import BaseReader
from coherer.tubemq.delivery import MessageBatch
from coherer.tubemq.names import Partition


class Reader(BaseReader[MessageBatch, Partition]):
    """Reads a range of one partition. Made by `Client.reader`; use it with `with`."""
