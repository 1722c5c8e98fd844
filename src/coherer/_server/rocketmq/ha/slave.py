"""The slave's side of replication: fetch the master's log, and what else it knows.

Rules (protocol page, 6.12):

* The log is asked for from the end of ours on; an empty one begins where the master says.
* Pieces follow each other without a gap; what does not follow ends the connection, and five
  seconds later another one asks anew.
* How far our log goes is said whenever it has grown, and every 5 s.
* Records are stored whole: half a one waits in memory until the rest has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from coherer import _net as net
from coherer._common.logs import Log
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.frames import REPORT, Piece, Pieces
from coherer._server.rocketmq.remoting_client import RemotingClient, host_and_port
from coherer._store.replica import whole_bytes
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer.errors import CohererError, ProtocolError

_log = Log(logging.getLogger(__name__))

REPORT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
RETRY_S: Final = 5.0
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024


class HaSlave:
    """Follows a master.

    Args:
        core: what the doors share.
        tls: how the log comes secretly; None for plainly, which is Java's masters' only way.
        retry_s: how long to wait after a connection has ended.

    Attributes:
        address: the master's replication port as host:port; "" while it is not known.
        link: the connection; None while there is none.
    """

    def __init__(
        self, core: Core, *, tls: net.TlsOptions | None = None, retry_s: float = RETRY_S
    ) -> None:
        self.core = core
        self._tls = tls
        self.address = ""
        self.link: MasterLink | None = None
        self._retry_s = retry_s
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow, in the background, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def found(self, address: str) -> None:
        """The master is there, now."""
        if address and address != self.address:
            _log.info("The master's log is at %s", address)
            self.address = address
            self._known.set()
            if self.link is not None:
                self.link.connection.close()

    def tick(self) -> None:
        """See to the time: call it every second or more often."""
        if self.link is not None:
            self.link.tick(self.core.now_ms())

    async def close(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.link is not None:
            self.link.connection.close()

    async def _follow(self) -> None:
        while True:
            await self._known.wait()
            try:
                host, port = host_and_port(self.address)
                self.link = await net.dial(host, port, self._make, tls=self._tls)
                await self.link.ended.wait()
                trouble = self.link.trouble
            except CohererError as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001 - whatever is said to us, we go on
                _log.exception("An error of ours with the master's log")
                trouble = repr(error)
            self.link = None
            _log.warning("The master's log cannot be followed, trying on: %s", trouble)
            await asyncio.sleep(self._retry_s)

    def _make(self, connection: net.Connection) -> MasterLink:
        return MasterLink(self.core, connection)


class MasterLink:
    """One connection to a master.

    Attributes:
        connection: it.
        ended: set when it has ended.
        trouble: why.
        read_ms: when something came last.
    """

    def __init__(self, core: Core, connection: net.Connection) -> None:
        self.connection = connection
        self.ended = asyncio.Event()
        self.trouble = "The master has closed the connection."
        self._core = core
        self._pieces = Pieces()
        self._begin = core.store.end_offset  # of what waits in memory
        self._waiting = bytearray()
        self.read_ms = core.now_ms()
        self._written_ms = 0
        self._report()

    def received(self, data: bytes) -> None:
        """One socket read.

        Raises:
            ProtocolError: the master sends what cannot be.
        """
        self.read_ms = self._core.now_ms()
        before = self._core.store.end_offset
        try:
            for piece in self._pieces.feed(data):
                self._take(piece)
            self._store()
        except CohererError as error:
            self.trouble = str(error)
            self.connection.close()
            return
        if self._core.store.end_offset != before:
            self._report()

    def closed(self, error: Exception | None) -> None:
        """The connection has ended."""
        if error is not None:
            self.trouble = f"The connection broke: {error}."
        self.ended.set()

    def tick(self, now_ms: int) -> None:
        """See to the time."""
        if now_ms - self.read_ms > SILENCE_MS:
            self.trouble = "The master is silent."
            self.connection.abort()
        elif now_ms - self._written_ms > REPORT_MS:
            self._report()

    def _take(self, piece: Piece) -> None:
        expected = self._begin + len(self._waiting)
        if expected == 0 and piece.data:
            self._begin = expected = piece.offset
        if expected not in (0, piece.offset):
            raise ProtocolError(f"The master sends {piece.offset}, where {expected} follows.")
        self._waiting += piece.data
        if len(self._waiting) > _RECORD_BYTES_MAX:
            self._store()

    def _store(self) -> None:
        size = whole_bytes(self._waiting)
        if size:
            data = bytes(self._waiting[:size])
            self._core.append_raw(self._begin, data)
            del self._waiting[:size]
            self._begin += size
        if len(self._waiting) > _RECORD_BYTES_MAX:
            raise ProtocolError("The master sends a record without an end.")

    def _report(self) -> None:
        self._written_ms = self._core.now_ms()
        self.connection.write(REPORT.pack(self._core.store.end_offset))


PERIOD_S: Final = 10.0
FIRST_S: Final = 3.0
TIMEOUT_MS: Final = 3_000


class MetadataSync:
    """Asks a master what it knows, over and over.

    Args:
        core: where it goes.
        outgoing: connections to other servers; the caller closes it.
        delays: takes the positions of delayed messages.

    Attributes:
        master: its address as host:port; "" while it is not known.
    """

    def __init__(
        self, core: Core, outgoing: RemotingClient, delays: Callable[[bytes], None]
    ) -> None:
        self.master = ""
        self._core = core
        self._outgoing = outgoing
        self._steps: tuple[tuple[RequestCode, Callable[[bytes], object]], ...] = (
            (RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, delays),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the background, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> None:
        """Ask for everything once.

        Raises:
            UnavailableError: the master does not answer.
            RefusedError: it refuses.
            DamagedStoreError: nobody can read what it answers.
        """
        for code, take in self._steps:
            answer = await self._outgoing.ask(self.master, code, timeout_ms=TIMEOUT_MS)
            if answer.code:
                raise refused(
                    answer.code, answer.remark or "The master refuses.", server=self.master
                )
            take(bytes(answer.body))

    async def _repeat(self) -> None:
        wait_s = FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = PERIOD_S
            if not self.master:
                continue
            try:
                await self.run_once()
            except CohererError as error:
                _log.warning("The master's tables cannot be followed, trying on: %s", error)
            except Exception:  # noqa: BLE001 - whatever a master says, the next word may be better
                _log.exception("An error of ours with what %s knows", self.master)

    def _take_topics(self, body: bytes) -> None:
        if self._core.topics.follow(TopicTable.load(body, fastjson.load_whole)):
            _log.info("Topics are those of master %s now", self.master)

    def _take_offsets(self, body: bytes) -> None:
        self._core.offsets.merge(OffsetTable.load(body))

    def _take_groups(self, body: bytes) -> None:
        if self._core.groups.follow(GroupTable.load(body, fastjson.load_whole)):
            _log.info("Groups are those of master %s now", self.master)
