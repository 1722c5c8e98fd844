"""The way of sends to one broker, whatever the protocol: a connection, and what waits for it.

Rules:

* What is posted while there is no connection waits for one, not longer than its own deadline. It
  was not sent, so to send it later, or elsewhere, is no resend.
* A connection that cannot be made is tried again, after pauses that grow, while somebody wants it.
* When a try fails, what waits goes to other brokers where that is possible.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from coherer._client.engine.connections import ServerConnection
from coherer._client.engine.tasks import cancel, waits
from coherer._common.logs import Log
from coherer.errors import CohererError, ConnectError

_log = Log(logging.getLogger(__name__))

L = TypeVar("L", bound=ServerConnection[Any])
I = TypeVar("I")  # noqa: E741 - an item, as in queues


class BrokerSender(ABC, Generic[L, I]):
    """The way to one broker; a protocol says how an item leaves.

    Args:
        server: the broker's address, for error messages.

    Attributes:
        wanted: whether somebody sends there; otherwise a lost connection is not made again.
        error: why there is no connection.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.wanted = True
        self.error: CohererError | None = None
        self._loop = asyncio.get_running_loop()
        self._link: L | None = None
        self._parked: list[I] = []
        self._connecting: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None and self._link.open

    def connect(self) -> None:
        """See that there is, or will be, a connection."""
        if not self.open and self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name=f"lane to {self.server}")

    async def close(self) -> None:
        """Fail what still waits for a connection. The connection itself belongs to the pool."""
        self.wanted = False
        await cancel(self._connecting)
        self._connecting = None
        self._clear_out(late=float("inf"))

    # -- what a protocol adds

    @abstractmethod
    async def _dial(self) -> L:
        """Get the connection.

        Raises:
            ConnectError: not now.
            CohererError: never again.
        """

    @abstractmethod
    def _send(self, link: L, item: I) -> None:
        """Send an item."""

    @abstractmethod
    def _deadline(self, item: I) -> float:
        """How long an item may wait."""

    @abstractmethod
    def _elsewhere(self, item: I) -> bool:
        """Give an item to another lane, if there is one that is open."""

    @abstractmethod
    def _unsent(self, item: I) -> None:
        """Fail an item that was not sent."""

    @abstractmethod
    def _changed(self, *, reached: bool | None) -> None:
        """The broker was reached, could not be reached, or was lost (None)."""

    # -- inside

    def _offer(self, item: I) -> None:
        """Send an item, now or as soon as there is a connection."""
        link = self._link
        if link is None or link.connection.closed:
            self._parked.append(item)
            self.connect()
            return
        self._send(link, item)

    async def _connect(self) -> None:
        wait = waits()
        while self.wanted or self._parked:
            try:
                self._opened(await self._dial())
                break
            except ConnectError as error:
                _log.info("Broker at %s: %s", self.server, error, about=self.server)
                self.error = error
                self._changed(reached=False)
                self._clear_out(late=self._loop.time())
            except CohererError:  # the client is closed
                self._clear_out(late=float("inf"))
                break
            await asyncio.sleep(wait())
        self._connecting = None

    def _opened(self, link: L) -> None:
        self._link = link
        self.error = None
        link.when_closed(lambda: self._lost(link))
        parked, self._parked = self._parked, []
        for item in parked:
            self._send(link, item)
        self._changed(reached=True)

    def _lost(self, link: L) -> None:
        self._link = None
        self._changed(reached=None)
        if self.wanted and not link.retired:
            self.connect()

    def _clear_out(self, late: float) -> None:
        """Send what is parked by other lanes; fail what is `late`; keep the rest."""
        parked, self._parked = self._parked, []
        for item in parked:
            if self._deadline(item) <= late:
                self._unsent(item)
            elif not self._elsewhere(item):
                self._parked.append(item)
