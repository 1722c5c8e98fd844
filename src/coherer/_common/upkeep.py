"""Periodic work, in steps that cannot disable each other.

A step has a name, a function and an interval. The parts of a process (node, client, console)
declare their steps in tables; an `Upkeep` runs them.

Invariants:

* A step runs whenever it is due, whatever the other steps raise. A step that raises runs again when
  it is due next.
* Each failure is counted under the name of its step (`failures`) and logged, at most once a minute
  for each kind of error.
* All steps of an `Upkeep` that is run by `tick` or `run` share one task: a step that waits delays
  the others. `start` gives each step its own task.

A loop that cannot be a step, because it ends by itself, uses `guard` in each round.
`tests/test_upkeep.py` finds loops that do neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from coherer._common import clock
from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

Work: TypeAlias = Callable[[], Awaitable[None] | None]


class Step(NamedTuple):
    """A step of the periodic work.

    Args:
        name: what it does, for logs and metrics, such as `saving offsets`.
        work: does it; a coroutine function if it waits.
        every_ms: the interval; 0 for every round.
        pause: for steps that have their own task: waits until the step is due, for longer or
            shorter than an interval. The first run is then at once.
    """

    name: str
    work: Work
    every_ms: int = 0
    pause: Callable[[], Awaitable[None]] | None = None


class Upkeep:
    """The steps of a part of a process, and of the parts inside it.

    Args:
        parts: the steps, and the `Upkeep` of inner parts, in the order in which they run.
        now_ms: a monotonic clock.

    Attributes:
        failures: how often each step has failed, by name; 0 for steps that never failed.

    >>> divide, greet = lambda: print(1 // 0), lambda: print("hello")
    >>> upkeep = Upkeep(Step("dividing", divide), Step("greeting", greet))
    >>> logging.disable()
    >>> upkeep.tick()
    hello
    >>> upkeep.failures
    {'dividing': 1, 'greeting': 0}
    >>> logging.disable(logging.NOTSET)
    """

    def __init__(self, *parts: Step | Upkeep, now_ms: Callable[[], int] = clock.now_ms) -> None:
        self._now_ms = now_ms
        self._parts: list[tuple[Step, IntervalTimer] | Upkeep] = []
        self._watched: list[Upkeep] = []
        self._failures: dict[str, int] = {}
        self.add(*parts)

    def __repr__(self) -> str:
        return f"<Upkeep of {', '.join(self.failures)}>"

    @property
    def failures(self) -> dict[str, int]:
        """How often each step has failed, by name."""
        found = dict(self._failures)
        inner = [part for part in self._parts if isinstance(part, Upkeep)]
        for part in inner + self._watched:
            for name, count in part.failures.items():
                found[name] = found.get(name, 0) + count
        return found

    def add(self, *parts: Step | Upkeep) -> None:
        """Add steps, and inner parts; the first interval of a step begins now."""
        now_ms = self._now_ms()
        for part in parts:
            if isinstance(part, Upkeep):
                self._parts.append(part)
            else:
                self._parts.append((part, IntervalTimer(part.every_ms, now_ms)))
                self._failures.setdefault(part.name, 0)

    def watch(self, *others: Upkeep) -> None:
        """Count the failures of others too, which run by themselves (`start`)."""
        self._watched += others

    def replace(self, name: str, work: Work) -> None:
        """Replace the work of the steps of a name, for tests that make steps fail."""
        for index, part in enumerate(self._parts):
            if isinstance(part, Upkeep):
                part.replace(name, work)
            elif part[0].name == name:
                self._parts[index] = (part[0]._replace(work=work), part[1])
        for other in self._watched:
            other.replace(name, work)

    @contextmanager
    def guard(self, name: str) -> Generator[None]:
        """Count and log an exception of the block instead of raising it.

        Args:
            name: the step to which the block belongs.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no exception may end the periodic work
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        if isinstance(error, CohererError):
            _log.warning("%s failed: %s", _sentence(name), error, about=(name, type(error)))
        else:
            about = (name, type(error))
            _log.error("Unhandled error while %s", name, exc_info=error, about=about)

    def tick(self) -> None:
        """Run the steps that are due. None of them may wait."""
        now_ms = self._now_ms()
        for part in self._parts:
            if isinstance(part, Upkeep):
                part.tick()
            elif part[1].is_due(now_ms) and self._begin(part[0]) is not None:
                with self.guard(part[0].name):
                    raise TypeError(f"The step {part[0].name!r} waits; use `round`.")

    async def round(self) -> None:
        """Run the steps that are due, one after the other, and wait for those that wait."""
        # Most steps do not wait, or are not due. They are worth neither a coroutine nor a look at
        # the clock, ten times a second each.
        now_ms = self._now_ms()
        for part in self._parts:
            if isinstance(part, Upkeep):
                await part.round()
            elif part[1].is_due(now_ms):
                waiting = self._begin(part[0])
                if waiting is not None:
                    with self.guard(part[0].name):
                        await waiting
                    now_ms = self._now_ms()

    async def run(self, pause_s: float) -> None:
        """Run the steps in rounds until this is cancelled."""
        while True:
            await asyncio.sleep(pause_s)
            await self.round()

    def start(self) -> list[asyncio.Task[None]]:
        """Run each step in its own task; the caller cancels the tasks."""
        tasks: list[asyncio.Task[None]] = []
        for part in self._parts:
            if isinstance(part, Upkeep):
                tasks += part.start()
            else:
                tasks.append(asyncio.create_task(self._repeat(part[0]), name=part[0].name))
        return tasks

    async def _repeat(self, step: Step) -> None:
        if step.pause is None:
            await asyncio.sleep(step.every_ms / 1000)
        while True:
            waiting = self._begin(step)
            if waiting is not None:
                with self.guard(step.name):
                    await waiting
            await (asyncio.sleep(step.every_ms / 1000) if step.pause is None else step.pause())

    def _begin(self, step: Step) -> Awaitable[None] | None:
        try:
            return step.work()
        except Exception as error:  # noqa: BLE001 - as in `guard`
            self._failed(step.name, error)
            return None


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]
