"""The fetch loop of one queue (docs/protocol/rocketmq.md, section 8.10).

A `FetchLoop` has at most one pull in flight. It is a `PendingRequest` of the link: an answer is
processed and the next pull is sent without a task in between.

| answer | what follows |
|---|---|
| messages | `FetchHandler.arrived`, and the next pull at once |
| no new messages, or no match | `FetchHandler.nothing`, and the next pull at once; after |
| | `STUCK_MS` if it would be the same pull, as from a slave that lags or must not be read |
| the offset is out of range | `FetchHandler.moved`, and the next pull at once |
| a refusal, or no answer | `FetchHandler.failed`; the next pull after the pause that it returns |

With `exact`, only the master may say that there are no messages or that the offset is out of range:
if a slave says so, the same pull and all following ones go to the master.

Before each pull the handler returns the offset, or None to stop until `fetch_more`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc, no_master
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.routing import MASTER
from coherer._common.logs import Log
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import (
    COMMIT,
    FOUND,
    NOTHING_MATCHED,
    OFFSET_MOVED,
    PULL_CODES,
    PullEncoder,
    PullResponse,
    parse_pull_response,
)
from coherer.errors import ClosedError, CohererError, ProtocolError, UnavailableError

_log = Log(logging.getLogger(__name__))

SLACK_MS: Final = 15_000
"""A pull's timeout is the time that the broker may hold it, plus this (Java: 30 s, 15 s)."""

STUCK_MS: Final = 200
"""The pause before the same pull is sent again after an immediate "pull again"."""

LOOK_UP_MS: Final = 2_000
"""Routes are looked up once in this time while a slave has the address of the master."""


class FetchRequest(NamedTuple):
    """The next pull of a queue.

    Args:
        offset: where to begin.
        flags: see `coherer._wire.rocketmq.pulling`.
        commit: the group's offset to store, for a master; None to store nothing.
        max_messages: a limit for this pull; 0 for the default.
    """

    offset: int
    flags: int
    commit: int | None = None
    max_messages: int = 0


class FetchHandler(Protocol):
    """Decides about pulls and processes their answers."""

    def next_fetch(self) -> FetchRequest | None:
        """The next pull; None to stop until `fetch_more`."""
        ...

    def arrived(self, answer: PullResponse) -> None:
        """Messages arrived."""
        ...

    def nothing(self, answer: PullResponse) -> None:
        """There are no messages; the next pull begins at `answer.next_offset`."""
        ...

    def moved(self, answer: PullResponse) -> None:
        """The offset was out of range; `answer.next_offset` is in range."""
        ...

    def failed(self, error: CohererError) -> int | None:
        """The pull failed; returns the pause in ms, or None to stop for good."""
        ...


