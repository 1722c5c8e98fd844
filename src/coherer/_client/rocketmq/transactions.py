"""Transactions: messages that become visible when the sender's own work is done.

See docs/protocol/rocketmq.md, section 8.6.

* The message is stored as a half message, which consumers do not see. Then the local work is done,
  and then the producer tells the broker to commit or to roll back (37).
* A broker that does not know the outcome asks any producer of the group (39). Its check function
  answers from the state that the local work left behind.
* Work that raises an exception leaves the transaction open, as in Java: the work may have taken
  effect before the exception, and the check function knows.
* The producer waits for the answer to the end of a transaction (Java sends it one-way), so that
  `commit` returns when the broker has the message.
* If a broker asks about a transaction whose end was accepted, the producer repeats the end and does
  not call the check function: RocketMQ 5's Proxy accepts ends, but drops those that no broker has
  asked for.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Final, Self

from msgspec import structs

from coherer._client.engine.arguments import checked
from coherer._client.engine.tasks import is_order
from coherer._client.rocketmq.link import Handler, Link
from coherer._common.logs import Log
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.delivery import decode_messages
from coherer._wire.rocketmq.headers import CheckTransactionHeader, EndTransactionHeader, parse
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer.errors import CohererError, ProtocolError, RefusedError, UsageError
from coherer.message import Message

_log = Log(logging.getLogger(__name__))

PREPARED: Final = 4
"""The bit of the sys flag that makes a message a half message."""
ENDED_KEPT: Final = 10_000
"""The number of ended transactions that are remembered, about 2 MB. Brokers ask after 6 to 66 s."""


class Verdict(Enum):
    """The outcome of a transaction; the value is the protocol's number."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


Check = Callable[[StoredMessage], Verdict | Awaitable[Verdict]]
"""Called with the half message when a broker asks how its transaction ended."""


CheckObserver = Callable[[StoredMessage, Verdict, str], None]
"""Called with the outcome of a check, and the address of the broker that asked."""


SendHalf = Callable[[Message], Awaitable[tuple[SendReceipt, Link]]]
"""Sends a half message; returns its receipt and the connection to its broker."""

EndTransaction = Callable[[SendReceipt, Link, Verdict], Awaitable[None]]
"""Tells the broker that has the half message the outcome of the transaction."""


@checked
class Transaction:
    """A message and the local work it belongs to. Made by `Producer.transaction`; use `async with`.

    The end of the block commits the message. If the block raises an exception, the check function
    decides. `commit` and `rollback` end the transaction earlier.

    ```python
    async with producer.transaction(message) as transaction:
        await database.pay(order, transaction.id)
    ```

    Args:
        message: the message.
        send_half: sends the half message; returns its receipt and the connection to its broker.
        end: tells the broker the outcome.

    Attributes:
        message: the message.
        receipt: the receipt of the half message, once it is stored.
        verdict: the outcome; unknown until the end.
    """

    def __init__(self, message: Message, send_half: SendHalf, end: EndTransaction) -> None:
        self.message = message
        self.receipt: SendReceipt | None = None
        self.verdict = Verdict.UNKNOWN
        self._send_half = send_half
        self._tell_broker = end
        self._link: Link | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<Transaction {self.receipt and self.id}: {self.verdict.name.lower()}>"

    @property
    def id(self) -> str:
        """The message's unique id; the check function gets it as `message.unique_id`.

        Raises:
            UsageError: the half message is not stored yet.
        """
        if self.receipt is None:
            raise UsageError(
                "The transaction has not begun.", hint="Use it in a `with` or `async with` block."
            )
        return self.receipt.unique_id

    async def begin(self) -> None:
        """Store the half message.

        Raises:
            RefusedError: the broker stored the half message, but could not flush or replicate it.
                It was rolled back.
            CohererError: see `Producer.send`. The transaction has not begun.
        """
        if self.receipt is not None:
            raise UsageError("The transaction has begun already.")
        receipt, self._link = await self._send_half(self.message)
        self.receipt = receipt
        if receipt.status != "SEND_OK":
            await self.rollback()
            raise RefusedError(
                f"The half message is not safely stored ({receipt.status}); it was rolled back.",
                topic=self.message.topic,
                hint="Is the broker's disk slow, or is its slave down?",
            )

    async def commit(self) -> None:
        """Make the message visible to consumers.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function decides.
            RefusedError: the broker does not know the half message.
        """
        await self._end(Verdict.COMMIT)

    async def rollback(self) -> None:
        """Discard the message.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function decides.
            RefusedError: the broker does not know the half message.
        """
        await self._end(Verdict.ROLLBACK)

    async def leave(self) -> None:
        """Leave the decision to the check function."""
        await self._end(Verdict.UNKNOWN)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.leave()
        except CohererError as failure:  # the broker asks anyway; the block's exception propagates
            _log.info("The broker could not be asked to check a transaction: %s", failure)

    async def _end(self, verdict: Verdict) -> None:
        if self.receipt is None or self._link is None or self._ended:
            raise UsageError("The transaction has ended already, or has not begun.")
        self._ended = True
        self.verdict = verdict
        await self._tell_broker(self.receipt, self._link, verdict)


