"""The slave's side of replication: copies the master's log and metadata.

See docs/protocol/rocketmq.md, section 6.12.

* The slave asks its master where the log begins. Then it asks for the log from its own end on, and
  an empty slave for all of it. (Java's slaves begin with the last file.) If the master has
  deleted what a slave lacks, the slave copies nothing, and its log says so. A slave that gets
  nothing asks again every ten seconds: Java's masters do not say that they have deleted it.
* First it asks for the last bytes before its end, and compares them with its own. Their ends differ
  if the master has lost messages that the slave had copied (a power cut with async flush), and has
  stored others since. Then the slave copies nothing, and logs an error. If the newest messages are
  the same, and others before them differ, a bit has changed on one of the disks: that is logged,
  and the slave goes on. It stops if the master has lost such a message, since the master may have
  stored it again. While it compares, it reports nothing of this part, so that the master does not
  count it as replicated.
* Pieces must follow each other without a gap; otherwise the slave disconnects and reconnects after
  five seconds.
* The slave reports the end of its log whenever it has grown, and every 5 s. With sync flush it
  reports what is durable: the master may then acknowledge it.
* A slave with an account signs first if its master has accounts (`signing`).
* Records are stored whole: an incomplete record waits in memory for the rest.

`MetadataSync` asks the master for topics, groups and offsets as soon as it knows it, every ten
seconds, and when the first message of a topic comes that it does not know. It takes nothing from a
broker that has become a slave, as a lost master does when another slave has replaced it: name
servers tell that later. Topics and groups replace the slave's if their version differs; offsets are
merged; the offsets of delayed messages replace the slave's. So the slave can serve reads, and
replace the master when it is started as one.

Offsets count from when the slave has all of the log that the master had when it gave them. A group
that is past a message has handled it, or the log holds its retry; delayed messages that are past
have been delivered, to the log. Without that part of the log they would be lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from operator import eq, ne
from typing import Final

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._record.layout import HOLE_TOPIC, MAGIC
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.frames import HELLO, REPORT, Piece, Pieces
from coherer._server.rocketmq.ha.signing import ANSWER_MS, answer
from coherer._server.rocketmq.remoting_client import RemotingClient, host_and_port
from coherer._store import AppendResult, Draft, DraftBatch, Store
from coherer._store.replica import whole_bytes
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies.routes import KVTable
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError, ProtocolError, UnavailableError

_log = Log(logging.getLogger(__name__))

REPORT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
RETRY_S: Final = 5.0
PERIOD_S: Final = 10.0
TIMEOUT_MS: Final = 3_000
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_MAGIC: Final = re.compile(re.escape(MAGIC.to_bytes(4, "big")))
_SLAVE: Final = re.compile(rb"^brokerRole=SLAVE\s*$", re.MULTILINE)
"""In the settings of a slave. As a whole they cannot be parsed: Java escapes no backslash."""
_HOLE: Final = HOLE_TOPIC.encode()
COMPARED_BYTES: Final = 64 * 1024
"""How much of its log a slave compares with its master's when it connects. The first difference may
be further back: the records after it differ, too, at least in their store times."""


class HaSlave:
    """Follows a master.

    Args:
        account: name and secret with which it signs; None for none.
        tls: how the connection is encrypted; None for a plain one, the only kind of Java's masters.
        retry_s: how long to wait before reconnecting.
        ask_s: how often a slave that gets nothing asks where the master's log begins.
        log_of_master: asks the master where its log begins and ends.

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
        ask_s: float = PERIOD_S,
        log_of_master: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        self.core = core
        self._log_of_master = log_of_master
        self._account = account
        self._tls = tls
        self.address = ""
        self.link: MasterLink | None = None
        self._retry_s, self._ask_s = retry_s, ask_s
        self._waits: tuple[MasterLink, int] | None = None  # the connection, and what it waited for
        self._known = asyncio.Event()
        self.upkeep = Upkeep(
            Step("copying the master's log", self._follow_once, pause=self._pause),
            Step("looking for deleted messages", self._look, pause=self._pause_looking),
        )
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
            make = partial(MasterLink, self.core, account=self._account, first=await self._first())
            address = self.address
            host, port = host_and_port(address)
            self.link = await net.dial(host, port, make, tls=self._tls)
            if address == self.address:  # it may have changed meanwhile
                await self.link.ended.wait()
                raise UnavailableError(self.link.trouble, server=address)
        finally:
            if self.link is not None:
                self.link.connection.close()
            self.link = None

    async def _first(self) -> int:
        """The offset that an empty slave asks for; 0 leaves the choice to the master.

        Raises:
            UnavailableError: the master does not have the log from the end of this one on.
        """
        own_end = self.core.store.written_offset
        try:
            begin, end = await self._log_of_master()
        except CohererError:
            if own_end:  # the log may be served all the same
                return 0
            raise
        if begin > own_end > 0:
            # Java's masters would keep such a slave waiting for ever.
            raise UnavailableError(
                f"The master's log begins at {begin}, and this slave's ends at {own_end}: the "
                "master has deleted what is between them.",
                server=self.address,
                hint="Give the slave a new directory.",
            )
        if own_end or end <= 0:
            return 0
        return max(begin, 1)  # offset 0 would ask for the last file

    async def _pause(self) -> None:
        await asyncio.sleep(self._retry_s)

    async def _look(self) -> None:
        """Leave a master that has deleted what comes next; Java's sends nothing from then on."""
        link, before = self.link, self._waits
        self._waits = None if link is None else (link, link.position)
        if link is None or before != self._waits:
            return  # what it still gets may lead to where the master's log begins
        with suppress(CohererError):  # `MetadataSync` reports that the master does not answer
            begin, _ = await self._log_of_master()
            if (link, link.position) == before and link.position < begin:
                link.trouble = (
                    f"The master's log begins at {begin}, and this slave waits for what is at "
                    f"{link.position}: the master has deleted it."
                )
                if self.core.store.written_offset:  # an empty one begins anew
                    link.trouble += " Give the slave a new directory."
                link.connection.close()

    async def _pause_looking(self) -> None:
        await asyncio.sleep(self._ask_s)