class FetchLoop:
    """Pulls from one queue.

    Args:
        encoder: encodes the pulls.
        handler: decides about pulls and processes their answers.
        timeout_ms: of each pull.
        exact: whether a slave's missing messages must be read from the master.
        masters_only: whether to ignore slaves from the beginning.

    Attributes:
        deadline: of the pull in flight, by the loop's clock.
        broker: the id of the broker that is pulled from.
    """

    def __init__(
        self,
        rpc: BrokerRpc,
        queue: Queue,
        encoder: PullEncoder,
        handler: FetchHandler,
        timeout_ms: int,
        *,
        exact: bool = False,
        masters_only: bool = False,
    ) -> None:
        self.encoder = encoder
        self.deadline = 0.0
        self.broker = MASTER
        self._rpc = rpc
        self._queue = queue
        self._handler = handler
        self._timeout_s = timeout_ms / 1000
        self._exact = exact
        self._masters_only = masters_only
        self._must_look_up = False  # the master has moved
        self._next_s = 0.0  # not before this time
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._offset = -1  # of the last pull
        self._busy = False  # a pull is in flight, or is about to be sent
        self._stopped = False
        self._pause: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "in flight" if self._busy else "idle"
        return f"<FetchLoop of {self._queue}, {state}>"

    @property
    def busy(self) -> bool:
        """Whether a pull is in flight, or will be tried again."""
        return self._busy

    def fetch_more(self) -> None:
        """Pull, if the handler wants to and no pull is in flight."""
        if self._busy or self._stopped:
            return
        link = self._link
        if link is None or link.connection.closed:
            self._busy = True
            self._connecting = self._loop.create_task(self._connect(), name="find a broker")
            return
        request = self._handler.next_fetch()
        if request is not None:
            self._send(link, request)

    def stop(self) -> None:
        """Stop pulling; the answer to a pull in flight is ignored."""
        self._stopped = True
        if self._pause is not None:
            self._pause.cancel()
        if self._connecting is not None:
            self._connecting.cancel()

    # -- called by the link

    def answered(self, answer: Command) -> None:
        """The broker answered."""
        if self._stopped:
            return
        try:
            stuck = self._process(answer)
        except CohererError as error:
            self.failed(error)
            return
        except Exception as error:  # noqa: BLE001 - the loop must go on
            _log.exception("Unhandled error while pulling from %s", self._queue)
            text = f"Processing a pull's answer failed: {error!r}."
            topic, number = self._queue.topic, self._queue.id
            self.failed(ProtocolError(text, topic=topic, partition=number))
            return
        if stuck:
            self._pause = self._loop.call_later(STUCK_MS / 1000, self._continue)
        else:
            self._continue()

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        if self._stopped:
            return
        if isinstance(error, UnavailableError):
            self._link = None  # the broker may have moved
        pause_ms = self._handler.failed(error)
        if pause_ms is None:
            self.stop()
        else:
            self._pause = self._loop.call_later(pause_ms / 1000, self._continue)

    def _send(self, link: Link, request: FetchRequest) -> None:
        self._busy = True
        self.deadline = self._loop.time() + self._timeout_s
        offset, flags, commit, limit = request
        self._offset = offset
        if commit is None:
            commit = 0
        else:
            flags |= COMMIT
        signer = self._rpc.instance.pool.handlers.signer
        if signer is None:
            opaque = link.session.next_opaque()
            frame = self.encoder.frame(opaque, offset, flags, commit, limit)
        else:
            fields = self.encoder.fields(offset, flags, commit, limit or self.encoder.max_messages)
            opaque, frame = link.session.request(RequestCode.PULL_MESSAGE, signer(fields, b""))
        link.send_frame(opaque, self, frame)

    def _process(self, command: Command) -> bool:
        """Process an answer; returns whether the next pull would be the same."""
        if command.code not in PULL_CODES:
            link = self._link
            raise codes.refused(
                command.code,
                command.remark,
                server=link.server if link is not None else None,
                topic=self._queue.topic,
                partition=self._queue.id,
            )
        answer = parse_pull_response(command)
        is_from_slave = answer.is_from_slave or self.broker != MASTER
        if self._exact and is_from_slave and answer.code != FOUND:
            if self._masters_only and self._link is not None:
                self._must_look_up = True
                raise no_master(self._link.server, self._queue)
            self._masters_only = True
            self._link = None
            return False
        if answer.is_from_slave and self.broker == MASTER and self._loop.time() >= self._next_s:
            # Its address was that of the master. It would keep the offsets of groups to itself.
            self._next_s = self._loop.time() + LOOK_UP_MS / 1000
            self._must_look_up = True
            self._link = None
        if answer.suggested != self.broker and not self._masters_only:
            self.broker = answer.suggested
            self._link = None
        if answer.code == FOUND:
            self._handler.arrived(answer)
        elif answer.code == OFFSET_MOVED:
            self._handler.moved(answer)
        else:
            self._handler.nothing(answer)
        return answer.code == NOTHING_MATCHED and answer.next_offset == self._offset

    def _continue(self) -> None:
        self._pause = None
        self._busy = False
        self.fetch_more()

    async def _connect(self) -> None:
        try:
            queue = self._queue
            if self._must_look_up:
                self._must_look_up = False
                await self._rpc.instance.routes.route(queue.topic, fresh=True)
            if self._masters_only:
                self._link = await self._rpc.master(queue.broker, queue.topic)
                self.broker = MASTER
            else:
                self._link, self.broker = await self._rpc.link_for_reading(
                    queue.broker, self.broker, queue.topic
                )
        except ClosedError:
            self.stop()
            return
        except CohererError as error:
            self.failed(error)
            return
        self._busy = False
        self.fetch_more()
