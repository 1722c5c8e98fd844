"""Calls to the master, whichever of several is the active one (Java's rules).

* The addresses are used in sorted order, and one of them at a time.
* Any failure, not only a standby's refusal, closes the connection and moves on to the next
  address, once round for each call. The last failure is raised.
* An answer that says no by its own fields is an answer: it is not a reason to move on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message as PbMessage

from coherer._client.engine.tasks import waits
from coherer._client.tubemq.link import Pool, TubeConnection
from coherer._common.logs import Log
from coherer._net import running_loop
from coherer._wire.tubemq import codes
from coherer.errors import (
    CohererError,
    RefusedError,
    UnavailableError,
    UsageError,
    WrongProtocolError,
)

_log = Log(logging.getLogger(__name__))

SAY_S: Final = 0.3
"""Who waits longer than this between tries is told for what."""

M = TypeVar("M", bound=PbMessage)
T = TypeVar("T")


class Masters:
    """The masters of a cluster.

    Args:
        addresses: host and port of each.
        pool: where connections come from.
        timeout_ms: for each try.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], pool: Pool, timeout_ms: int) -> None:
        self.addresses = sorted(addresses, key=lambda address: f"{address[0]}:{address[1]}")
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0

    def __repr__(self) -> str:
        names = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<Masters {names}>"

    @property
    def server(self) -> str:
        """The address that the next call goes to."""
        host, port = self.addresses[self._current]
        return f"{host}:{port}"

    async def link(self) -> TubeConnection:
        """The connection to the current master, or to the next that can be reached.

        Raises:
            UnavailableError: none can be reached.
        """
        return await self._round(_itself)

    async def ask(self, method: int, request: PbMessage, answer: type[M]) -> M:
        """Send a request to the active master and wait for its answer.

        Raises:
            UnavailableError: none is reachable, active, or answers in time.
            RefusedError: the last one could not handle the request at all.
            ProtocolError: the last one's answer makes no sense.
        """
        return await self._round(lambda link: link.ask(method, request, answer, self._timeout_ms))

    async def _round(self, use: Callable[[TubeConnection], Awaitable[T]]) -> T:
        error: CohererError | None = None
        for _ in self.addresses:
            tried = self._current
            link: TubeConnection | None = None
            try:
                link = await self._pool.get(*self.addresses[tried])
                return await use(link)
            except UsageError:
                raise
            except CohererError as failure:
                error = failure
                _log.info(
                    "Master %s:%d: %s", *self.addresses[tried], failure, about=self.addresses[tried]
                )
                if link is not None:
                    link.connection.close()
                if self._current == tried:  # otherwise somebody else has moved on already
                    self._current = (tried + 1) % len(self.addresses)
        assert error is not None  # noqa: S101 - there is at least one address
        raise error


async def _itself(link: TubeConnection) -> TubeConnection:
    return link


class Verdict(Protocol):
    """What every answer of a master or broker begins with."""

    @property
    def success(self) -> bool:
        """Whether it was done."""
        ...

    @property
    def errCode(self) -> int:  # noqa: N802 - the protocol's name
        """Why not."""
        ...

    @property
    def errMsg(self) -> str:  # noqa: N802 - the protocol's name
        """Why not, in words."""
        ...


def checked(
    answer: Verdict, *, server: str, topic: str | None = None, partition: int | None = None
) -> None:
    """See that an answer says yes.

    Raises:
        RefusedError: of the class that belongs to its code.
    """
    if not answer.success:
        raise codes.refused(
            answer.errCode, answer.errMsg, server=server, topic=topic, partition=partition
        )


async def persist(
    attempt: Callable[[], Awaitable[T]], *, timeout_ms: int, final: Collection[int]
) -> T:
    """Try until it succeeds, time is up, or there is no sense in trying again.

    Args:
        attempt: what to try.
        timeout_ms: no further try is begun after this time.
        final: codes of refusals that another try would not change.

    Raises:
        CohererError: the last attempt's.
    """
    loop = running_loop()
    deadline = loop.time() + timeout_ms / 1000
    wait = waits()
    said = False
    while True:
        try:
            return await attempt()
        except (UnavailableError, RefusedError) as error:
            pause = wait()
            hopeless = error.code in final or isinstance(error, WrongProtocolError)
            if hopeless or loop.time() + pause > deadline:
                raise
            if pause >= SAY_S and not said:
                _log.warning("Trying again for up to %d s: %s", timeout_ms // 1000, error)
                said = True
        await asyncio.sleep(pause)