class MasterLink:
    """One connection to a master.

    Args:
        account: name and secret with which it signs; None for none.
        first: the offset that an empty slave asks for; 1 for offset 0.

    Attributes:
        ended: set when it has ended.
        trouble: why it ended.
        read_ms: the time of the last socket read.
    """

    def __init__(
        self,
        core: Core,
        connection: net.Connection,
        account: tuple[str, str] | None = None,
        first: int = 0,
    ) -> None:
        self.connection = connection
        self.ended = asyncio.Event()
        self.trouble = "The master has closed the connection."
        self._core = core
        self._pieces = Pieces()
        self._begin = core.store.written_offset  # the offset of the bytes in memory
        self._compared, self._compare_to = _to_compare(core.store), self._begin
        self._theirs = bytearray()  # the master's bytes that are compared
        self._waiting = bytearray()
        self._first = first
        if first == 1:
            # The first byte of a log is the highest one of a record's size, which is below 16 MiB.
            self._waiting += bytes(1)
        self.read_ms = core.lease_ms()
        self._written_ms = 0
        self._account = account
        if account is None:
            self._report()
        else:  # the first report follows the master's answer, or comes without one from `tick`
            self._written_ms = self.read_ms - REPORT_MS + ANSWER_MS
            connection.write(REPORT.pack(HELLO))

    @property
    def position(self) -> int:
        """The log offset of the next byte from the master."""
        if self._compared < self._compare_to:
            return self._compared
        return max(self._begin + len(self._waiting), self._first)

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
        self._theirs += piece.data[:size]
        self._compared += size
        if self._compared == self._compare_to:
            self._check_difference()
            self._report()
        elif not size:  # the master has no more: let it see that this log is longer
            self._check_difference()
            self._report(self._compare_to)
        return Piece(self._begin, piece.data[size:])

    def _check_difference(self) -> None:
        """Check that the master's log is the one that this slave has copied.

        Raises:
            ProtocolError: it is another one.
        """
        theirs, self._theirs = bytes(self._theirs), bytearray()
        begin, store = self._compared - len(theirs), self._core.store
        own = bytes(store.read_raw(begin, len(theirs)))
        if theirs == own:
            return
        at = begin + sum(1 for _ in takewhile(bool, map(eq, theirs, own)))
        if _agree_in_the_end(store, begin, own, theirs):
            _log.warning(
                "The master's log has another byte than this slave's at offset %d, and the same "
                "messages after it: one of the two disks has changed it. Check both directories "
                "with `coherer verify`, and replace the disk.",
                at,
                about=self.connection.peer_host,
            )
            return
        _log.error(
            "The master's log has other bytes than this slave's at offset %d: the master has "
            "lost messages that this slave has, perhaps in a power cut. Compare the two, and "
            "give the slave a new directory.",
            at,
            about=self.connection.peer_host,
        )
        raise ProtocolError(f"The logs of master and slave differ at offset {at}.")

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
            end = self._core.store.end_offset or self._first
            offset = end if is_compared else self._compared - len(self._theirs)
        self.connection.write(REPORT.pack(offset))


