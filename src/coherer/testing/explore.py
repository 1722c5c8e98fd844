"""Runs a user's test under random faults of the broker and the network, from seeds.

A schedule is a list of faults. Each strikes at a request: the n-th one that the node receives,
heartbeats not counted. So the faults hit a test wherever it is busy, however short it is. In a
cluster the requests to all nodes count, and a fault strikes the node that has just received the
n-th one. The first run has no faults, and counts the requests. If a schedule breaks the test, the
faults that the failure does not need are removed, one after the other. Everything follows from the
seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, Generic, TypeVar

import msgspec

from coherer._common import clock
from coherer.errors import CohererError, UsageError
from coherer.testing.faults import taps_of
from coherer.testing.received import Reception, counted, shortened
from coherer.testing.requests import ReceivedRequest
from coherer.testing.simulated import SimulatedCluster, SimulatedNode
from coherer.testing.simulation import SimulatedLoop
from coherer.testing.waiting import waiting_at, with_places

ATTRIBUTE: Final = "_coherer_seeds"
FAULTS_MAX: Final = 4
PATIENCE_S: Final = 900.0
"""How much longer a test may take with faults, in virtual time, before it counts as hung."""
KINDS: Final = {
    "killed": "{node} was killed",
    "restarted": "{node} was restarted",
    "reset": "all connections of {node} were reset",
    "stalled": "the network stood still",
}
"""What happens to a node."""
_IDLE: Final = frozenset({"heartbeat", "register"})
_BACK_S: Final = (0.0, 0.5, 5.0, 40.0)
_LATER_S: Final = (0.0, 0.0, 0.0003, 0.002)

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, object]])
Simulated = TypeVar("Simulated", bound=SimulatedNode | SimulatedCluster)


class Strike(msgspec.Struct, frozen=True):
    """A fault of a schedule.

    Args:
        kind: one of `KINDS`.
        request: at which request it strikes.
        later_s: how long after its arrival.
        for_s: how long it lasts.
    """

    kind: str
    request: int
    later_s: float
    for_s: float


class Happened(msgspec.Struct, frozen=True):
    """A fault that has struck.

    Args:
        strike: the fault.
        node: the name of the node that it struck.
        during: the request at which it struck.
        time_ms: when.
        end_ms: when it ended.
    """

    strike: Strike
    node: str
    during: ReceivedRequest
    time_ms: int
    end_ms: int

    @property
    def what(self) -> str:
        """What happened."""
        return KINDS[self.strike.kind].format(node=self.node)

    def text(self) -> str:
        """A sentence."""
        topic = f" of {self.during.topic}" if self.during.topic else ""
        lasts = f" for {self.strike.for_s:g} s" if self.strike.for_s else ""
        number = f"request {self.strike.request} ({self.during.name}{topic})"
        return f"{self.what}{lasts} at {number}"


def explore(*, seeds: int = 100, first: int = 0) -> Callable[[F], F]:
    """Run an async test in virtual time under random faults, once for each seed.

    The test uses `coherer_simulated` or `coherer_simulated_cluster`. A broker is killed and
    restarted, connections are reset, the network stands still and is slow. The first seed that
    breaks the test is reported, with the faults that it needs. The test should record what it
    receives (`received` of the node or the cluster): then the report names the messages that were
    delivered several times.

    ```python
    @explore(seeds=100)
    async def test_every_order_is_booked_once(coherer_simulated): ...
    ```

    Args:
        seeds: how many.
        first: the first one; `seeds=1, first=17` repeats seed 17.
    """
    if seeds < 1:
        raise UsageError(f"An exploration needs at least one seed, not {seeds}.")

    def mark(test: F) -> F:
        setattr(test, ATTRIBUTE, range(first, first + seeds))
        return test

    return mark


def run_seeds(
    seeds: Sequence[int],
    fresh: Callable[[], Simulated],
    test: Callable[[Simulated], Coroutine[Any, Any, object]],
) -> None:
    """Run a test under the faults of each seed, and raise the first failure, shrunken.

    Args:
        seeds: in this order.
        fresh: makes the node or the cluster of a run.
        test: the test.
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        explored = _Exploration(fresh, test)
        calm = explored.calm()
        if calm.error is not None:
            raise _noted(calm.error, "It fails without faults, too.")
        requests = calm.trouble.requests
        found = next((seed for seed in seeds if explored.breaks(seed, requests)), None)
        if found is None:
            return
        failed = explored.shrunken(found, requests)
    finally:
        logging.disable(level)
    assert failed.error is not None  # noqa: S101 - it has just failed
    raise _noted(failed.error, _report(found, failed))


class _Run(msgspec.Struct):
    """The outcome of one run."""

    error: BaseException | None
    trouble: _Trouble
    repeated: list[list[Reception]]


class _Exploration(Generic[Simulated]):
    def __init__(
        self,
        fresh: Callable[[], Simulated],
        test: Callable[[Simulated], Coroutine[Any, Any, object]],
    ) -> None:
        self._fresh = fresh
        self._test = test
        self._limit_s: float | None = None

    def calm(self) -> _Run:
        """Run the test without faults; with them it may take `PATIENCE_S` more."""
        first = self.run(0, [])
        self._limit_s = first.trouble.took_s + PATIENCE_S
        return first

    def run(self, seed: int, schedule: Sequence[Strike]) -> _Run:
        """Run the test once."""
        import pytest  # its plugin has called this; the kit works without it

        simulated = self._fresh()
        if self._limit_s is not None:  # it may need some time to end
            simulated.limit_s = self._limit_s + PATIENCE_S
        trouble = _Trouble(simulated.nodes, seed, schedule, self._limit_s)
        error: BaseException | None = None
        try:
            simulated.run(trouble.beside(self._test(simulated)), seed=seed)
        except (Exception, pytest.fail.Exception) as caught:  # noqa: BLE001 - the test's, any
            error = caught
        return _Run(error, trouble, simulated.received.repeated())

    def breaks(self, seed: int, requests: int) -> bool:
        """Whether the faults of a seed break the test."""
        return self.run(seed, schedule_of(seed, requests)).error is not None

    def shrunken(self, seed: int, requests: int) -> _Run:
        """Remove the faults that the failure does not need."""
        schedule = schedule_of(seed, requests)
        failed = self.run(seed, schedule)
        for strike in tuple(schedule):
            fewer = [one for one in schedule if one is not strike]
            again = self.run(seed, fewer)
            if again.error is not None and type(again.error) is type(failed.error):
                schedule, failed = fewer, again
        return failed


