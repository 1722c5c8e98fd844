"""Transactions: a message that others see only when the sender's own work is done (rocketmq 8.6).

Rules:

* First the message is stored as a half message, which nobody sees; then the local work is done;
  then the broker is told to commit or to roll back (37).
* A broker that has not heard of the end asks any producer of the group (39); its check function
  answers from what the local work left behind.
* Work that ends with an exception leaves the end open, as Java does: the exception may have come
  after the work took effect, and the check function knows.
* The end of a transaction is answered here (Java sends it one-way), so that `commit` returns when
  the broker has the message.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from msgspec import structs

from coherer._client.rocketmq.link import Handler, Link
from coherer._client.rocketmq.producer_options import Check, Verdict
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
"""The bits of the sys flag that make a message a half message."""


class Sender(Protocol):
    """The producer, as a transaction sees it."""

    async def send_half(self, message: Message) -> tuple[SendReceipt, Link]:
        """Send a half message."""
        ...

    async def end(self, receipt: SendReceipt, link: Link, verdict: Verdict) -> None:
        """Tell the broker what becomes of it."""
        ...


Ended = Callable[[StoredMessage, Verdict, str], None]
"""Told how a transaction ended that a broker had asked about, and the broker's address."""


class Transaction:
    """A message and the work that it belongs to. Made by `Producer.transaction`; use `async with`.

    At the end of the block the message is committed; after an exception its end is left to the
    check function. `commit` and `rollback` end it before.

    ```python
    async with producer.transaction(message) as transaction:
        await database.pay(order, transaction.id)
    ```

    Args:
        sender: the producer.
        message: what to send.

    Attributes:
        message: what is sent.
        receipt: of the half message, when it is stored.
        verdict: how it ended; unknown until then.
    """

    def __init__(self, sender: Sender, message: Message) -> None:
        self.message = message
        self.receipt: SendReceipt | None = None
        self.verdict = Verdict.UNKNOWN
        self._sender = sender
        self._link: Link | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Transaction {self.receipt and self.id}: {self.verdict.name.lower()}>"

    @property
    def id(self) -> str:
        """The message's unique id: the check function gets it as `message.unique_id`.

        Raises:
            UsageError: it has none before the half message is stored.
        """
        if self.receipt is None:
            raise UsageError(
                "The transaction has not begun.", hint="Use it in a `with` or `async with` block."
            )
        return self.receipt.unique_id

    async def begin(self) -> None:
        """Store the half message.

        Raises:
            RefusedError: the broker has the message, but not as safely as it is set to.
            CohererError: see `Producer.send`. The transaction has not begun.
        """
        if self.receipt is not None:
            raise UsageError("A transaction begins once.")
        receipt, self._link = await self._sender.send_half(self.message)
        self.receipt = receipt
        if receipt.status != "SEND_OK":
            await self.rollback()
            raise RefusedError(
                f"The half message is not safe ({receipt.status}); it has been rolled back.",
                topic=self.message.topic,
                hint="Is the broker's disk slow, or its slave away?",
            )

    async def commit(self) -> None:
        """Let consumers have the message.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function will be asked.
            RefusedError: the broker does not know the half message.
        """
        await self._end(Verdict.COMMIT)

    async def rollback(self) -> None:
        """Have the message thrown away.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function will be asked.
            RefusedError: the broker does not know the half message.
        """
        await self._end(Verdict.ROLLBACK)

    async def leave(self) -> None:
        """Leave the end to the check function."""
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
        if self._over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.leave()
        except CohererError as failure:  # the broker asks anyway; what went wrong before counts
            _log.info("A transaction is left without a word: %s", failure)

    async def _end(self, verdict: Verdict) -> None:
        if self.receipt is None or self._link is None or self._over:
            raise UsageError("The transaction has ended, or not begun.")
        self._over = True
        self.verdict = verdict
        await self._sender.end(self.receipt, self._link, verdict)


class Checks:
    """Answers brokers that ask about transactions.

    Args:
        on: registers the handler.
        namespace: is taken off the names that check functions see.
    """

    def __init__(self, on: Callable[[int, Handler], None], namespace: str) -> None:
        self._checks: dict[str, list[tuple[Check, Ended | None]]] = {}
        self._namespace = namespace
        on(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    def add(self, group: str, check: Check, ended: Ended | None = None) -> None:
        """Have `check` asked about transactions of a group, and `ended` told what it says."""
        self._checks.setdefault(group, []).append((check, ended))

    def remove(self, group: str, check: Check, ended: Ended | None = None) -> None:
        """Undo `add`."""
        found = self._checks.get(group, [])
        if (check, ended) in found:
            found.remove((check, ended))
        if not found:
            self._checks.pop(group, None)

    async def _asked(self, link: Link, request: Command) -> None:
        header = parse(CheckTransactionHeader, request.fields)
        messages = decode_messages(request.body)
        if not messages:
            raise ProtocolError("A broker asks about a message and does not send it.")
        message = messages[0]
        group = message.stored_properties.get("PGROUP", "")
        checks = self._checks.get(group)
        if not checks:
            _log.warning(
                "%s asks about a transaction of group %s, ours no more", link.server, group
            )
            return
        check, ended = checks[-1]
        verdict, remark = await self._judge(check, message)
        link.tell(
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
        )
        if ended is not None:
            ended(message, verdict, link.server)

    async def _judge(self, check: Check, message: StoredMessage) -> tuple[Verdict, str | None]:
        try:
            verdict = check(_named(message, self._namespace))
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception as error:  # noqa: BLE001 - it is theirs, and the broker asks again
            _log.exception("The check function of a transaction failed")
            return Verdict.UNKNOWN, f"checkLocalTransactionState Exception: {error}"
        return verdict, None


def _named(message: StoredMessage, namespace: str) -> StoredMessage:
    """The message with the topic that the user knows."""
    topic = names.without_namespace(namespace, message.topic)
    if topic == message.topic:
        return message
    return structs.replace(message, topic=topic)


def end_header(group: str, receipt: SendReceipt, verdict: Verdict) -> EndTransactionHeader:
    """What tells a broker how a transaction ends."""
    return EndTransactionHeader(
        group,
        receipt.offset,
        decode_offset_id(receipt.id).physical_offset,
        verdict.value,
        msg_id=receipt.unique_id,
        transaction_id=receipt.transaction_id or None,
    )
