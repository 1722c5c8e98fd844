"""The RocketMQ broker: its parts put together, and which of them answers which code.

Each part brings a table of what it answers; `RocketBroker.serve` takes further ones. Both ports of
a broker serve all of it, but pulls are served on the main port only (2.3).

A request that changes topics is answered when the name servers have heard of the change, so that
whoever reads the answer finds a new topic there. (Sends and messages that come back wait by
themselves, because they are answered when they are stored.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from coherer._rules.common.versions import DataVersion
from coherer._rules.rocketmq.acl import PUB
from coherer._rules.rocketmq.checkback import CheckOptions
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.admin import admin_handlers
from coherer._server.rocketmq.broker.calls import Calls
from coherer._server.rocketmq.broker.clients import ClientDesk
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.broker.positions import Positions
from coherer._server.rocketmq.broker.pulling import Pulls
from coherer._server.rocketmq.broker.querying import Queries
from coherer._server.rocketmq.broker.reply_messages import ReplyMessages
from coherer._server.rocketmq.broker.retrying import Retries
from coherer._server.rocketmq.broker.sending import CODES, Sends
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.broker.transactions import TransactionService
from coherer._server.rocketmq.remoting import Answer, Channel, Handler, Remoting
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command

if TYPE_CHECKING:  # what reads its files takes its time to load, and few need it
    from coherer._server.rocketmq.acl import Access

PULLS = frozenset((int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)))


class RocketBroker:
    """A broker without its sockets.

    Args:
        options: how it behaves.
        core: what it shares with the node's other door; the caller opens and closes it.
        access: who may do what; None for everybody everything.

    Attributes:
        state: what its parts share.
        remoting: what serves connections to the main port.
        fast_remoting: what serves those to the port below, where nobody pulls.
    """

    def __init__(self, options: RocketOptions, core: Core, *, access: Access | None = None) -> None:
        self.core = core
        self.state = RocketState(options, core)
        self.clients = ClientDesk(self.state)
        self.timers = TimerService(core)
        self.sends = Sends(self.state, self.timers)
        self.pulls = Pulls(self.state)
        self.retries = Retries(self.state)
        self.positions = Positions(self.state)
        self.queries = Queries(self.state, access)
        self.delays = DelayService(core, core.store.options.delay_levels_ms)
        self.calls = Calls(self.state)
        self.transactions = TransactionService(
            core,
            self.calls.check_transaction,
            CheckOptions(
                timeout_ms=options.transaction_timeout_ms,
                checks_max=options.transaction_checks_max,
                interval_ms=options.transaction_interval_ms,
            ),
            is_slave=lambda: self.state.is_slave,
            lacks=None
            if access is None
            else lambda channel, request, topic: access.lacks(channel, request, topic, PUB),
            take=self.timers.take,
        )
        self._handlers: dict[int, Handler] = {}
        self._fast_handlers: dict[int, Handler] = {}
        self.access = access
        self.remoting = self._remoting(self._handlers)
        self.fast_remoting = self._remoting(self._fast_handlers)
        self.serve(self._own())
        self.serve(self.clients.handlers())
        self.serve(self.calls.handlers())
        self.serve(admin_handlers(self.state, self.delays, access))
        self.serve(ReplyMessages(self.state, self.sends).handlers())

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Answer further codes."""
        for code, handler in handlers.items():
            if code in PULLS:
                self._handlers[code] = handler
            else:
                self._handlers[code] = self._fast_handlers[code] = self._announcing(handler)

    @property
    def codes(self) -> frozenset[int]:
        """What is answered on the main port."""
        return frozenset(self._handlers) | frozenset(map(int, CODES))

    def tick(self) -> None:
        """Do what is due: call it every 100 ms or so."""
        now_ms = self.state.now_ms()
        self.pulls.holding.expire(now_ms)
        self.clients.tick()
        self.state.counts.tick(now_ms)
        if self.access is not None:
            self.access.tick(now_ms)
        if not self.state.is_slave:
            self.delays.tick()
            self.timers.tick()
            self.transactions.tick()
        self.remoting.tick()
        self.fast_remoting.tick()

    async def save(self) -> None:
        """Write what the files lack: call it every few seconds, as `Core.save_positions`.

        Raises:
            StoreError: the disk has no room or failed; it is written the next time.
        """
        self.delays.save()
        self.clients.save_filters()
        await self.core.files.saved()

    def close(self) -> None:
        """Serve nothing more. What was sent is answered when the core is closed."""
        self.pulls.holding.close()
        self.delays.stop()
        self.timers.stop()

    def closed(self) -> None:
        """Have written what the files lack; the core is closed, the store not yet."""
        self.delays.save()
        self.clients.save_filters()

    def _own(self) -> dict[int, Handler]:
        positions = self.positions
        return {
            RequestCode.PULL_MESSAGE: self.pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pulls.pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.retries.take_back,
            RequestCode.QUERY_MESSAGE: self.queries.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.queries.by_offset,
            RequestCode.QUERY_CONSUMER_OFFSET: positions.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: positions.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: positions.search,
            RequestCode.GET_MAX_OFFSET: positions.maximum,
            RequestCode.GET_MIN_OFFSET: positions.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: positions.earliest,
            RequestCode.GET_ALL_CONSUMER_OFFSET: positions.everything,
            RequestCode.GET_ALL_DELAY_OFFSET: self._delay_offsets,
            RequestCode.END_TRANSACTION: self.transactions.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.transactions.resume,
        }

    def _announcing(self, handler: Handler) -> Handler:
        """The same handler, whose answer waits for the name servers if it has changed topics."""
        state = self.state

        def handle(channel: Channel, request: Command) -> Answer | Awaitable[Answer]:
            before = state.topics.version
            answer = handler(channel, request)
            if answer is None:
                return None
            if not isinstance(answer, Command):
                return finished(answer, before)
            news = state.news(before)
            return answer if news is None else after(news, answer)

        async def finished(coming: Awaitable[Answer], before: DataVersion) -> Answer:
            answer = await coming
            news = state.news(before)
            if news is not None:
                await news
            return answer

        async def after(news: Awaitable[None], answer: Command) -> Answer:
            await news
            return answer

        return handle

    def _delay_offsets(self, _: Channel, request: Command) -> Command:  # noqa: ARG002
        """Code 45: how far the delayed messages of each level are delivered."""
        return Command(ResponseCode.SUCCESS, body=self.delays.positions.dump())

    def _remoting(self, handlers: Mapping[int, Handler]) -> Remoting:
        return Remoting(
            handlers,
            closed=self._closed,
            check=None if self.access is None else self.access.check,
            batch_codes=[int(code) for code in CODES],
            batch=self.sends.batch,
            files=self.core.files,
            now_ms=self.state.now_ms,
        )

    def _closed(self, channel: Channel) -> None:
        self.pulls.holding.gone(channel)
        self.clients.closed(channel)
