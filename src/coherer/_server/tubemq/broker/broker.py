"""The broker: services 2 and 3 over the store and the rules.

`Broker` puts the parts together; `BrokerService` is its end of each connection. One socket read is
one batch: its sends become drafts and are appended with those of other connections at the end of
the loop's turn (`_server.core.appending`), its gets are answered or held (`reads`), the rest is
answered on the spot.

A connection that does not read its answers is not served any more gets until it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from coherer import _net as net
from coherer._common.logs import Log
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.answers import Answers, refuse_send
from coherer._server.tubemq.broker.configuration import Configuration
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.reads import Reads
from coherer._server.tubemq.broker.sends import SendMemory, SendReader
from coherer._server.tubemq.broker.state import BrokerOptions, BrokerState
from coherer._server.tubemq.caller import Caller
from coherer._server.tubemq.refusal import Refusal
from coherer._store import Draft
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.session import JAVA_EXCEPTION, Request
from coherer.errors import CohererError, ProtocolError

_log = Log(logging.getLogger(__name__))


class Broker:
    """A broker without its sockets.

    Args:
        options: how it behaves.
        core: what it shares with the node's other door; the caller opens and closes it.
    """

    def __init__(self, options: BrokerOptions, core: Core) -> None:
        self.core = core
        self.state = BrokerState(options, core)
        self.mapper = Mapper()
        self.sends = SendMemory(self.state, self.mapper)
        self.reads = Reads(self.state, self.mapper)
        self.configuration = Configuration(self.state, core.remove_topic)
        core.on_arrival(self.reads.arrived)
        core.on_removal(self._removing)
        core.on_idle_check(self._in_use)

    def make(self, connection: net.Connection) -> BrokerService:
        """The receiver of a new connection."""
        return BrokerService(self, connection)

    def tick(self) -> None:
        """End what has had its time: call it every 100 ms or so."""
        self.reads.expire(self.state.now_ms())

    def close(self) -> None:
        """Serve nothing more. What was sent is answered when the core is closed."""
        self.state.serving = False
        self.state.changed()
        self.reads.close()

    def _removing(self, name: str) -> None:
        text = f"Topic {name} is being removed."
        self.reads.readers.end_all(lambda reader: reader.topic == name, ResultCode.HB_NO_NODE, text)

    def _in_use(self) -> Iterable[tuple[str, str]]:
        return ((reader.topic, reader.group) for reader in self.state.leases)


class BrokerService:
    """The broker's end of one connection."""

    def __init__(self, broker: Broker, connection: net.Connection) -> None:
        self._broker = broker
        self._caller = Caller(connection)
        self._sends = SendReader(broker.sends)
        self._postponed: deque[Request] = deque()
        self._catching_up: asyncio.Task[None] | None = None

    def received(self, data: bytes) -> None:
        """One socket read."""
        caller = self._caller
        requests, failures = caller.session.receive(data)
        caller.connection.report_unfinished(caller.session.unfinished)
        if failures:
            caller.connection.write_many(failures)
        wall_ms = self._broker.state.wall_ms()
        serials: list[int] = []
        drafts: list[Draft] = []
        for request in requests:
            try:
                if request.method == methods.SEND_MESSAGE:
                    draft = self._sends.read(request.body, wall_ms)
                    if request.timeout_ms <= 0:
                        self._broker.core.appender.submit([draft], None)
                        continue
                    drafts.append(draft)
                    serials.append(request.serial)
                elif request.method == methods.GET_MESSAGES:
                    self._get(request)
                else:
                    self._other(request)
            except Refusal as refusal:
                if request.timeout_ms > 0:
                    frame = refuse_send(request.serial, refusal.code, refusal.text)
                    caller.connection.write(frame)
            except ProtocolError as error:
                frame = caller.session.fatal(request, JAVA_EXCEPTION, error.text)
                caller.connection.write(frame)
        if drafts:
            answers = Answers(self._broker.state, caller.connection, serials)
            self._broker.core.appender.submit(drafts, answers.tell)

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the same to us
        """The connection is gone."""
        self._postponed.clear()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._broker.reads.gone(self._caller)

    def _other(self, request: Request) -> None:
        readers = self._broker.reads.readers
        if request.method == methods.PARTITION_REGISTER:
            asked = methods.parse(pb.RegisterRequestC2B, request.body)
            answer = readers.register(asked, self._caller.connection.peer_host)
            self._caller.reply(request, answer)
        elif request.method == methods.PARTITION_HEARTBEAT:
            beat = readers.heartbeat(methods.parse(pb.HeartBeatRequestC2B, request.body))
            self._caller.reply(request, beat)
        elif request.method == methods.COMMIT_OFFSET:
            commit = readers.commit(methods.parse(pb.CommitOffsetRequestC2B, request.body))
            self._caller.reply(request, commit)
        else:
            text = f"No service {request.service} found on the server"
            frame = self._caller.session.error(request, JAVA_EXCEPTION, text)
            self._caller.connection.write(frame)

    def _get(self, request: Request) -> None:
        connection = self._caller.connection
        if self._postponed or connection.overloaded:
            self._postponed.append(request)
            if self._catching_up is None:
                connection.pause_reading()
                self._catching_up = asyncio.create_task(self._catch_up())
            return
        self._broker.reads.get(self._caller, request)

    async def _catch_up(self) -> None:
        connection = self._caller.connection
        try:
            while self._postponed:
                await connection.drain()
                self._broker.reads.get(self._caller, self._postponed.popleft())
                await asyncio.sleep(0)  # others have their turn, and the outbox is measured
            connection.resume_reading()
        except (ProtocolError, CohererError) as error:
            _log.warning(
                "Closing the connection with %s: %s",
                connection.peer,
                error,
                about=connection.peer_host,
            )
            connection.close()
        finally:
            self._catching_up = None
