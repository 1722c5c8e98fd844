"""A master with standbys: it carries out the decisions of the election in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from coherer._common.logs import Log
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.state import check_saved
from coherer._server.tubemq.master.zookeeper import Election, in_term
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

FILE = "metadata in ZooKeeper"


class EnsembleMaster:
    """A master that is a standby until it is elected.

    Args:
        servers: the ZooKeeper servers; see `Election`.
        session_ms: the timeout of its ZooKeeper session.

    Attributes:
        master: the master, active or standby.
        files: writes its metadata to ZooKeeper.

    Raises:
        UsageError: kazoo is not installed.
    """

    def __init__(
        self,
        servers: str,
        session_ms: int,
        options: MasterOptions,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._content: bytes | None = None
        self._term = 0
        self._loop = asyncio.get_running_loop()
        address = f"{options.host}:{options.port}"
        self._election = Election(servers, address, options.web_port, session_ms, self)
        self.files = DeferredSaver(self._election.save, loses_unsaved=True)
        self.master = Master(
            msgspec.structs.replace(options, standby=True),
            lambda: self._content,
            self._save,
            now_ms=now_ms,
            wall_ms=wall_ms,
        )
        self.master.state.may_act = lambda: self._election.may_act

    async def start(self) -> None:
        """Join the election.

        Raises:
            UsageError: Java's masters use the same path.
            CohererError: ZooKeeper does not answer.
        """
        await asyncio.to_thread(self._election.start)

    async def close(self) -> None:
        """Save the metadata, and leave the election: the next master becomes active at once."""
        self.master.close()
        with suppress(CohererError):  # logged already; the next master continues
            await self.files.close()
        self.master.standby = True
        await asyncio.to_thread(self._election.close)

    def _save(self, take: Callable[[], bytes]) -> None:
        self.files.save(FILE, lambda: in_term(self._term, take()))

    # -- events of the election, in its thread

    def check(self, content: bytes) -> None:
        """Raise DamagedStoreError if the content is invalid."""
        check_saved(content)

    def elected(self, content: bytes | None, term: int) -> None:
        """Become active."""

        def begin() -> None:
            self.master.standby = True
            self._content, self._term = content, term
            self.master.standby = False
            self._content = None

        self._call(begin)

    def demoted(self) -> None:
        """Become a standby."""

        def end() -> None:
            self.master.standby = True

        self._call(end)

    def leader_changed(self, admin_address: str | None) -> None:
        """Redirect users of the administration to the active master."""
        state = self.master.state
        url = None if admin_address is None else f"http://{admin_address}"

        def redirect() -> None:
            state.options = msgspec.structs.replace(state.options, active_admin_url=url)

        self._call(redirect)

    def _call(self, action: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(action)
