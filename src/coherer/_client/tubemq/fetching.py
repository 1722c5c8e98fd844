"""Fetching from one partition that we hold.

Rules:

* At most one package of a partition is out: fetched, and not yet confirmed or rejected. The next
  get leaves when it is.
* A confirmation may ride on the next get (`confirmed`). It is told once: if that get is lost, a
  second telling might confirm a package that we never saw. What was confirmed may then come
  again; nothing is skipped.
* A package of which nothing can be delivered is confirmed here, so that the partition goes on. What
  is left out of a package is logged once (`Held.report`).
* Every package is confirmed against the get that brought it, never by time or by count.
* No answer: try again, with growing pauses; after `LOST_MS` without any, the partition is given
  up, so that the master can give it to somebody who reaches the broker.

What codes mean for the partition is `PAUSES_MS` and `LOST_CODES`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

import msgspec

from coherer._client.engine.tasks import waits
from coherer._client.tubemq.broker_rpc import BrokerRpc
from coherer._client.tubemq.broker_rpc import Place as Start
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.inbox import Inbox
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._record.gaps import described
from coherer._wire.tubemq import codes
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.errors import CohererError, RefusedError, UnavailableError

_log = Log(logging.getLogger(__name__))

PAUSES_MS: Final = {
    int(ResultCode.FORBIDDEN): 2000,
    int(ResultCode.SERVICE_UNAVAILABLE): 300,
    int(ResultCode.MOVED): 200,
}
"""How long a partition rests after these codes."""

PAUSE_MS: Final = 300
"""After all others."""

LIMITED_MS: Final = 400
"""After code 452 where the broker names no time."""

LOST_CODES: Final = frozenset(
    {ResultCode.HB_NO_NODE, ResultCode.DUPLICATE_PARTITION, ResultCode.CERTIFICATE_FAILURE}
)
"""The broker does not hold the partition for us."""

LOST_MS: Final = 30_000
"""Servers forget who is silent for so long, so we may as well."""

HELD_MS_MIN: Final = 100
"""A broker that says "nothing there" sooner does not hold gets until there is something."""


class FetchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to fetch.

    Args:
        poll_ms: timeout of a get. Our broker holds a get that finds nothing almost so long.
        empty_ms: pause after "nothing there" from a broker that does not hold gets.
    """

    poll_ms: int = 30_000
    empty_ms: int = 400


class Held:
    """A partition that we hold.

    Attributes:
        partition: which one.
        key: its name in maps.
        broker: the broker's id as text.
        exact: whether its offsets count messages.
        accepted: the tags that are wanted; None for all.
        pace: how fast it may be read.
        offset: where the last package began.
        max_offset: the end of the partition when last heard, -1 while unknown.
        backlog_bytes: what lies behind the last package, -1 while unknown.
        confirmed: the next get tells that the package before it is confirmed.
        package: fetched and not confirmed.
        in_use: the application has the package.
        left_out: how many messages could not be delivered.
    """

    def __init__(
        self, partition: Partition, start: Start, accepted: frozenset[str] | None, pace: FlowControl
    ) -> None:
        self.partition = partition
        self.key = partition.key
        self.broker = str(partition.broker.id)
        self.exact = start.step == 1 and accepted is None
        self.holds_gets = start.step is not None
        self.accepted = accepted
        self.pace = pace
        self.offset = start.offset
        self.max_offset = start.max_offset
        self.backlog_bytes = -1
        self.confirmed = False
        self.package: MessageBatch | None = None
        self.in_use = False
        self.left_out = 0
        self._reported = False  # what is left out of the package
        self.task: asyncio.Task[None] | None = None
        self.free = asyncio.Event()
        self.free.set()

    def __repr__(self) -> str:
        state = "in use" if self.in_use else "fetched" if self.package is not None else "waiting"
        return f"<Held {self.key}, {state}, {self.offset} of {self.max_offset}>"

    @property
    def consumed(self) -> bool:
        """Whether giving it up now may confirm the package that was read last."""
        return self.confirmed and self.package is None

    def arrived(self, batch: MessageBatch) -> None:
        """A package has come."""
        self.package = batch
        self.in_use = False
        self.free.clear()

    def report(self, batch: MessageBatch) -> None:
        """Count and log what is left out of the package that has come, once."""
        if self._reported or not batch.skipped:
            return
        self._reported = True
        self.left_out += batch.skipped
        if batch.left_out:
            what = described(batch.left_out)
        else:
            what = f"{batch.skipped} of the messages read at offset {batch.offset}"
        _log.warning("%s: left out, because it cannot be delivered: %s", self.key, what)

    def finish(self, *, confirmed: bool) -> None:
        """The package is dealt with; the next get may leave.

        Args:
            confirmed: let the next get tell so.
        """
        self.package = None
        self.in_use = False
        self._reported = False
        self.confirmed = confirmed
        self.free.set()


