"""Pulling from one queue, again and again (8.10).

A `Puller` has one request under way at most. It is a `PendingRequest`: an answer is dealt with,
and the next request made, without a task in between.

| what comes | what follows |
|---|---|
| messages | `Source.arrived`, and the next pull at once |
| nothing new, or nothing that matches | `Source.nothing`, and the next pull at once; after |
| | `STUCK_MS` when it would be the same pull: a slave that is behind, or may not be read, says so |
| the offset is outside of the queue | `Source.moved`, and the next pull at once |
| a refusal, or no answer | `Source.failed`; after the pause that it returns, the next pull |

Before each pull the source says where, or that there should be none now; then `kick` goes on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.routes import MASTER
from coherer._common.logs import Log
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import (
    ANSWERS,
    COMMIT,
    FOUND,
    NOTHING_MATCHED,
    OFFSET_MOVED,
    PullAnswer,
    PullEncoder,
    pull_answer,
)
from coherer.errors import ClosedError, CohererError, ProtocolError, UnavailableError

_log = Log(logging.getLogger(__name__))

SLACK_MS: Final = 15_000
"""How much longer than it may hold a pull a broker has to answer (Java: 30 s, of which 15 s)."""


STUCK_MS: Final = 200
"""Before the pull that was just answered at once with "again" is sent again."""


class Wish(NamedTuple):
    """A pull that a source wants.

    Args:
        offset: where to begin.
        flags: see `coherer._wire.rocketmq.pulling`.
        commit: where the group is, for a master; None to say nothing about that.
        max_messages: another limit than usual; 0 for the usual one.
    """

    offset: int
    flags: int
    commit: int | None = None
    max_messages: int = 0


class Source(Protocol):
    """On whose behalf is pulled."""

    def wants(self) -> Wish | None:
        """The next pull; None when there should be none until `kick`."""
        ...

    def arrived(self, answer: PullAnswer) -> None:
        """There are messages."""
        ...

    def nothing(self, answer: PullAnswer) -> None:
        """There are none; the next pull begins at `answer.next_offset`."""
        ...

    def moved(self, answer: PullAnswer) -> None:
        """The offset was outside of the queue; `answer.next_offset` is inside."""
        ...

    def failed(self, error: CohererError) -> int | None:
        """It did not work; returns how long to rest in ms, None to stop for good."""
        ...


class Puller:
    """Pulls from one queue.

    Args:
        door: the way to brokers.
        queue: which queue.
        encoder: makes the requests.
        source: on whose behalf.
        timeout_ms: how long a request waits for its answer.

    Attributes:
        deadline: of the request under way, by the loop's clock.
        broker: the id of the broker that is asked.
    """

    def __init__(
        self, door: Door, queue: Queue, encoder: PullEncoder, source: Source, timeout_ms: int
    ) -> None:
        self.encoder = encoder
        self.deadline = 0.0
        self.broker = MASTER
        self._door = door
        self._queue = queue
        self._source = source
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._offset = -1  # of the last pull
        self._busy = False  # a request is under way, or about to be
        self._stopped = False
        self._rest: asyncio.TimerHandle | None = None
        self._finding: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "under way" if self._busy else "at rest"
        return f"<Puller of {self._queue}, {state}>"

    @property
    def busy(self) -> bool:
        """Whether a pull is under way, or will be tried again."""
        return self._busy

    def kick(self) -> None:
        """Pull, if the source wants to and no pull is under way."""
        if self._busy or self._stopped:
            return
        link = self._link
        if link is None or link.connection.closed:
            self._busy = True
            self._finding = self._loop.create_task(self._find(), name="find a broker")
            return
        wish = self._source.wants()
        if wish is not None:
            self._send(link, wish)

    def stop(self) -> None:
        """Pull no more; an answer that is still to come is ignored."""
        self._stopped = True
        if self._rest is not None:
            self._rest.cancel()
        if self._finding is not None:
            self._finding.cancel()

    # -- what the link calls

    def answered(self, answer: Command) -> None:
        """The broker answered."""
        if self._stopped:
            return
        try:
            stuck = self._take(answer)
        except CohererError as error:
            self.failed(error)
            return
        except Exception as error:  # noqa: BLE001 - a queue must not fall silent for good
            _log.exception("Pulling from %s failed", self._queue)
            self.failed(ProtocolError(f"The answer could not be dealt with: {error!r}."))
            return
        if stuck:
            self._rest = self._loop.call_later(STUCK_MS / 1000, self._rested)
        else:
            self._rested()

    def failed(self, error: CohererError) -> None:
        """There will be no answer."""
        if self._stopped:
            return
        if isinstance(error, UnavailableError):
            self._link = None  # look it up again: the broker may have moved
        pause_ms = self._source.failed(error)
        if pause_ms is None:
            self.stop()
        else:
            self._rest = self._loop.call_later(pause_ms / 1000, self._rested)

    # -- inside

    def _send(self, link: Link, wish: Wish) -> None:
        self._busy = True
        self.deadline = self._loop.time() + self._timeout_s
        offset, flags, commit, limit = wish
        self._offset = offset
        if commit is None:
            commit = 0
        else:
            flags |= COMMIT
        signer = self._door.instance.pool.desk.signer
        if signer is None:
            opaque = link.session.next_opaque()
            frame = self.encoder.frame(opaque, offset, flags, commit, limit)
        else:
            fields = self.encoder.fields(offset, flags, commit, limit or self.encoder.max_messages)
            opaque, frame = link.session.request(RequestCode.PULL_MESSAGE, signer(fields, b""))
        link.expect(opaque, self)
        link.connection.write(frame)

    def _take(self, command: Command) -> bool:
        """Deal with an answer; whether it brought us nowhere."""
        if command.code not in ANSWERS:
            link = self._link
            raise codes.refused(
                command.code,
                command.remark,
                server=link.server if link is not None else None,
                topic=self._queue.topic,
                partition=self._queue.id,
            )
        answer = pull_answer(command)
        if answer.suggested != self.broker:
            self.broker = answer.suggested
            self._link = None
        if answer.code == FOUND:
            self._source.arrived(answer)
        elif answer.code == OFFSET_MOVED:
            self._source.moved(answer)
        else:
            self._source.nothing(answer)
        return answer.code == NOTHING_MATCHED and answer.next_offset == self._offset

    def _rested(self) -> None:
        self._rest = None
        self._busy = False
        self.kick()

    async def _find(self) -> None:
        try:
            queue = self._queue
            self._link, self.broker = await self._door.reading(
                queue.broker, self.broker, queue.topic
            )
        except ClosedError:
            self.stop()
            return
        except CohererError as error:
            self.failed(error)
            return
        self._busy = False
        self.kick()