def schedule_of(seed: int, requests: int) -> list[Strike]:
    """The faults of a seed.

    Args:
        seed: the seed.
        requests: how many requests the test makes without faults.
    """
    chance = Random(seed)  # noqa: S311 - not for secrets
    strikes = [
        Strike(
            chance.choice(sorted(KINDS)),
            chance.randint(1, max(1, requests)),
            chance.choice(_LATER_S),
            chance.choice(_BACK_S),
        )
        for _ in range(chance.randint(1, FAULTS_MAX))
    ]
    return sorted(strikes, key=lambda one: one.request)


class _Trouble:
    """Lets the faults of a schedule strike.

    Attributes:
        requests: how many the nodes have received.
        took_s: how long the test has taken.
        happened: the faults that have struck.
        late: whether the test has not ended in time.
        waiting: where it waited then.
    """

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        seed: int,
        schedule: Sequence[Strike],
        limit_s: float | None,
    ) -> None:
        self.requests = 0
        self.took_s = 0.0
        self.late = False
        self.waiting: list[str] = []
        self._limit_s = limit_s
        self.happened: list[Happened] = []
        self._nodes, self._seed = nodes, seed
        self._schedule = list(schedule)
        self._due: asyncio.Queue[tuple[Strike, SimulatedNode, ReceivedRequest]] = asyncio.Queue()

    async def beside(self, test: Coroutine[Any, Any, object]) -> None:
        """Run the test and the faults."""
        loop = asyncio.get_running_loop()
        if self._schedule and isinstance(loop, SimulatedLoop):
            chance = Random(self._seed)  # noqa: S311 - not for secrets
            loop.network.jitter_s = chance.choice([0.0, 0.001, 0.05])
        for node in self._nodes:
            node.requests.watch(partial(self._arrived, node))
            taps_of(node.faults).explored = True
        striking, began_s = asyncio.create_task(self._strike()), loop.time()
        until_s = None if self._limit_s is None else began_s + self._limit_s
        looking = None if until_s is None else loop.call_at(until_s, self._look)
        try:
            async with asyncio.timeout_at(until_s):
                await test
        finally:
            if looking is not None:
                looking.cancel()
            self.took_s = loop.time() - began_s
            striking.cancel()
            with suppress(asyncio.CancelledError):
                await striking

    def _look(self) -> None:
        """Note where the test waits, before it is cancelled at this moment."""
        self.late = True
        self.waiting = waiting_at(asyncio.all_tasks())

    def _arrived(self, node: SimulatedNode, request: ReceivedRequest) -> None:
        if request.kind in _IDLE:
            return
        self.requests += 1
        while self._schedule and self._schedule[0].request <= self.requests:
            self._due.put_nowait((self._schedule.pop(0), node, request))

    async def _strike(self) -> None:
        while True:
            strike, node, during = await self._due.get()
            await asyncio.sleep(strike.later_s)
            began_ms = clock.wall_ms()
            await _ACTS[strike.kind](node, strike.for_s)
            ended_ms = clock.wall_ms()
            self.happened.append(Happened(strike, node.name, during, began_ms, ended_ms))


async def _down(node: SimulatedNode, for_s: float, *, kill: bool) -> None:
    async with node.down(kill=kill):
        await asyncio.sleep(for_s)


async def _reset(node: SimulatedNode, _: float) -> None:
    node.faults.reset()


async def _stall(_: SimulatedNode, for_s: float) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimulatedLoop):
        loop.network.stop()
        await asyncio.sleep(for_s)
        loop.network.heal()


_ACTS: Final[dict[str, Callable[[SimulatedNode, float], Coroutine[Any, Any, None]]]] = {
    "killed": partial(_down, kill=True),
    "restarted": partial(_down, kill=False),
    "reset": _reset,
    "stalled": _stall,
}


def _report(seed: int, failed: _Run) -> str:
    trouble = failed.trouble
    lines = [f"Seed {seed} breaks this test. Repeat it with explore(seeds=1, first={seed})."]
    lines += [f"- {one.text()[:1].upper()}{one.text()[1:]}." for one in trouble.happened]
    lines += [_blame(times, trouble.happened) for times in failed.repeated[:5]]
    if trouble.late:
        had = f"The test had {PATIENCE_S:g} s more of virtual time than it needs without faults."
        lines.append(with_places(had, trouble.waiting))
    if isinstance(failed.error, CohererError):
        lines.append("The test does not handle this error of its client.")
    return "\n".join(lines)


def _blame(times: Sequence[Reception], happened: Sequence[Happened]) -> str:
    before = [one for one in happened if one.time_ms <= times[1].time_ms]
    after = f" after {before[-1].what}" if before else ""
    places = len({one.place for one in times})
    stored = f" It was sent again, and is stored {counted(places)}." if places > 1 else ""
    one = times[0]
    body, group = shortened(one.body), one.group
    return f"Message {body} was delivered {counted(len(times))} to group {group}{after}.{stored}"


def _noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error