class TransactionChecks:
    """Answers brokers that ask how a transaction ended.

    Args:
        handle: registers a handler of servers' requests.
        namespace: removed from the topics that check functions see.
    """

    def __init__(self, handle: Callable[[int, Handler], None], namespace: str) -> None:
        self._checks: dict[str, list[tuple[Check, CheckObserver | None]]] = {}
        self._ended: dict[str, Verdict] = {}
        self._namespace = namespace
        handle(RequestCode.CHECK_TRANSACTION_STATE, self._check)

    def add(self, group: str, check: Check, observer: CheckObserver | None = None) -> None:
        """Call `check` about transactions of a group, and `observer` with its answers."""
        self._checks.setdefault(group, []).append((check, observer))

    def remove(self, group: str, check: Check, observer: CheckObserver | None = None) -> None:
        """Undo `add`."""
        found = self._checks.get(group, [])
        if (check, observer) in found:
            found.remove((check, observer))
        if not found:
            self._checks.pop(group, None)

    def ended(self, unique_id: str, verdict: Verdict) -> None:
        """Remember an accepted end, because a broker may still ask."""
        self._ended[unique_id] = verdict
        if len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

    async def _check(self, link: Link, request: Command) -> None:
        header = parse(CheckTransactionHeader, request.fields)
        messages = decode_messages(request.body)
        if not messages:
            raise ProtocolError("A transaction check contains no message.", server=link.server)
        message = messages[0]
        group = message.stored_properties.get("PGROUP", "")
        checks = self._checks.get(group)
        if not checks:
            _log.warning(
                "%s asks about a transaction of group %s, which has no producer here",
                link.server,
                group,
            )
            return
        check, observer = checks[-1]
        known = self._ended.get(message.unique_id or "")
        if known is not None:
            verdict, remark = known, None
        else:
            verdict, remark = await self._call(check, message)
        link.send_oneway(
            RequestCode.END_TRANSACTION,
            EndTransactionHeader(
                group,
                header.tran_state_table_offset,
                header.commit_log_offset,
                verdict.value,
                from_transaction_check=True,
                msg_id=message.unique_id or message.id,
                transaction_id=header.transaction_id,
            ).fields(),
            remark=remark,
            broker=header.bname or "",
        )
        if observer is not None:
            observer(message, verdict, link.server)

    async def _call(self, check: Check, message: StoredMessage) -> tuple[Verdict, str | None]:
        try:
            returned = check(_without_namespace(message, self._namespace))
            verdict = _verdict_of(await returned if inspect.isawaitable(returned) else returned)
        except BaseException as error:  # raised by the application; the broker asks again
            if is_order(error):
                raise
            _log.exception("The check function of a transaction failed")
            return Verdict.UNKNOWN, f"checkLocalTransactionState Exception: {error}"
        return verdict, None


def _verdict_of(returned: object) -> Verdict:
    if isinstance(returned, Verdict):
        return returned
    raise UsageError(f"The check function returned {returned!r:.100}, not a Verdict.")


def _without_namespace(message: StoredMessage, namespace: str) -> StoredMessage:
    """The message with its topic as the application knows it."""
    topic = names.without_namespace(namespace, message.topic)
    if topic == message.topic:
        return message
    return structs.replace(message, topic=topic)


def end_header(group: str, receipt: SendReceipt, verdict: Verdict) -> EndTransactionHeader:
    """The header of the request that ends a transaction."""
    return EndTransactionHeader(
        group,
        receipt.offset,
        decode_offset_id(receipt.id).physical_offset,
        verdict.value,
        msg_id=receipt.unique_id,
        transaction_id=receipt.transaction_id or None,
    )
