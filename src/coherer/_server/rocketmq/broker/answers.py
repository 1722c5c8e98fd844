"""The answers to the sends of one socket read."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Sequence
from contextlib import suppress

from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import ONEWAY, Command
from coherer._wire.rocketmq.sending import SendAnswers
from coherer.errors import CohererError, StoreError, StoreFullError, UsageError

OK = 0


class Replies:
    """What the answers of a broker have in common.

    Attributes:
        fields: the header of a refusal.
        encode: makes the frame of an answer.
        encode_usual: makes the pieces of the usual one.

    >>> Replies(RocketOptions()).id_text([4096, 4200])
    '7F00000100002A9F0000000000001000,7F00000100002A9F0000000000001068'
    """

    __slots__ = ("_host", "encode", "encode_usual", "fields")

    def __init__(self, options: RocketOptions) -> None:
        self.fields = {
            "MSG_REGION": options.region,
            "TRACE_ON": "true" if options.trace_on else "false",
        }
        answers = SendAnswers(
            options.region, trace_on=options.trace_on, store_host=options.store_host
        )
        self.encode = answers.encode
        self.encode_usual = answers.encode_usual
        self._host = options.store_host.hex().upper()

    def id_text(self, physical_offsets: Sequence[int]) -> str:
        """The offset ids of records, as an answer names them."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
        return self._host + offsets.hex(",", 8).upper().replace(",", f",{self._host}")


class Sent:
    """Gathers sends, has them stored together, and answers every one.

    When one of them made a topic since this object was made, the answers wait for the name servers.

    Args:
        state: the broker's.
        replies: makes the answers.
        channel: who waits for them.
        wait: whether the messages have to be safe first, where the broker offers that (6.11,
            6.12).
        unsaved: whether files have to be written first: those of topics that were made for them.
    """

    __slots__ = (
        "_before",
        "_channel",
        "_drafts",
        "_news",
        "_replies",
        "_sends",
        "_state",
        "_unsaved",
        "_wait",
    )

    def __init__(
        self,
        state: RocketState,
        replies: Replies,
        channel: Channel,
        *,
        wait: bool = True,
        unsaved: bool = False,
    ) -> None:
        self._state = state
        self._replies = replies
        self._channel = channel
        self._wait = wait
        self._before = state.topics.version
        self._news: Awaitable[None] | None = None
        self._unsaved = unsaved
        self._drafts: list[Draft | DraftBatch] = []
        self._sends: list[tuple[Command, int]] = []

    def add(self, request: Command, queue_id: int, draft: Draft | DraftBatch) -> None:
        """Take a send.

        Args:
            request: what is answered.
            queue_id: the queue that the answer names.
            draft: its message, or its messages.
        """
        self._drafts.append(draft)
        self._sends.append((request, queue_id))

    def hold(self, *, wait: bool, unsaved: bool) -> None:
        """What the answers wait for; see the arguments of the class."""
        self._wait, self._unsaved = wait, unsaved

    def submit(self) -> None:
        """Store what was taken."""
        if self._drafts:
            self._news = self._state.news(self._before)
            self._state.core.appender.submit(self._drafts, self._stored, wait_durable=False)

    def _stored(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
        news, self._news = self._news, None
        if news is not None:
            self._channel.later(self._announced(news, outcome, end_offset))
        elif isinstance(outcome, CohererError):
            code, remark = refusal_of(outcome)
            for request, _ in self._sends:
                self._channel.respond(request, code, remark, self._replies.fields)
        elif self._unsaved or (
            self._wait and (self._state.core.sync_flush or self._state.replication is not None)
        ):
            self._channel.later(self._safe(outcome, end_offset))
        else:
            self._answer(outcome, OK)

    async def _announced(
        self,
        news: Awaitable[None],
        outcome: Sequence[AppendResult] | CohererError,
        end_offset: int,
    ) -> None:
        await news
        self._stored(outcome, end_offset)

    async def _safe(self, placed: Sequence[AppendResult], end_offset: int) -> None:
        code = await self._state.safe(end_offset) if self._wait else OK
        if self._unsaved:
            with suppress(StoreError):  # the messages are stored; the file is written later
                await self._state.core.files.saved()
        self._answer(placed, code)

    def _answer(self, placed: Sequence[AppendResult], code: int) -> None:
        replies, encode_usual = self._replies, self._replies.encode_usual
        frames: list[bytes] = []
        for (request, queue_id), one in zip(self._sends, placed, strict=True):
            if request.flag & ONEWAY:
                continue
            offset, queue_offset = one.physical_offset, one.queue_offset
            if one.count == 1 and not code:
                frames += encode_usual(request.opaque, offset, queue_id, queue_offset)
            else:
                ids = replies.id_text(one.physical_offsets or [offset])
                frames.append(
                    replies.encode(request.opaque, ids, queue_id, queue_offset, code=code)
                )
        connection = self._channel.connection
        connection.write(b"".join(frames))
        connection.flush()


def refusal_of(error: CohererError) -> tuple[int, str]:
    """The code and the remark for messages that could not be stored (2.4.3)."""
    if isinstance(error, UsageError):
        return ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error.text}"
    if isinstance(error, StoreFullError):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error.text}"
    return ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR: {error.text}"