def _to_compare(store: Store) -> int:
    """The offset from which a slave compares its log with its master's."""
    end = store.written_offset
    file = end - 1 - (end - 1) % store.segment_bytes
    # All in one file, which the master has as long as it has the end of it. Offset 0 would ask for
    # the master's last file.
    return min(end, max(end - COMPARED_BYTES, file, store.min_offset, 1))


def _agree_in_the_end(store: Store, begin: int, own: bytes, theirs: bytes) -> bool:
    """Whether only bits have changed between two copies of one log from `begin` on.

    Logs that have taken different ways never have the same records again: not with the same times.
    """
    if len(own) != len(theirs) or own.count(_HOLE) < theirs.count(_HOLE):
        return False
    end = begin + len(own)
    behind = max(at for at, pair in enumerate(zip(own, theirs, strict=True)) if ne(*pair)) + 1
    for found in _MAGIC.finditer(own, behind + 4):
        at = begin + found.start() - 4
        while (record := store.record_at(at)) is not None:
            at += len(record)
        if at == end == store.written_offset:
            return True
    return False


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
        self._delays = delays
        self._unknown: set[str] = set()  # topics of messages that have come since it asked
        self._is_due, self._has_grown = asyncio.Event(), asyncio.Event()
        core.on_arrival(self._arrived)
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
            UnavailableError: the master does not respond, or is a slave now.
            RefusedError: it refuses.
            DamagedStoreError: its response is invalid.
        """
        topics = await self._table(RequestCode.GET_ALL_TOPIC_CONFIG)
        groups = await self._table(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        offsets = OffsetTable.load(await self._table(RequestCode.GET_ALL_CONSUMER_OFFSET))
        delays = await self._table(RequestCode.GET_ALL_DELAY_OFFSET)
        await self._check_role()
        self._take_topics(topics)
        self._take_groups(groups)
        _, end = await self.log_of_master()
        if await self._has_log(end):
            self._core.offsets.merge(offsets)
            self._delays(delays)

    def found(self, address: str) -> None:
        """Set the master's address."""
        if address and address != self.master:
            self.master = address
            self._is_due.set()

    async def log_of_master(self) -> tuple[int, int]:
        """Ask where the master's log begins and ends.

        Raises:
            UnavailableError: the master does not respond, or is unknown.
            RefusedError: it refuses.
            ProtocolError: its response is invalid.
        """
        if not self.master:
            raise UnavailableError("The master's address is not known yet.")
        table = KVTable.decode((await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        try:
            begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            text = f"The master does not say where its log begins and ends: {error!r}."
            raise ProtocolError(text, server=self.master) from error
        if not begin <= end < 1 << 63:
            text = f"The master says that its log begins at {begin} and ends at {end}."
            raise ProtocolError(text, server=self.master)
        return begin, end

    async def _check_role(self) -> None:
        """Check that the master is one: a lost master comes back as a slave that knows nothing."""
        if _SLAVE.search(await self._table(RequestCode.GET_BROKER_CONFIG)):
            raise UnavailableError(
                "This broker has become a slave. Nothing is copied from it.", server=self.master
            )

    async def _has_log(self, end: int) -> bool:
        """Wait until the slave has the log up to an offset; False if that takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while self._core.store.end_offset < end:
                    self._has_grown.clear()
                    await self._has_grown.wait()
        return self._core.store.end_offset >= end

    async def _table(self, code: RequestCode) -> bytes:
        return bytes((await self._ask(code)).body)

    async def _ask(self, code: RequestCode) -> Command:
        answer = await self._outgoing.ask(self.master, code, timeout_ms=TIMEOUT_MS)
        if answer.code:
            raise refused(answer.code, answer.remark or "The master refuses.", server=self.master)
        return answer

    async def _copy(self) -> None:
        if self.master:
            await self.run_once()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PERIOD_S):
                await self._is_due.wait()
        except TimeoutError:
            self._unknown.clear()
        self._is_due.clear()

    def _arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        self._has_grown.set()
        topics = self._core.topics
        for name in dict.fromkeys(draft.topic for draft in drafts):
            # The master may have deleted it again, so each is asked for once in ten seconds.
            if name not in topics and not topics.is_system(name) and name not in self._unknown:
                self._unknown.add(name)
                self._is_due.set()

    def _take_topics(self, body: bytes) -> None:
        if self._core.topics.follow(TopicTable.load(body, fastjson.loads_unlimited)):
            _log.info("Copied the topics of master %s", self.master)

    def _take_groups(self, body: bytes) -> None:
        if self._core.groups.follow(GroupTable.load(body, fastjson.loads_unlimited)):
            _log.info("Copied the groups of master %s", self.master)
