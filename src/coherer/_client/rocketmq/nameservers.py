"""Calls to the name servers, whichever of several can be reached (rocketmq 1.4).

* They know the same, so one is enough; the order is shuffled so that clients spread.
* The one that answered last is kept. When it cannot be reached or does not answer, its connection
  is closed and the next is tried, each once for a call.
* A refusal is an answer: it is not a reason to move on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from coherer._client.rocketmq.link import NOTHING, Fields, Link, Pool
from coherer._common.logs import Log
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError, RefusedError, UsageError

_log = Log(logging.getLogger(__name__))


class NameServers:
    """The name servers of a cluster.

    Args:
        addresses: host and port of each.
        pool: where connections come from.
        timeout_ms: for each try.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], pool: Pool, timeout_ms: int) -> None:
        self.addresses = random.sample(addresses, len(addresses))
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0

    def __repr__(self) -> str:
        return f"<NameServers {','.join(f'{host}:{port}' for host, port in self.addresses)}>"

    async def link(self) -> Link:
        """The connection to the current one, or to the next that can be reached.

        Raises:
            UnavailableError: none can be reached.
        """
        error: CohererError | None = None
        for _ in self.addresses:
            tried = self._current
            try:
                return await self._pool.get(*self.addresses[tried])
            except UsageError:
                raise
            except CohererError as failure:
                error = failure
                self._move_on(tried, failure)
        assert error is not None  # noqa: S101 - there is at least one address
        raise error

    async def ask(self, code: int, fields: Fields = NOTHING, body: bytes = b"") -> Command:
        """Send a request and wait for an answer that says yes.

        Raises:
            UnavailableError: none is reachable, or answers in time.
            RefusedError: it said no.
        """
        error: CohererError | None = None
        for _ in self.addresses:
            link = await self.link()
            tried = self._current
            try:
                return await link.ask(code, fields, body, timeout_ms=self._timeout_ms)
            except (RefusedError, UsageError):
                raise
            except CohererError as failure:
                error = failure
                link.connection.close()
                self._move_on(tried, failure)
        assert error is not None  # noqa: S101 - there is at least one address
        raise error

    async def ask_all(
        self, code: int, fields: Fields = NOTHING, body: bytes = b""
    ) -> list[Command]:
        """Send a request to every name server, for what each keeps for itself.

        Raises:
            UnavailableError: one is not reachable, or does not answer in time.
            RefusedError: one said no.
        """

        async def ask(host: str, port: int) -> Command:
            link = await self._pool.get(host, port)
            return await link.ask(code, fields, body, timeout_ms=self._timeout_ms)

        return await asyncio.gather(*(ask(host, port) for host, port in self.addresses))

    def _move_on(self, tried: int, failure: CohererError) -> None:
        _log.info(
            "Name server %s:%d: %s", *self.addresses[tried], failure, about=self.addresses[tried]
        )
        if self._current == tried:  # otherwise somebody else has moved on already
            self._current = (tried + 1) % len(self.addresses)
