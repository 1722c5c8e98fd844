"""The pytest plugin: fixtures for a node that runs for the whole session.

pytest loads this module in every session where Coherer is installed, so it imports only what the
declarations of the fixtures need.

pytest rewrites the assertions of every module in a distribution that has a plugin. Users see no
assertion of Coherer, and rewriting takes half a second in each session. So the plugin puts a finder
before pytest's, which loads Coherer's modules as Python does.
"""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import pytest

from coherer._common.loading import collector_paused

# pytest loads the plugin in every session that has Coherer installed.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from coherer.testing.cluster import EmbeddedCluster
    from coherer.testing.embedded import EmbeddedNode
    from coherer.testing.leftovers import Leftovers
    from coherer.testing.simulated import SimulatedCluster, SimulatedNode


class _UnchangedModules(MetaPathFinder):
    """Finds Coherer's modules in their files, before pytest's hook rewrites them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("coherer."):
            return None
        return PathFinder.find_spec(fullname, path, target)


sys.meta_path.insert(0, _UnchangedModules())


@pytest.fixture(scope="session")
def coherer_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node for the whole test session, with both protocols and the administration.

    Tests share it, so each test should use its own topics and groups; see `coherer_topic`.
    """
    directory = tmp_path_factory.mktemp("coherer")
    with ExitStack() as stack:
        with collector_paused():
            from coherer.testing.embedded import embedded_node

            node = stack.enter_context(embedded_node(directory))
        yield node


@pytest.fixture(scope="session")
def coherer_url(coherer_node: EmbeddedNode) -> str:
    """The TubeMQ URL of the session's node: `tubemq://127.0.0.1:<port>`."""
    return coherer_node.url


@pytest.fixture(scope="session")
def coherer_rocketmq_url(coherer_node: EmbeddedNode) -> str:
    """The RocketMQ URL of the session's node: `rocketmq://127.0.0.1:<port>`."""
    return coherer_node.rocketmq_url


@pytest.fixture
def coherer_simulated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimulatedNode:
    """A node in virtual time, for one async test: it, its clients and the test share one loop.

    Days pass in milliseconds. No other plugin for async tests is needed.
    """
    with collector_paused():
        from coherer.testing.simulated import SimulatedNode

    node = SimulatedNode(tmp_path_factory.mktemp("coherer"))
    _prepare(node, request)
    return node


@pytest.fixture
def coherer_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedCluster]:
    """A cluster of two brokers for one test, with real time and sockets.

    `@pytest.mark.coherer_cluster(brokers=3)` changes it; see `embedded_cluster`.
    """
    with collector_paused():
        from coherer.testing.cluster import embedded_cluster

    options = _cluster_options(request, tmp_path_factory)
    with embedded_cluster(**options) as cluster:
        yield cluster


@pytest.fixture
def coherer_simulated_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimulatedCluster:
    """A cluster of two brokers in virtual time, for one async test.

    `@pytest.mark.coherer_cluster(brokers=3)` changes it; see `SimulatedCluster`.
    """
    with collector_paused():
        from coherer.testing.simulated import SimulatedCluster

    cluster = SimulatedCluster(**_cluster_options(request, tmp_path_factory))
    _prepare(cluster, request)
    return cluster


def _prepare(simulated: SimulatedNode | SimulatedCluster, request: pytest.FixtureRequest) -> None:
    simulated.leftovers = request.config.stash.get(_leftovers, None)
    marker = request.node.get_closest_marker("coherer_virtual_time")
    if marker is not None:
        if marker.args or marker.kwargs.keys() != {"hours"}:
            raise pytest.UsageError("coherer_virtual_time has one named argument, as in hours=24.")
        simulated.limit_s = marker.kwargs["hours"] * 3600.0


