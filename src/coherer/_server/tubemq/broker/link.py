"""A broker's tie to its master: registration, heartbeats, and never giving up (7.8.1, 7.8.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from coherer import _net as net
from coherer._common.logs import Log
from coherer._server.tubemq.broker.configuration import Configuration
from coherer._server.tubemq.broker.state import BrokerState
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode, refused
from coherer._wire.tubemq.session import ClientSession, Response
from coherer.errors import (
    CohererError,
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
)

_log = Log(logging.getLogger(__name__))

SETTLE_ROUNDS = 12
"""Heartbeats that follow one another while the configuration is being exchanged."""


class RemoteMasters:
    """Masters behind sockets, of which one is active: the next is asked when one does not serve.

    Args:
        addresses: host and port of each.
        timeout_ms: for one answer.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], timeout_ms: int = 10_000) -> None:
        self._addresses = sorted(addresses)
        self._timeout_ms = timeout_ms
        self._current = 0
        self._wire: _Wire | None = None

    async def ask(self, method: int, message: Message) -> Message:
        """Ask and wait for the answer.

        Raises:
            CohererError: no master answered.
        """
        last: CohererError | None = None
        for _ in self._addresses:
            host, port = self._addresses[self._current]
            try:
                if self._wire is None or self._wire.connection.closed:
                    self._wire = await net.dial(host, port, _Wire)
                return await self._wire.ask(method, message, self._timeout_ms)
            except (UnavailableError, RefusedError, ProtocolError) as error:
                last = error
                self.close()
                self._current = (self._current + 1) % len(self._addresses)
        raise last or UnavailableError("There is no master to ask.")

    def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.connection.close()
            self._wire = None


class _Wire:
    """One connection to a master."""

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self._session = ClientSession()
        self._answers: dict[int, asyncio.Future[Message]] = {}

    async def ask(self, method: int, message: Message, timeout_ms: int) -> Message:
        serial, frame = self._session.request(method, message, timeout_ms)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[serial] = answer
        self.connection.write(frame)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The master did not answer within {timeout_ms} ms.", server=self.connection.peer
            ) from None
        finally:
            self._answers.pop(serial, None)

    def received(self, data: bytes) -> None:
        for answer in self._session.receive(data):
            waiting = self._answers.get(answer.serial)
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, Response):
                try:
                    row = methods.METHODS[answer.method]
                    waiting.set_result(methods.parse(row.response, answer.body))
                except (KeyError, ProtocolError) as error:
                    waiting.set_exception(ProtocolError(f"An unreadable answer: {error}."))
            else:
                waiting.set_exception(answer.error(self.connection.peer))

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the same to us
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(
                    DisconnectedError("The master is gone.", server=self.connection.peer)
                )


