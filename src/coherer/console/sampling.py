"""Samples lag and rates for the history while the console runs.

Each sample covers the watched topics and groups, and some of the others in turn, at most `SUBJECTS`
in total. So the cost for the brokers does not grow with the number of topics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer.admin import Group
from coherer.console.facts import Facts
from coherer.console.history import History, Subject, series_name
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

SUBJECTS: Final = 40
"""The number of topics and groups in a sample; 40 cost a broker about 20 ms."""

PARTITIONS_MAX: Final = 64
"""The number of partitions of a watched group that have their own series."""

LATE: Final = 3
"""If a sample is this many intervals late, the chart has a gap."""


class Sampler:
    """Takes samples: `run` until it is cancelled, `sample` once.

    Args:
        facts: the data about the cluster.
        history: stores the samples.
        every_ms: the sampling interval.
        clock: returns s since 1970.

    Attributes:
        upkeep: counts samples that failed unexpectedly.
    """

    def __init__(
        self,
        facts: Facts,
        history: History,
        every_ms: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._facts = facts
        self._history = history
        self._every_s = every_ms / 1000
        self._clock = clock
        self._last_s: float | None = None
        self._turn = 0
        self.upkeep = Upkeep()

    async def run(self) -> None:
        """Take samples until cancelled. A cluster that does not answer leaves gaps."""
        while True:
            began = time.monotonic()
            with self.upkeep.guard("sampling the cluster"):
                await self._sample_or_gap()
            await asyncio.sleep(max(self._every_s - (time.monotonic() - began), 0.05))

    async def _sample_or_gap(self) -> None:
        try:
            await self.sample()
        except CohererError as error:
            _log.warning("Cannot sample the cluster: %s", error)
            self._history.gap(self._clock())

    async def sample(self) -> None:
        """Take one sample of brokers, and of some topics and groups.

        Raises:
            UnavailableError: the cluster does not answer.
        """
        now = self._clock()
        if self._last_s is not None and now - self._last_s > LATE * max(self._every_s, 1):
            self._history.gap(now - self._every_s)
        self._last_s = now
        for broker in await self._facts.brokers():
            if broker.in_per_s is not None or broker.status == "silent":
                name = series_name("broker", broker.name, "in")
                self._history.add(name, now, broker.in_per_s)
                name = series_name("broker", broker.name, "out")
                self._history.add(name, now, broker.out_per_s)
        subjects = await self._subjects(now)
        topics = [name for kind, name in subjects if kind == "topic"]
        groups = [name for kind, name in subjects if kind == "group"]
        for topic in await self._facts.topics(topics):
            self._history.add_rate(series_name("topic", topic.name, "in"), now, topic.written)
            self._history.add(series_name("topic", topic.name, "held"), now, topic.held)
        watched = {name for kind, name in self._history.watched(now) if kind == "group"}
        for group in await self._facts.groups(groups):
            self._add_group(group, now, watched=group.name in watched)

    async def _subjects(self, now: float) -> Sequence[Subject]:
        topics = await self._facts.topic_names()
        groups = await self._facts.group_names()
        self._history.forget("topic", topics)
        self._history.forget("group", groups)
        alive: set[Subject] = {("topic", name) for name in topics}
        alive.update(("group", name) for name in groups)
        chosen = [one for one in self._history.watched(now) if one in alive][:SUBJECTS]
        others = sorted(alive.difference(chosen))
        room = min(SUBJECTS - len(chosen), len(others))
        for index in range(room):
            chosen.append(others[(self._turn + index) % len(others)])
        self._turn += room
        return chosen

    def _add_group(self, group: Group, now: float, *, watched: bool) -> None:
        self._history.add(series_name("group", group.name, "lag"), now, group.lag)
        lags: dict[str, int | None] = {}
        for one in group.partitions:
            before = lags.get(one.topic, 0)
            lags[one.topic] = None if before is None or one.lag is None else before + one.lag
        self._history.add_lags(group.name, lags)
        committed = [one.committed for one in group.partitions if one.committed is not None]
        steps = {one.offset_step for one in group.partitions}
        count = sum(max(one, 0) for one in committed) if committed and steps == {1} else None
        self._history.add_rate(series_name("group", group.name, "out"), now, count)
        if watched:
            for one in group.partitions[:PARTITIONS_MAX]:
                self._history.add(series_name("group", group.name, "lag", one.key), now, one.lag)