def _cluster_options(
    request: pytest.FixtureRequest, directories: pytest.TempPathFactory
) -> dict[str, Any]:
    marker = request.node.get_closest_marker("coherer_cluster")
    if marker is not None and marker.args:
        raise pytest.UsageError("coherer_cluster has named arguments only, such as brokers=3.")
    given: dict[str, Any] = {} if marker is None else marker.kwargs
    return {"directory": directories.mktemp("coherer"), **given}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    config.addinivalue_line(
        "markers", "coherer_cluster(brokers=2, slaves=False, apart=False): the nodes of a cluster."
    )
    config.addinivalue_line(
        "markers", "coherer_virtual_time(hours=6): after how much of it a test counts as hung."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> None:
    """Make an async test in virtual time a plain one, before other plugins see it."""
    if not inspect.iscoroutinefunction(obj):
        return
    if found := _SIMULATED & inspect.signature(obj).parameters.keys():
        run = _in_virtual_time(obj, sorted(found))
        # For pytest-asyncio, whose marker is often given to a whole module.
        run = pytest.mark.filterwarnings("ignore:.*is not an async function")(run)
        setattr(collector.obj, name, run)


_SIMULATED = frozenset({"coherer_simulated", "coherer_simulated_cluster"})
_FIXTURES = _SIMULATED | {
    "coherer_node",
    "coherer_url",
    "coherer_rocketmq_url",
    "coherer_topic",
    "coherer_cluster",
}
_leftovers: pytest.StashKey[Leftovers] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin to look for what a test leaves behind, if it uses one of the fixtures."""
    if not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        with collector_paused():
            from coherer.testing.leftovers import Leftovers  # few sessions use the fixtures

        item.config.stash[_leftovers] = Leftovers()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Leave out what a fixture opens for several tests."""
    looking = request.config.stash.get(_leftovers, None)
    if looking is None or fixturedef.scope == "function":
        return (yield)
    with looking.wider():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look no more if the test fails: what it did not come to close is no news then."""
    if call.excinfo is not None and _leftovers in item.config.stash:
        item.config.stash[_leftovers].end()
        del item.config.stash[_leftovers]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Warn of what a test has left behind, once its fixtures have ended."""
    looking = item.config.stash.get(_leftovers, None)
    if looking is not None:
        looking.look_at_ports()
    yield
    if looking is None:
        return
    del item.config.stash[_leftovers]
    if found := looking.end():
        from coherer.testing.leftovers import LeftBehindWarning

        what = "".join(f"\n  {one}" for one in found)
        item.warn(LeftBehindWarning(f"{item.nodeid} left behind, and should close or end:{what}"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Run an async test in virtual time whose fixtures or marks ask for it, not its arguments."""
    names = sorted(_SIMULATED.intersection(getattr(item, "fixturenames", ())))
    if not names or not isinstance(item, pytest.Function) or _is_unittests(item):
        return (yield)
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return (yield)
    item.obj = _in_virtual_time(test, names, item.funcargs)
    # The items of plugins for async tests would run it in a loop of their own.
    vars(item)["runtest"] = functools.partial(pytest.Function.runtest, item)
    try:
        return (yield)
    finally:
        item.obj = test
        del vars(item)["runtest"]


def _is_unittests(item: pytest.Function) -> bool:
    """Whether a test is a method of a `unittest.TestCase`, which has a loop of its own."""
    cases = getattr(sys.modules.get("unittest"), "TestCase", None)
    return cases is not None and item.cls is not None and issubclass(item.cls, cases)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Stop the nodes that tests have left running, while threads can still work."""
    if "coherer.testing.embedded" in sys.modules:
        from coherer.testing.embedded import stop_all  # loaded already

        stop_all()


def _in_virtual_time(
    test: Callable[..., Coroutine[Any, Any, object]],
    names: Sequence[str],
    indirect: Mapping[str, object] = MappingProxyType({}),
) -> Callable[..., None]:
    """A plain test for an async one.

    Args:
        test: the test.
        names: the fixtures that give it virtual time.
        indirect: the values of fixtures that are not its arguments.
    """

    @functools.wraps(test)
    def run(*args: object, **fixtures: object) -> None:
        if len(names) > 1:
            raise pytest.UsageError(f"A test cannot use both {' and '.join(names)}.")
        (name,) = names
        seeds = getattr(test, "_coherer_seeds", None)
        simulated = cast("SimulatedNode | SimulatedCluster", {**indirect, **fixtures}[name])
        if seeds is None:
            simulated.run(test(*args, **fixtures))
            return
        if name not in fixtures:  # other fixtures would keep the node of another run
            raise pytest.UsageError(f"A test with @explore needs {name} as its argument.")
        from coherer.testing.explore import run_seeds

        fresh: Callable[[], SimulatedNode | SimulatedCluster] = simulated.fresh
        run_seeds(seeds, fresh, lambda one: test(*args, **{**fixtures, name: one}))

    return run


@pytest.fixture
def coherer_topic(request: pytest.FixtureRequest, coherer_node: EmbeddedNode) -> str:
    """The name of a new, empty topic for this test."""
    import uuid

    words = "".join(c if c.isascii() and c.isalnum() else "_" for c in request.node.name)
    name = f"{words[:40].strip('_') or 'test'}_{uuid.uuid4().hex[:12]}"
    coherer_node.create_topic(name)
    return name
