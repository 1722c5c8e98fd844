"""The sockets of a master: service 1 of the protocol."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from coherer._common.logs import Log
from coherer._net import Connection
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import StandbyError
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import JAVA_EXCEPTION, STANDBY, Request, ServerSession
from coherer.errors import ProtocolError, StoreError

_log = Log(logging.getLogger(__name__))


class MasterService:
    """Gives a `Master` to the network: `net.listen(host, port, MasterService(master).make)`.

    Args:
        master: who answers.
        files: writes files; a request that has one written is answered when it is on the disk.
    """

    def __init__(self, master: Master, files: DeferredSaver | None = None) -> None:
        self._master = master
        self._files = files

    def make(self, connection: Connection) -> _Visitor:
        """Serves a connection."""
        return _Visitor(self._master, connection, self._files)


class _Visitor:
    """One connection to the master."""

    def __init__(self, master: Master, connection: Connection, files: DeferredSaver | None) -> None:
        self._master = master
        self._files = files
        self._late: set[asyncio.Task[None]] = set()
        self._connection = connection
        self._session = ServerSession()

    def received(self, data: bytes) -> None:
        """One socket read."""
        requests, answers = self._session.receive(data)
        self._connection.keeps(self._session.unfinished)
        self._connection.write_many(answers)
        for request in requests:
            before = self._turn
            answer = self._answer(request)
            if request.timeout_ms <= 0:
                continue
            if self._turn == before:
                self._connection.write(answer)
            else:
                late = asyncio.get_running_loop().create_task(self._answer_late(answer))
                self._late.add(late)
                late.add_done_callback(self._late.discard)

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the same to us
        """Nothing ends with a connection: who is there is decided by heartbeats."""
        for late in self._late:
            late.cancel()

    @property
    def _turn(self) -> int:
        return 0 if self._files is None else self._files.changes

    async def _answer_late(self, answer: bytes) -> None:
        if self._files is not None:
            with suppress(StoreError):  # a full disk is no reason to refuse heartbeats
                await self._files.flush()
        self._connection.write(answer)

    def _answer(self, request: Request) -> bytes:
        session = self._session
        if request.service != methods.MASTER:
            text = f"No service {request.service} found on the server"
            return session.error(request, JAVA_EXCEPTION, text)
        try:
            message = methods.parse(methods.METHODS[request.method].request, request.body)
        except ProtocolError as error:
            return session.fatal(request, JAVA_EXCEPTION, error.text)
        connection = self._connection
        try:
            answer = self._master.handle(
                request.method, message, connection.peer_host, connection.secure
            )
        except StandbyError as error:
            return session.error(request, STANDBY, error.text)
        except Exception:  # noqa: BLE001 - a bug in one answer must not end the connection
            _log.exception(
                "Method %d from %s failed", request.method, connection.peer, about=request.method
            )
            return session.error(request, JAVA_EXCEPTION, "The master failed; see its log.")
        return session.reply(request, answer)
