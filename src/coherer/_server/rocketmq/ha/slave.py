"""The slave's side of replication: copies the master's log and metadata.

See docs/protocol/rocketmq.md, section 6.12.

* The slave asks for the log from its own end on; an empty log starts where the master decides.
* First it asks for the last bytes before its end, and compares them with its own. They differ if
  the master has lost messages that the slave had copied (a power cut with async flush), and has
  stored others since. Then the slave copies nothing, and logs an error. While it compares, it
  reports only what it has compared, so that the master does not count the rest as replicated.
* Pieces must follow each other without a gap; otherwise the slave disconnects and reconnects after
  five seconds.
* The slave reports the end of its log whenever it has grown, and every 5 s. With sync flush it
  reports what is durable: the master may then acknowledge it.
* A slave with an account signs first if its master has accounts (`signing`).
* Records are stored whole: an incomplete record waits in memory for the rest.

`MetadataSync` asks the master for topics, groups and offsets every ten seconds. Topics and groups
replace the slave's if their version differs; offsets are merged; the offsets of delayed messages
replace the slave's. So the slave can serve reads, and replace the master when it is started as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from operator import eq
from typing import Final

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.frames import HELLO, REPORT, Piece, Pieces
from coherer._server.rocketmq.ha.signing import ANSWER_MS, answer
from coherer._server.rocketmq.remoting_client import RemotingClient, host_and_port
from coherer._store import Store
from coherer._store.replica import whole_bytes
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer.errors import CohererError, ProtocolError, UnavailableError

_log = Log(logging.getLogger(__name__))

REPORT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
RETRY_S: Final = 5.0
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
COMPARED_BYTES: Final = 64 * 1024
"""How much of its log a slave compares with its master's when it connects. The first difference may
be further back: the records after it differ, too, at least in their store times."""


class HaSlave:
    """Follows a master.

    Args:
        account: name and secret with which it signs; None for none.
        tls: how the connection is encrypted; None for a plain one, the only kind of Java's masters.
        retry_s: how long to wait before reconnecting.

    Attributes:
        address: the master's replication port as host:port; "" while it is unknown.
        link: the connection; None without one.
        upkeep: counts failures of copying the log.
    """

    def __init__(
        self,
        core: Core,
        *,
        account: tuple[str, str] | None = None,
        tls: net.TlsOptions | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.core = core
        self._account = account
        self._tls = tls
        self.address = ""
        self.link: MasterLink | None = None
        self._retry_s = retry_s
        self._known = asyncio.Event()
        self.upkeep = Upkeep(Step("copying the master's log", self._follow_once, pause=self._pause))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Follow the master in the background until `close`."""
        self._tasks = self.upkeep.start()

    def found(self, address: str) -> None:
        """Set the master's address."""
        if address and address != self.address:
            _log.info("The master replicates its log at %s", address)
            self.address = address
            self._known.set()
            if self.link is not None:
                self.link.connection.close()

    def tick(self) -> None:
        """Check timeouts; call it every second or more often."""
        if self.link is not None:
            self.link.tick(self.core.lease_ms())

    async def close(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow_once(self) -> None:
        """Copy the log until the connection ends.

        Raises:
            UnavailableError: it has ended, or cannot be made.
        """
        await self._known.wait()
        try:
            await self.core.flusher.flush()  # the first report is the end of the whole log
            host, port = host_and_port(self.address)
            self.link = await net.dial(host, port, self._make, tls=self._tls)
            await self.link.ended.wait()
            raise UnavailableError(self.link.trouble, server=self.address)
        finally:
            if self.link is not None:
                self.link.connection.close()
            self.link = None

    async def _pause(self) -> None:
        await asyncio.sleep(self._retry_s)

    def _make(self, connection: net.Connection) -> MasterLink:
        return MasterLink(self.core, connection, self._account)


class MasterLink:
    """One connection to a master.

    Args:
        account: name and secret with which it signs; None for none.

    Attributes:
        ended: set when it has ended.
        trouble: why it ended.
        read_ms: the time of the last socket read.
    """

    def __init__(
        self, core: Core, connection: net.Connection, account: tuple[str, str] | None = None
    ) -> None:
        self.connection = connection
        self.ended = asyncio.Event()
        self.trouble = "The master has closed the connection."
        self._core = core
        self._pieces = Pieces()
        self._begin = core.store.written_offset  # the offset of the bytes in memory
        self._compared, self._compare_to = _to_compare(core.store), self._begin
        self._waiting = bytearray()
        self.read_ms = core.lease_ms()
        self._written_ms = 0
        self._account = account
        if account is None:
            self._report()
        else:  # the first report follows the master's answer, or comes without one from `tick`
            self._written_ms = self.read_ms - REPORT_MS + ANSWER_MS
            connection.write(REPORT.pack(HELLO))

    def received(self, data: bytes) -> None:
        """Take a socket read.

        Raises:
            ProtocolError: the master sent invalid data.
        """
        self.read_ms = self._core.lease_ms()
        try:
            for piece in self._pieces.feed(data):
                if piece.offset == HELLO:
                    self._sign(piece.data)
                else:
                    self._take(piece)
            self._store()
        except CohererError as error:
            self.trouble = str(error)
            self.connection.close()

    def closed(self, error: Exception | None) -> None:
        """The connection has ended."""
        if error is not None:
            self.trouble = f"The connection broke: {error}."
        self.ended.set()

    def tick(self, now_ms: int) -> None:
        """Check timeouts."""
        if now_ms - self.read_ms > SILENCE_MS:
            self.trouble = "The master has sent nothing for 20 s."
            self.connection.abort()
        elif now_ms - self._written_ms > REPORT_MS:
            self._report()

    def _sign(self, number: bytes) -> None:
        """Answer the master's number; without one it accepts this slave."""
        if not number:
            self._report()
        elif self._account is None:
            raise ProtocolError("The master asks for an account, and this slave has none.")
        else:
            self.trouble = (
                "The master has closed the connection after it had asked for a signature: look "
                "at its log, and check the account of this slave."
            )
            self.connection.write(answer(self._account, number))

    def _take(self, piece: Piece) -> None:
        if self._compared < self._compare_to:
            piece = self._compare(piece)
        expected = self._begin + len(self._waiting)
        if expected == 0 and piece.data:
            self._begin = expected = piece.offset
        if expected not in (0, piece.offset):
            raise ProtocolError(f"The master sent offset {piece.offset} instead of {expected}.")
        self._waiting += piece.data
        if len(self._waiting) > _RECORD_BYTES_MAX:
            self._store()

    def _compare(self, piece: Piece) -> Piece:
        """Compare a piece with this log; return the part after it."""
        if piece.offset != self._compared:
            raise ProtocolError(
                f"The master sent offset {piece.offset} instead of {self._compared}."
            )
        size = min(len(piece.data), self._compare_to - self._compared)
        theirs, own = piece.data[:size], bytes(self._core.store.read_raw(self._compared, size))
        if theirs != own:
            same = sum(1 for _ in takewhile(bool, map(eq, theirs, own)))
            at = self._compared + same
            _log.error(
                "The master's log has other bytes than this slave's at offset %d: the master has "
                "lost messages that this slave has, perhaps in a power cut. Compare the two, and "
                "give the slave a new directory.",
                at,
                about=self.connection.peer_host,
            )
            raise ProtocolError(f"The logs of master and slave differ at offset {at}.")
        self._compared += size
        if self._compared == self._compare_to:
            self._report()
        elif not size:  # the master has no more: let it see that this log is longer
            self._report(self._compare_to)
        return Piece(self._begin, piece.data[size:])

    def _store(self) -> None:
        size = whole_bytes(self._waiting)
        if size:
            data = bytes(self._waiting[:size])
            self._core.append_raw(self._begin, data, self._report)
            del self._waiting[:size]
            self._begin += size
        if len(self._waiting) > _RECORD_BYTES_MAX:
            raise ProtocolError("The master sent a record that is too large.")

    def _report(self, offset: int | None = None) -> None:
        if self.connection.closed:
            return
        self._written_ms = self._core.lease_ms()
        if offset is None:
            is_compared = self._compared == self._compare_to
            offset = self._core.store.end_offset if is_compared else self._compared
        self.connection.write(REPORT.pack(offset))


def _to_compare(store: Store) -> int:
    """The offset from which a slave compares its log with its master's."""
    end = store.written_offset
    file = end - 1 - (end - 1) % store.segment_bytes
    # All in one file, which the master has as long as it has the end of it. Offset 0 would ask for
    # the master's last file.
    return min(end, max(end - COMPARED_BYTES, file, store.min_offset, 1))


PERIOD_S: Final = 10.0
FIRST_S: Final = 3.0
TIMEOUT_MS: Final = 3_000


class MetadataSync:
    """Copies a master's topics, groups and offsets periodically.

    Args:
        core: the core to update.
        outgoing: connections to other servers; the caller closes it.
        delays: takes the offsets of delayed messages.

    Attributes:
        master: its address as host:port; "" while it is unknown.
        upkeep: counts failures of copying the metadata.
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
        self._wait_s = FIRST_S
        self.upkeep = Upkeep(Step("copying the master's metadata", self._copy, pause=self._pause))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run in the background until `close`."""
        self._tasks = self.upkeep.start()

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run_once(self) -> None:
        """Copy everything once.

        Raises:
            UnavailableError: the master does not respond.
            RefusedError: it refuses.
            DamagedStoreError: its response is invalid.
        """
        for code, take in self._steps:
            answer = await self._outgoing.ask(self.master, code, timeout_ms=TIMEOUT_MS)
            if answer.code:
                raise refused(
                    answer.code, answer.remark or "The master refuses.", server=self.master
                )
            take(bytes(answer.body))

    async def _copy(self) -> None:
        if self.master:
            await self.run_once()

    async def _pause(self) -> None:
        wait_s, self._wait_s = self._wait_s, PERIOD_S
        await asyncio.sleep(wait_s)

    def _take_topics(self, body: bytes) -> None:
        if self._core.topics.follow(TopicTable.load(body, fastjson.loads_unlimited)):
            _log.info("Copied the topics of master %s", self.master)

    def _take_offsets(self, body: bytes) -> None:
        self._core.offsets.merge(OffsetTable.load(body))

    def _take_groups(self, body: bytes) -> None:
        if self._core.groups.follow(GroupTable.load(body, fastjson.loads_unlimited)):
            _log.info("Copied the groups of master %s", self.master)