class Owner(Protocol):
    """Who holds the partitions."""

    def lost(self, held: Held, error: CohererError) -> None:
        """The partition is not ours any more; this fetcher ends."""
        ...

    def open(self, held: Held) -> bool:
        """Whether the partition may be fetched from, that is, is not paused."""
        ...

    async def reopened(self) -> None:
        """Wait until the paused partitions are others."""
        ...


class Fetcher:
    """Fetches package after package of one partition.

    Args:
        held: the partition.
        rpc: the way to the broker.
        inbox: where packages go.
        owner: who holds the partition.
        options: how to fetch.
    """

    def __init__(
        self, held: Held, rpc: BrokerRpc, inbox: Inbox, owner: Owner, options: FetchOptions
    ) -> None:
        self._held = held
        self._rpc = rpc
        self._inbox = inbox
        self._owner = owner
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._silent: float | None = None  # since when there are no answers

    async def run(self) -> None:
        """Fetch until the partition is lost or this is cancelled."""
        wait = waits()
        while True:
            await self._gate()
            try:
                pause_ms = await self._once()
                wait = waits()
                self._silent = None
            except UnavailableError as error:
                now = self._loop.time()
                self._silent = now if self._silent is None else self._silent
                if (now - self._silent) * 1000 > LOST_MS:
                    self._owner.lost(self._held, error)
                    return
                _log.info("Fetching from %s: %s", self._held.key, error, about=self._held.key)
                pause_ms = int(wait() * 1000)
            except RefusedError as error:
                if error.code in LOST_CODES:
                    self._owner.lost(self._held, error)
                    return
                _log.warning("Fetching from %s: %s", self._held.key, error, about=self._held.key)
                pause_ms = PAUSE_MS
            except CohererError as error:
                _log.warning("Fetching from %s: %s", self._held.key, error, about=self._held.key)
                pause_ms = PAUSE_MS
            except Exception:  # noqa: BLE001 - a partition must not fall silent for good
                _log.exception("Fetching from %s failed", self._held.key, about=self._held.key)
                pause_ms = PAUSE_MS
            if pause_ms > 0:
                await asyncio.sleep(pause_ms / 1000)

    async def _gate(self) -> None:
        while not self._owner.open(self._held):
            await self._owner.reopened()
        await self._inbox.room()

    async def _once(self) -> int:
        """One get and what follows; returns how long to rest before the next."""
        held = self._held
        link = await self._rpc.link(held.partition.broker)
        asked = self._loop.time()
        confirmed, held.confirmed = held.confirmed, False
        body = await self._rpc.get(
            link,
            held.partition,
            confirmed=confirmed,
            escapes=held.pace.limits_itself(now_ms()),
            timeout_ms=self._options.poll_ms,
        )
        heard = self._loop.time()
        batch = MessageBatch(
            body,
            topic=held.partition.topic,
            broker=held.broker,
            partition=held.partition.id,
            exact_offsets=held.exact,
            accepted_tags=held.accepted,
        )
        if batch.code != ResultCode.SUCCESS:
            return self._nothing(batch, heard - asked, link.server)
        held.offset, held.max_offset = batch.offset, batch.max_offset
        held.backlog_bytes = batch.backlog_bytes
        if batch.delivered and (held.accepted is None or len(batch)):
            held.arrived(batch)
            self._inbox.put(held.key, batch)
            await held.free.wait()
        else:
            # Either the broker filters by a hash, and nothing was for us; or nothing of what it
            # read can be delivered. An older broker of our own then waits for the confirmation;
            # Java's moves on by itself.
            held.report(batch)
            held.finish(confirmed=batch.delivered > 0 or held.holds_gets)
        spent_ms = int((self._loop.time() - heard) * 1000)
        return held.pace.delivered(batch, now_ms()) - spent_ms

    def _nothing(self, batch: MessageBatch, took: float, server: str) -> int:
        held = self._held
        if batch.code in LOST_CODES:
            where = held.partition
            raise codes.refused(
                batch.code, batch.text, server=server, topic=where.topic, partition=where.id
            )
        if batch.code == ResultCode.NOT_FOUND:
            waited = held.holds_gets and took * 1000 >= HELD_MS_MIN
            pause_ms = 0 if waited else self._options.empty_ms
            return held.pace.empty(pause_ms, now_ms())
        pause_ms = PAUSES_MS.get(batch.code, PAUSE_MS)
        if batch.code == ResultCode.SERVER_CONSUME_SPEED_LIMIT:
            pause_ms = batch.wait_ms if batch.wait_ms > 0 else LIMITED_MS
        else:
            _log.warning(
                "%s answers for %s: %d %s",
                server,
                held.key,
                batch.code,
                batch.text,
                about=(held.key, batch.code),
            )
        return held.pace.refused(pause_ms, now_ms())
