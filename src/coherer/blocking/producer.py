"""The producer of TubeMQ without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import overload

from coherer._client.engine.sender import Outcome
from coherer._client.tubemq.producer import Producer as AsyncProducer
from coherer.blocking.sending import BaseProducer
from coherer.message import Message, Receipt


class Producer(BaseProducer[AsyncProducer, Receipt]):
    """Sends messages. Made by `Client.producer`; use it with `with`, from any number of threads."""

    def send(self, message: Message) -> Receipt:
        """Send one message and wait for its receipt.

        Raises:
            UsageError: the message cannot be sent as it is.
            RefusedError: the broker refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        return self._send(message)

    @overload
    def submit(self, message: Message) -> Future[Receipt]: ...

    @overload
    def submit(self, message: Message, *, callback: Callable[[Outcome], object]) -> None: ...

    def submit(
        self, message: Message, *, callback: Callable[[Outcome], object] | None = None
    ) -> Future[Receipt] | None:
        """Send one message; waits only while the window is full or the topic is not published.

        Args:
            message: what to send.
            callback: gets the receipt or the error, in the loop's thread, instead of the future.

        Returns:
            A future of the receipt; None with a callback.
        """
        return self._submit(message, callback)
