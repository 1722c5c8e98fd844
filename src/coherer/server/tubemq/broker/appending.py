"""The sends of a loop turn are stored together and answered together.

`Appender` collects the drafts of all connections during a turn of the loop. At the turn's end, or
as soon as there are many, they become one `Store.append`, which is one write to the log; then every
connection gets its answers in one write, and the consumers that wait are woken. (Many, not all: a
turn can bring megabytes, and what has left the processor's cache costs half as much again.)

Where acknowledged means "on the disk", the answers wait for `fsync`. It runs in a thread, one at a
time, for all who wait when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coherer import limits
from coherer.errors import CohererError, StoreError, StoreFullError
from coherer.net import Connection
from coherer.server.tubemq.broker.replies import send_replies
from coherer.server.tubemq.broker.state import BrokerState
from coherer.store import Draft
from coherer.tubemq import messages as pb
from coherer.tubemq.codes import ResultCode
from coherer.tubemq.envelope import answer_head
from coherer.tubemq.frame import encode_frame
from coherer.tubemq.methods import SEND_MESSAGE

T = TypeVar("T")

_log = logging.getLogger(__name__)

_Sender = tuple[Connection | None, list[int]]


class Flusher:
    """Makes the store durable in a thread of its own, one flush at a time."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._pool = ThreadPoolExecutor(1, "coherer-flush")

    async def flush(self) -> int:
        """Flush; returns the offset up to which the log is durable now.

        Raises:
            StoreError: the disk failed. The broker takes no sends any more: after a failed
                fsync the system may have dropped what it could not write, and would not say so.
        """
        try:
            return await self.run(self._state.store.flush)
        except StoreError as error:
            if not self._state.write_failed:
                _log.error("The disk failed, no more sends are taken until a restart: %s", error)
                self._state.write_failed = True
                self._state.changed()
            raise

    async def tick(self) -> None:
        """Flush what is due: call it more often than the flush interval.

        Raises:
            StoreError: the disk failed.
        """
        await self.run(self._state.store.tick)

    async def run(self, action: Callable[[], T]) -> T:
        """Run something in the thread.

        Raises:
            StoreError: the disk failed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()


class Appender:
    """Collects, stores, answers.

    Args:
        state: the broker's.
        flusher: makes the store durable, where answers wait for that.
        arrived: told which partitions got messages.
    """

    def __init__(
        self, state: BrokerState, flusher: Flusher, arrived: Callable[[Sequence[Draft]], None]
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._arrived = arrived
        self._drafts: list[Draft] = []
        self._senders: list[_Sender] = []
        self._unsynced: deque[_Unsynced] = deque()
        self._syncing: asyncio.Task[None] | None = None

    def submit(
        self, connection: Connection | None, serials: list[int], drafts: list[Draft]
    ) -> None:
        """Take the sends of one socket read; `serials` number the answers.

        Without a connection nobody waits for them.
        """
        if not self._drafts:
            asyncio.get_running_loop().call_soon(self._append)
        self._drafts += drafts
        self._senders.append((connection, serials))
        if len(self._drafts) >= limits.APPEND_AT_ONCE:
            self._append()

    async def close(self) -> None:
        """Wait until everything that was submitted is answered."""
        self._append()
        if self._syncing is not None:
            await self._syncing

    def _append(self) -> None:
        drafts, senders = self._drafts, self._senders
        if not drafts:
            return
        self._drafts, self._senders = [], []
        state = self._state
        try:
            appended = state.store.append(drafts)
        except CohererError as error:
            self._refuse(senders, error)
            return
        except Exception as error:  # noqa: BLE001 - nobody is left waiting for an answer
            _log.exception("An error of ours")
            self._refuse(senders, StoreError(f"{type(error).__name__} in the store."))
            return
        now_ms, first_id = state.now_ms(), state.first_id
        begin = 0
        for connection, serials in senders:
            end = begin + len(serials)
            if connection is None:
                begin = end
                continue
            frames = send_replies(serials, appended[begin:end], first_id, now_ms)
            begin = end
            if state.options.sync_flush:
                self._unsynced.append(
                    _Unsynced(state.store.end_offset, connection, serials, frames)
                )
            else:
                connection.write(frames)
                connection.flush()
        if self._unsynced and self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())
        self._arrived(drafts)

    def _refuse(self, senders: list[_Sender], error: CohererError) -> None:
        if isinstance(error, StoreFullError):
            code, text = ResultCode.SERVER_RECEIVE_OVERFLOW, f"The broker has no room: {error}"
        else:
            code, text = ResultCode.INTERNAL_SERVER_ERROR, f"The broker could not store it: {error}"
        _log.error("%d sends refused. %s", sum(len(serials) for _, serials in senders), text)
        for connection, serials in senders:
            if connection is None:
                continue
            connection.write_many(refuse_send(serial, code, text) for serial in serials)

    async def _sync(self) -> None:
        waiting = self._unsynced
        try:
            while waiting:
                durable = await self._flusher.flush()
                while waiting and waiting[0].end_offset <= durable:
                    done = waiting.popleft()
                    done.connection.write(done.frames)
        except CohererError as error:
            failed: list[_Sender] = [(entry.connection, entry.serials) for entry in waiting]
            waiting.clear()
            self._refuse(failed, error)
        finally:
            self._syncing = None


class _Unsynced:
    """Answers that wait for the disk."""

    __slots__ = ("connection", "end_offset", "frames", "serials")

    def __init__(
        self, end_offset: int, connection: Connection, serials: list[int], frames: bytes
    ) -> None:
        self.end_offset = end_offset
        self.connection = connection
        self.serials = serials
        self.frames = frames


def refuse_send(serial: int, code: ResultCode, text: str) -> bytes:
    """The frame that refuses a send."""
    answer = pb.SendMessageResponseB2P(success=False, errCode=code, errMsg=text)
    body = answer.SerializeToString()
    return encode_frame(serial, answer_head(SEND_MESSAGE, len(body)) + body)