class Registration:
    """What a broker and its master say to each other, without the way they say it.

    Args:
        state: the broker's.
        configuration: what is reported and applied.
        certificate: makes the authentication of a request, where the master wants one.
    """

    def __init__(
        self,
        state: BrokerState,
        configuration: Configuration,
        certificate: Callable[[], pb.MasterCertificateInfo] | None = None,
    ) -> None:
        self._state = state
        self._configuration = configuration
        self._certificate = certificate
        self._registered = False
        self._told = False
        self._trouble = ""

    def request(self) -> tuple[int, Message]:
        """What to say next: method and message."""
        if not self._registered:
            registration = self._configuration.registration()
            self._sign(registration)
            return methods.BROKER_REGISTER, registration
        heartbeat = self._configuration.heartbeat()
        self._told = heartbeat.takeConfInfo or heartbeat.takeRemovedTopicInfo
        self._sign(heartbeat)
        return methods.BROKER_HEARTBEAT, heartbeat

    def answered(self, answer: Message) -> bool:
        """Take the answer. Returns whether there is more to say at once.

        Raises:
            RefusedError: the master does not want this broker.
            ProtocolError: the answer is none.
        """
        if isinstance(answer, pb.RegisterResponseM2B):
            more = self._register_answered(answer)
        elif isinstance(answer, pb.HeartResponseM2B):
            more = self._heartbeat_answered(answer)
        else:
            raise ProtocolError(f"The master answered with {type(answer).__name__}.")
        if self._trouble and self._registered:
            self._trouble = ""
            _log.info("A master has this broker again.")
        if not more and not self._state.serving:
            self._state.serving = True
            self._state.changed()
            return True
        return more

    def farewell(self) -> tuple[int, Message] | None:
        """What to say at the end, if anything."""
        if not self._registered:
            return None
        self._registered = False
        request = pb.CloseRequestB2M(brokerId=str(self._state.options.broker_id))
        self._sign(request)
        return methods.BROKER_CLOSE, request

    def failed(self, error: CohererError) -> None:
        """No master has answered, or it refused."""
        self._state.access.in_contact = False
        self._trouble = str(error)
        _log.warning("No master has this broker now, trying on: %s", error)

    def _register_answered(self, answer: pb.RegisterResponseM2B) -> bool:
        if not answer.success:
            raise refused(answer.errCode, f"The master does not take this broker: {answer.errMsg}")
        self._configuration.registered(answer)
        self._registered = True
        return True

    def _heartbeat_answered(self, answer: pb.HeartResponseM2B) -> bool:
        if answer.errCode == ResultCode.HB_NO_NODE:
            _log.info("The master wants this broker to register again: %s", answer.errMsg)
            self._registered = False
            return True
        if not answer.success:
            raise refused(answer.errCode, f"The master refuses our heartbeat: {answer.errMsg}")
        self._configuration.heard(answer)
        return self._configuration.unreported or self._told

    def _sign(
        self, request: pb.RegisterRequestB2M | pb.HeartRequestB2M | pb.CloseRequestB2M
    ) -> None:
        if self._certificate is not None:
            request.authInfo.CopyFrom(self._certificate())


class EmbeddedLink:
    """The tie to a master in the same process: a change of its catalog is taken at once.

    Args:
        registration: what is said.
        handle: the master's `handle`.
        host: the address that the broker is seen from.
    """

    def __init__(
        self,
        registration: Registration,
        handle: Callable[[int, Message, str, bool], Message],
        host: str,
    ) -> None:
        self._registration = registration
        self._handle = handle
        self._host = host
        self._busy = False
        self._again = False

    def sync(self) -> None:
        """Exchange heartbeats until both sides hold the same configuration.

        It may be called while the master handles a request, ours too: then it is done after.
        """
        if self._busy:
            self._again = True
            return
        self._busy = True
        try:
            for _ in range(SETTLE_ROUNDS):
                self._again = False
                method, request = self._registration.request()
                answer = self._handle(method, request, self._host, False)
                if not self._registration.answered(answer) and not self._again:
                    return
        except CohererError as error:
            self._registration.failed(error)
        finally:
            self._busy = False

    def close(self) -> None:
        """Say good-bye to the master."""
        farewell = self._registration.farewell()
        try:
            if farewell is not None:
                self._handle(*farewell, self._host, False)
        except CohererError as error:
            _log.warning("The master did not hear our good-bye: %s", error)


class RemoteLink:
    """The tie to masters behind sockets.

    Args:
        registration: what is said.
        masters: whom to ask.
        heartbeat_ms: time between heartbeats; they come quicker while there is news.
        retry_ms: time between tries while no master accepts the broker.

    Attributes:
        ready: set when a master has accepted the broker.
    """

    def __init__(
        self,
        registration: Registration,
        masters: RemoteMasters,
        *,
        heartbeat_ms: int = 1_000,
        retry_ms: int = 1_000,
    ) -> None:
        self._registration = registration
        self._masters = masters
        self._heartbeat_s = heartbeat_ms / 1000
        self._retry_s = retry_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()

    def start(self) -> None:
        """Register and keep registered, in the background, for ever."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Say good-bye to the master."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        farewell = self._registration.farewell()
        try:
            if farewell is not None:
                await self._masters.ask(*farewell)
        except CohererError as error:
            _log.warning("The master did not hear our good-bye: %s", error)
        finally:
            self._masters.close()

    async def _run(self) -> None:
        while True:
            try:
                for _ in range(SETTLE_ROUNDS):
                    answer = await self._masters.ask(*self._registration.request())
                    if not self._registration.answered(answer):
                        self.ready.set()
                        break
            except CohererError as error:
                self._registration.failed(error)
                await asyncio.sleep(self._retry_s)
            else:
                await asyncio.sleep(self._heartbeat_s)
