"""What a slave knows of its master besides the log: topics, groups, positions (6.12).

Every ten seconds a slave asks for all of it. Topics and groups replace its own when their version
is another one; positions are taken over one by one; the positions of delayed messages replace its
own. So it can answer for the master, and take its place when it is started as a master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from coherer._common.logs import Log
from coherer._rules.common.offsets import OffsetTable
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.groups import GroupTable
from coherer._server.core.core import Core
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

PERIOD_S: Final = 10.0
FIRST_S: Final = 3.0
TIMEOUT_MS: Final = 3_000


class MetadataSync:
    """Asks a master what it knows, over and over.

    Args:
        core: where it goes.
        outgoing: connections to other servers; the caller closes it.
        delays: takes the positions of delayed messages.

    Attributes:
        master: its address as host:port; "" while it is not known.
    """

    def __init__(
        self, core: Core, outgoing: RemotingClient, delays: Callable[[bytes], None]
    ) -> None:
        self.master = ""
        self._core = core
        self._outgoing = outgoing
        self._steps: tuple[tuple[RequestCode, Callable[[bytes], object]], ...] = (
            (RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, delays),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the background, until `close`."""
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> None:
        """Ask for everything once.

        Raises:
            UnavailableError: the master does not answer.
            RefusedError: it refuses.
            DamagedStoreError: nobody can read what it answers.
        """
        for code, take in self._steps:
            answer = await self._outgoing.ask(self.master, code, timeout_ms=TIMEOUT_MS)
            if answer.code:
                raise refused(
                    answer.code, answer.remark or "The master refuses.", server=self.master
                )
            take(bytes(answer.body))

    async def _repeat(self) -> None:
        wait_s = FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = PERIOD_S
            if not self.master:
                continue
            try:
                await self.run_once()
            except CohererError as error:
                _log.warning("The master's tables cannot be followed, trying on: %s", error)
            except Exception:  # noqa: BLE001 - whatever a master says, the next word may be better
                _log.exception("An error of ours with what %s knows", self.master)

    def _take_topics(self, body: bytes) -> None:
        if self._core.topics.follow(TopicTable.load(body, fastjson.load_whole)):
            _log.info("Topics are those of master %s now", self.master)

    def _take_offsets(self, body: bytes) -> None:
        self._core.offsets.merge(OffsetTable.load(body))

    def _take_groups(self, body: bytes) -> None:
        if self._core.groups.follow(GroupTable.load(body, fastjson.load_whole)):
            _log.info("Groups are those of master %s now", self.master)
