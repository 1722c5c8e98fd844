"""Message trace of a producer (docs/protocol/rocketmq.md, section 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coherer._client.rocketmq.observers import Kind, StoredSend
from coherer._client.rocketmq.tracing import Tracer, record
from coherer._client.rocketmq.transactions import Verdict
from coherer._common import machine
from coherer._common.clock import wall_ms
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer.errors import CohererError
from coherer.message import Message

STATES: Final[Mapping[Verdict, str]] = {
    Verdict.COMMIT: "COMMIT_MESSAGE",
    Verdict.ROLLBACK: "ROLLBACK_MESSAGE",
    Verdict.UNKNOWN: "UNKNOW",
}
"""Java's names for the outcome of a transaction."""

_NOTHING: Final[Mapping[str, str]] = {}


class _TracedSend:
    """Traces one send."""

    __slots__ = ("_began_ms", "_group", "_kind", "_messages", "_ticks_s", "_tracer")

    def __init__(
        self, tracer: Tracer, messages: Sequence[Message], group: str, kind: Kind, began_ms: int
    ) -> None:
        self._tracer = tracer
        self._messages = messages
        self._group = group
        self._kind = kind
        self._began_ms = began_ms
        self._ticks_s = machine.ticks_ns() / 1e9

    @property
    def properties(self) -> Mapping[str, str]:
        """Adds nothing to the message."""
        return _NOTHING

    def stored(self, outcome: StoredSend) -> None:
        """A broker stored the message."""
        if not outcome.traced:
            return
        receipt = outcome.receipt()
        first = self._messages[0]
        keys = " ".join(first.keys)
        text = record(
            "Pub",
            self._began_ms,
            receipt.region or None,
            self._group,
            first.topic,
            receipt.unique_id,
            first.tag,
            keys or None,
            outcome.server,
            sum(len(message.body) for message in self._messages),
            int((machine.ticks_ns() / 1e9 - self._ticks_s) * 1000),
            int(self._kind),
            receipt.id,
            receipt.status == "SEND_OK",
        )
        self._tracer.add(text, (*receipt.unique_id.split(","), *first.keys))

    def failed(self, error: CohererError) -> None:
        """As in Java, only answered sends are traced."""
        del error


class ProducerTrace:
    """Traces the sends and transactions of a producer. An `Observer`.

    Args:
        tracer: sends the records; sends to its topic are not traced.
    """

    def __init__(self, tracer: Tracer, group: str) -> None:
        self._tracer = tracer
        self._group = group

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> _TracedSend | None:
        """See `Observer.begin`."""
        if messages[0].topic.startswith(self._tracer.topic):
            return None
        return _TracedSend(self._tracer, messages, group, kind, wall_ms())

    def ended(self, receipt: SendReceipt, verdict: Verdict, server: str) -> None:
        """Trace the end of a transaction."""
        text = transaction_record(
            region=receipt.region or None,
            group=self._group,
            topic=receipt.topic,
            unique_id=receipt.unique_id,
            server=server,
            transaction_id=receipt.transaction_id or receipt.unique_id,
            state=STATES[verdict],
        )
        self._tracer.add(text, (receipt.unique_id,))

    def checked(self, message: StoredMessage, verdict: Verdict, server: str) -> None:
        """Trace the answer to a transaction check."""
        text = transaction_record(
            region=None,
            group=self._group,
            topic=message.topic,
            unique_id=message.unique_id,
            server=server,
            transaction_id=message.unique_id,
            state=STATES[verdict],
            tag=message.tag,
            keys=message.keys,
            checked=True,
        )
        self._tracer.add(text, (message.unique_id, *message.keys))

    async def close(self) -> None:
        """Send the waiting records."""
        await self._tracer.close()


def transaction_record(
    *,
    region: str | None,
    group: str,
    topic: str,
    unique_id: str,
    server: str,
    transaction_id: str | None,
    state: str,
    tag: str | None = None,
    keys: Sequence[str] = (),
    checked: bool = False,
) -> str:
    """The record of the end of a transaction."""
    return record(
        "EndTransaction",
        wall_ms(),
        region,
        group,
        topic,
        unique_id,
        tag,
        " ".join(keys) or None,
        server,
        int(Kind.COMMIT),
        transaction_id,
        state,
        checked,
    )
