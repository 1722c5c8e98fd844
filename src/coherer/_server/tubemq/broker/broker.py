"""The TubeMQ broker, and its end of a connection (docs/protocol/tubemq.md, section 8).

`Broker` works without sockets and puts the parts together; `BrokerConnection` dispatches the
requests of one connection to them:

| method | handled by |
|---|---|
| 13, send | `SendDecoder.decode`, then the appender, then `SendReplies` (`sends`) |
| 15, register or unregister a partition | `ConsumerHandler.register` (`consumers`) |
| 16, heartbeat of a consumer | `ConsumerHandler.heartbeat` (`consumers`) |
| 17, get messages | `GetHandler.get` (`gets`) |
| 18, commit | `ConsumerHandler.commit` (`consumers`) |

The sends of one socket read are one batch. The appender stores it together with those of other
connections (`coherer._server.core.appending`). Gets are answered or held, other requests are
answered at once. A connection with a full write buffer gets no further messages until it reads its
answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Container, Iterable

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._rules.common.origins import Origin
from coherer._server.core.core import Core
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.tubemq.broker.gets import GetHandler
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.master_link import BrokerConfiguration
from coherer._server.tubemq.broker.sends import SendCache, SendDecoder, SendReplies, refuse_send
from coherer._server.tubemq.broker.state import BrokerState, ReplyChannel
from coherer._server.tubemq.refusal import Refusal
from coherer._store import Draft, DraftBatch
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.session import JAVA_EXCEPTION, Request
from coherer.errors import CohererError, ProtocolError, StoreError

_log = Log(logging.getLogger(__name__))


class Broker:
    """A broker without its sockets.

    Args:
        core: the state that both protocols share; the caller opens and closes it.

    Attributes:
        upkeep: the periodic steps.
    """

    def __init__(self, options: BrokerOptions, core: Core) -> None:
        self.core = core
        self.state = BrokerState(options, core)
        self.mapper = Mapper()
        self.send_cache = SendCache(self.state, self.mapper)
        self.gets = GetHandler(self.state, self.mapper)
        self.consumers = self.gets.consumers
        self.upkeep = Upkeep(
            Step("ending held gets and leases", lambda: self.gets.expire(self.state.now_ms())),
            now_ms=core.lease_ms,
        )
        self.configuration = BrokerConfiguration(self.state, core.remove_topic)
        core.on_arrival(self.gets.messages_arrived)
        core.on_removal(self._end_leases_of)
        core.on_removal(self.configuration.deleted)
        core.on_offsets_removal(self._end_leases_of_group)
        core.on_idle_check(self._topics_in_use)

    def tick(self) -> None:
        """Run the periodic steps; call it about every 100 ms."""
        self.upkeep.tick()

    def close(self) -> None:
        """Stop serving requests. Pending sends are answered when the core is closed."""
        self.state.serving = False
        self.state.changed()
        self.gets.close()

    def _end_leases_of(self, topic: str) -> None:
        text = f"Topic {topic} is being removed."
        self.consumers.end_leases(lambda reader: reader.topic == topic, ResultCode.HB_NO_NODE, text)

    def _end_leases_of_group(self, group: str, topics: Container[str] | None) -> None:
        self.consumers.end_leases(
            lambda reader: reader.group == group and (topics is None or reader.topic in topics),
            ResultCode.HB_NO_NODE,
            "The offsets of the group were removed.",
        )

    def _topics_in_use(self) -> Iterable[tuple[str, str]]:
        return ((reader.topic, reader.group) for reader in self.state.leases)


class BrokerConnection:
    """The broker's end of one connection: services 2 and 3 of the protocol."""

    def __init__(self, broker: Broker, connection: net.Connection) -> None:
        self._broker = broker
        self._channel = ReplyChannel(connection)
        self._sends = SendDecoder(broker.send_cache)
        self._postponed: deque[tuple[Request, int]] = deque()  # with the client's deadlines
        self._resuming: asyncio.Task[None] | None = None
        self._handlers = {
            # Sends are not in the table, because `received` batches them.
            methods.PARTITION_REGISTER: self._register,
            methods.PARTITION_HEARTBEAT: self._heartbeat,
            methods.GET_MESSAGES: self._get,
            methods.COMMIT_OFFSET: self._commit,
        }

    def received(self, data: bytes) -> None:
        """Handle the data of one socket read."""
        channel = self._channel
        requests, failures = channel.session.receive(data)
        channel.connection.report_unfinished(channel.session.unfinished)
        if failures:
            channel.connection.write_many(failures)
        wall_ms = self._broker.state.wall_ms()
        serials: list[int] = []
        drafts: list[Draft | DraftBatch] = []
        for request in requests:
            try:
                if request.method == methods.SEND_MESSAGE:
                    draft = self._sends.decode(request.body, wall_ms)
                    if request.timeout_ms <= 0:
                        core = self._broker.core
                        counting = core.counters.counting([draft])
                        core.appender.submit([draft], counting, origin=Origin.TUBEMQ_CLIENT)
                        continue
                    drafts.append(draft)
                    serials.append(request.serial)
                else:
                    self._handlers.get(request.method, self._unknown)(request)
            except Refusal as refusal:
                if request.timeout_ms > 0:
                    frame = refuse_send(request.serial, refusal.code, refusal.text)
                    channel.connection.write(frame)
            except ProtocolError as error:
                frame = channel.session.fatal(request, JAVA_EXCEPTION, error.text)
                channel.connection.write(frame)
            except StoreError as error:  # such as a failed read; the other requests go on
                self._fail(request, error)
        if drafts:
            replies = SendReplies(self._broker.state, channel.connection, serials, drafts)
            self._broker.core.appender.submit(drafts, replies, origin=Origin.TUBEMQ_CLIENT)

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason is irrelevant
        """Drop the requests that wait for this connection. Leases end by timeout."""
        self._postponed.clear()
        if self._resuming is not None:
            self._resuming.cancel()
        self._broker.gets.connection_closed(self._channel)

    def _register(self, request: Request) -> None:
        message = methods.parse(pb.RegisterRequestC2B, request.body)
        peer = self._channel.connection.peer_host
        self._channel.reply(request, self._broker.consumers.register(message, peer))

    def _heartbeat(self, request: Request) -> None:
        message = methods.parse(pb.HeartBeatRequestC2B, request.body)
        peer = self._channel.connection.peer_host
        self._channel.reply(request, self._broker.consumers.heartbeat(message, peer))

    def _commit(self, request: Request) -> None:
        message = methods.parse(pb.CommitOffsetRequestC2B, request.body)
        peer = self._channel.connection.peer_host
        self._channel.reply(request, self._broker.consumers.commit(message, peer))

    def _get(self, request: Request) -> None:
        connection = self._channel.connection
        if self._postponed or connection.overloaded:
            deadline_ms = self._broker.state.now_ms() + request.timeout_ms
            self._postponed.append((request, deadline_ms))
            if self._resuming is None:
                connection.pause_reading()
                self._resuming = asyncio.create_task(self._answer_postponed())
            return
        self._broker.gets.get(self._channel, request)

    def _fail(self, request: Request, error: StoreError) -> None:
        connection = self._channel.connection
        _log.error(
            "Method %d from %s failed: %s",
            request.method,
            connection.peer_host,
            error,
            about=(request.method, type(error)),
        )
        connection.write(self._channel.session.error(request, JAVA_EXCEPTION, str(error)))

    def _unknown(self, request: Request) -> None:
        text = f"No service {request.service} found on the server"
        frame = self._channel.session.error(request, JAVA_EXCEPTION, text)
        self._channel.connection.write(frame)

    async def _answer_postponed(self) -> None:
        connection = self._channel.connection
        try:
            while self._postponed:
                await connection.drain()
                request, deadline_ms = self._postponed.popleft()
                if self._broker.state.now_ms() < deadline_ms:
                    self._broker.gets.get(self._channel, request)
                else:
                    self._broker.gets.overdue(self._channel, request)
                await asyncio.sleep(0)  # let other connections run, and the write buffer fill
            connection.resume_reading()
        except (ProtocolError, CohererError) as error:
            _log.warning(
                "Closing the connection with %s: %s",
                connection.peer,
                error,
                about=connection.peer_host,
                peer=connection.peer,
            )
            connection.close()
        finally:
            self._resuming = None
