"""Scenarios begin when collection is over: the 41 s of a Java broker pass during other tests.

With several workers all scenarios run in one of them, from the moment of its first, and before the
other tests: each worker collects all tests, and would start the servers of all scenarios.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from xdist import is_xdist_worker
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

sys.path.insert(0, str(Path(__file__).parent))

from tests.interop.peers.broker_scenario import BrokerScenario
from tests.interop.peers.cache import UnavailableError
from tests.interop.peers.recorder import Script, play
from tests.interop.peers.rocket_site import KINDS, Cluster, RocketSite
from tests.interop.peers.runs import Runs, wanted_of

_RUNS = pytest.StashKey[Runs]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """What waits comes last; before it what has Java's RocketMQ, whose servers then stay."""
    turn_of_scenarios = 0 if is_xdist_worker(session) else 3

    def turn(item: pytest.Item) -> int:
        if wanted_of(item) is not None:
            return turn_of_scenarios
        return 2 if "rocket" in getattr(item, "fixturenames", ()) else 1

    items.sort(key=turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the servers of all scenarios that were collected and not deselected."""
    wanted = [one for one in map(wanted_of, session.items) if one is not None]
    if wanted and not session.config.option.collectonly:
        session.config.stash[_RUNS] = runs = Runs(wanted)
        if not is_xdist_worker(session):
            runs.start()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Keeps the files with scenarios together."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "scenarios" if _has_scenarios(self.config.rootpath / file) else file


@cache
def _has_scenarios(file: Path) -> bool:
    return "@scenario(" in file.read_text("utf-8")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """No process stays, whatever happened; logs stay where something failed."""
    runs = session.config.stash.get(_RUNS, None)
    if runs is None:
        return
    runs.stop()
    if exitstatus == 0:
        shutil.rmtree(runs.folder, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            print(f"\nlogs of the peers: {runs.folder}")


@pytest.fixture
def runs(pytestconfig: pytest.Config) -> Runs:
    """The session's scenarios; their progress goes to the screen while a test waits."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  interop: {line}", end="", flush=True)

    runs = pytestconfig.stash[_RUNS]
    runs.tell = tell
    runs.start()
    return runs


@pytest.fixture(scope="session")
def rocket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketSite]:
    """The clusters and clients of RocketMQ, each started when it is first asked for."""
    site = RocketSite(tmp_path_factory.mktemp("rocket"))
    try:
        try:
            _ = site.java
        except UnavailableError as reason:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Java RocketMQ: {reason}")
        yield site
    finally:
        site.stop()


@pytest.fixture(scope="module")
def releases(rocket: RocketSite) -> Iterator[RocketSite]:
    """The same, for a module that starts servers of other releases: they end with it."""
    yield rocket
    rocket.stop_releases()


@pytest.fixture(scope="session", params=KINDS)
def cluster(rocket: RocketSite, request: pytest.FixtureRequest) -> Cluster:
    """Every mix of our and Java's name server and broker."""
    return rocket.cluster(request.param)


@pytest.fixture(params=["java", "ours"])
async def scenario(
    rocket: RocketSite, request: pytest.FixtureRequest
) -> AsyncIterator[BrokerScenario]:
    """Java's broker, then ours, with names of the test's own."""
    cluster = await asyncio.to_thread(rocket.cluster, request.param)
    scenario = BrokerScenario(cluster)
    yield scenario
    for client in scenario.clients:
        client.connection.close()


@pytest.fixture
def same(rocket: RocketSite) -> Callable[[Script], Awaitable[None]]:
    """Plays a script at Java's broker and at ours, and compares."""
    return partial(play, rocket)
