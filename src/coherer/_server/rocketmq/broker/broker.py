"""The RocketMQ broker: its request handlers and background services.

`requests` says which handler answers which code. Both ports of a broker answer all codes, except
that pulls are answered on the main port only (docs/protocol/rocketmq.md, section 2.3).

The response to a request that changes topics is sent after the name servers have learned of the
change, so that a client that has received it finds a new topic there. (Sends and messages that are
sent back wait for the name servers by themselves, because they are answered when they are stored.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from coherer._common.upkeep import Step, Upkeep
from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.acl import PUB
from coherer._rules.rocketmq.transaction_checks import CheckOptions
from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.acl import Access, Affected
from coherer._server.rocketmq.broker.client_calls import ClientCalls
from coherer._server.rocketmq.broker.clients import ClientHandler
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.pulling import PullHandler
from coherer._server.rocketmq.broker.queries import MessageQueryHandler, OffsetHandler
from coherer._server.rocketmq.broker.reply_messages import ReplyHandler
from coherer._server.rocketmq.broker.requests import (
    admin_requests,
    client_requests,
    message_requests,
)
from coherer._server.rocketmq.broker.send_back import SendBackHandler
from coherer._server.rocketmq.broker.sending import SEND_CODES, SendHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.broker.transactions import TransactionService
from coherer._server.rocketmq.permissions import check_complete
from coherer._server.rocketmq.remoting import Answer, Channel, Handler, RemotingServer
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command

STATISTICS_MS: Final = 1_000
PULL_CODES: Final = frozenset((int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)))


class RocketBroker:
    """A broker without its sockets.

    Args:
        core: the state shared with the TubeMQ broker of the node; the caller opens and closes it.
        access: the accounts; None without access control.

    Attributes:
        remoting: serves connections to the main port.
        fast_remoting: serves connections to the port two below, which does not answer pulls.
        upkeep: the periodic steps.
    """

    def __init__(self, options: RocketOptions, core: Core, *, access: Access | None = None) -> None:
        self.core = core
        self.access = access
        self.state = RocketState(options, core)
        if access is not None:
            self.state.forbid, self.state.permits = access.forbid, access.permits
        self.clients = ClientHandler(self.state)
        self.timers = TimerService(core, is_slave=lambda: self.state.is_slave)
        self.sends = SendHandler(self.state, self.timers)
        self.pulls = PullHandler(self.state)
        self.delays = DelayService(core, core.store.options.delay_levels_ms, self.timers)
        self.calls = ClientCalls(self.state)
        self.transactions = self._open_transactions(options)
        requests = {
            **message_requests(
                self.pulls,
                SendBackHandler(self.state),
                MessageQueryHandler(self.state),
                OffsetHandler(self.state),
                self.delays,
                self.transactions,
            ),
            **client_requests(self.clients, self.calls, ReplyHandler(self.state, self.sends)),
            **admin_requests(self.state, self.delays, access),
        }
        fast = {c: self._announcing(h) for c, h in requests.items() if c not in PULL_CODES}
        self.remoting = self._serve({**requests, **fast})
        self.fast_remoting = self._serve(fast)
        self._codes = frozenset((*requests, *map(int, SEND_CODES)))
        check_complete(self._codes)
        self.upkeep = self._steps()
        if access is not None:
            access.watch(partial(self._refuse_pulls, access))

    def _refuse_pulls(self, access: Access, affected: Affected) -> None:
        """Refuse the pulls that wait although their accounts may not read any more."""

        def refusal(channel: Channel, request: Command) -> Command | None:
            return access.check(channel, request) if affected(request) else None

        self.pulls.suspended.refuse(refusal)

    def _steps(self) -> Upkeep:
        state, access = self.state, self.access

        def as_master(work: Callable[[], None]) -> Callable[[], None]:
            # Beside another master it would store them in a log that nobody reads any more.
            return lambda: None if state.is_slave or state.rival is not None else work()

        upkeep = Upkeep(
            Step("ending held pulls", lambda: self.pulls.suspended.expire(state.now_ms())),
            self.clients.upkeep,
            Step("taking statistics", lambda: state.counters.tick(state.now_ms()), STATISTICS_MS),
            Step("delivering delayed messages", as_master(self.delays.tick)),
            Step("delivering timed messages", as_master(self.timers.tick)),
            Step("checking transactions", as_master(self.transactions.tick)),
            Step("closing idle connections", self.remoting.tick),
            Step("closing idle connections", self.fast_remoting.tick),
            now_ms=state.now_ms,
        )
        if access is not None:
            upkeep.add(Step("reloading ACL files", lambda: access.tick(state.now_ms())))
        return upkeep

    def _open_transactions(self, options: RocketOptions) -> TransactionService:
        state = self.state
        return TransactionService(
            self.core,
            self.calls.check_transaction,
            CheckOptions(
                timeout_ms=options.transaction_timeout_ms,
                checks_max=options.transaction_checks_max,
                interval_ms=options.transaction_interval_ms,
            ),
            is_slave=lambda: self.state.is_slave,
            check_no_rival=state.check_no_rival,
            forbid=lambda channel, request, topic: state.forbid(channel, request, topic, PUB),
            schedule=self.timers.schedule,
            replicated=state.replicated,
        )

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that the main port answers."""
        return self._codes

    def next_ms(self) -> int | None:
        """When the next message or transaction is due by the clock of messages; None for never."""
        services = (self.delays, self.timers, self.transactions)
        return min((ms for one in services if (ms := one.next_ms()) is not None), default=None)

    def tick(self) -> None:
        """Run periodic work; call it every 100 ms or so."""
        self.upkeep.tick()

    async def save(self) -> None:
        """Write changed files; call it every few seconds, like `Core.save_positions`.

        Raises:
            StoreError: the disk is full or failed; the next call writes the files again.
        """
        self.delays.save()
        self.clients.save_filters()
        await self.core.files.flush()

    def close(self) -> None:
        """Stop serving. Submitted messages are answered when the core is closed."""
        self.pulls.suspended.close()
        self.delays.stop()
        self.timers.stop()
        self.transactions.stop()

    def closed(self) -> None:
        """Save for the last time; the core is closed, the store is still open."""
        self.delays.save()
        self.clients.save_filters()

    def _announcing(self, handler: Handler) -> Handler:
        """Make a handler's response wait for the name servers if the handler changed topics."""
        state = self.state

        def handle(channel: Channel, request: Command) -> Answer | Awaitable[Answer]:
            before = state.topics.version
            answer = handler(channel, request)
            if answer is None:
                return None
            if not isinstance(answer, Command):
                return finished(answer, before)
            announced = state.announced_since(before)
            return answer if announced is None else after(announced, answer)

        async def finished(pending: Awaitable[Answer], before: DataVersion) -> Answer:
            answer = await pending
            announced = state.announced_since(before)
            if announced is not None:
                await announced
            return answer

        async def after(announced: Awaitable[None], answer: Command) -> Answer:
            await announced
            return answer

        return handle

    def _serve(self, handlers: Mapping[int, Handler]) -> RemotingServer:
        return RemotingServer(
            handlers,
            closed=self._closed,
            check=None if self.access is None else self.access.check,
            batch_codes=[int(code) for code in SEND_CODES],
            batch=self.sends.batch,
            files=self.core.files,
            now_ms=self.state.now_ms,
        )

    def _closed(self, channel: Channel) -> None:
        self.pulls.suspended.closed(channel)
        self.clients.closed(channel)
