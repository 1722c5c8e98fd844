"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

HEAVY = {"asyncio", "msgspec", "google", "h11", "coherer._net", "coherer._server"}


def test_the_fixtures_come_with_the_package(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        seen = set()

        def test_one(coherer_node, coherer_url):
            assert coherer_url == coherer_node.url
            coherer_node.create_topic("mine", 2)
            assert coherer_node.call(coherer_node.node.topics)["mine"] == {1: 2}
            seen.add(coherer_url)

        def test_two(coherer_url):
            seen.add(coherer_url)
            assert len(seen) == 1, "one node for the session"

        def test_topics_are_of_ones_own(coherer_topic, coherer_node, request):
            assert coherer_topic.startswith("test_topics_are_of_ones_own_")
            assert len(coherer_topic) <= 64
            assert coherer_topic in coherer_node.call(coherer_node.node.topics)

        def test_odd_names_are_topics_too(coherer_topic):
            assert coherer_topic.isidentifier()
        """
    )
    pytester.runpytest_subprocess("-p", "no:randomly", "-q").assert_outcomes(passed=4)


def test_it_is_listed_with_its_fixtures(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures", "-q")
    for fixture in ("coherer_node*session scope", "coherer_url*session scope", "coherer_topic"):
        result.stdout.fnmatch_lines([f"{fixture}*"])


ASYNC_TEST = """
import asyncio
import pytest

class TestOrders:
    @pytest.mark.parametrize("hours", [1, 1000])
    {marker}
    async def test_time_passes(self, coherer_simulated, hours, tmp_path):
        await asyncio.sleep(3600 * hours)
        assert asyncio.get_running_loop().time() == 3600 * hours
        assert coherer_simulated.url.startswith("tubemq://")

    {marker}
    async def test_an_error_is_reported(self, coherer_simulated):
        assert coherer_simulated is None
"""


FUNCTION_SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]  # without it, it warns


@pytest.mark.parametrize(
    ("marker", "options"),
    [
        ("", ["-p", "no:asyncio", "-p", "no:anyio"]),
        ("", ["-o", "asyncio_mode=auto", *FUNCTION_SCOPE]),
        ("@pytest.mark.asyncio", ["-o", "asyncio_mode=strict", *FUNCTION_SCOPE]),
    ],
)
def test_async_tests_need_no_other_plugin(
    pytester: pytest.Pytester, marker: str, options: list[str]
) -> None:
    pytester.makepyfile(ASYNC_TEST.format(marker=marker))
    result = pytester.runpytest_subprocess("-W", "error", *options)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*assert <SimulatedNode tubemq://* is None"])


MODULES_MAX = 251
"""Each costs about a third of a millisecond."""

UNUSED = {
    "coherer._server.http.service": "HTTP",
    "coherer._server.node.metrics": "pages",
    "coherer._server.node.serving": "pages",
    "coherer._server.tubemq.master.admin": "administration",
    "coherer._server.tubemq.broker.admin": "administration",
    "coherer._store.backup": "backup",
    "coherer._store.restore": "restore",
    "coherer._server.rocketmq.ha.replicator": "replication",
    "coherer.testing.simulated": "virtual time",
    "h11": "HTTP",
    "lark": "SQL filters",
    "opentelemetry": "tracing",
    "prometheus_client": "metrics of clients",
    "pydantic": "the command line",
    "rich": "the command line",
    "typer": "the command line",
}


INDIRECT = """
import asyncio
import pytest
from coherer.testing import explore

@pytest.fixture
def shop(coherer_simulated):
    return coherer_simulated

async def days_pass():
    await asyncio.sleep(1e6)
    assert asyncio.get_running_loop().time() == 1e6

async def test_a_fixture(shop):
    shop.create_topic("orders")
    await days_pass()

@pytest.mark.usefixtures("coherer_simulated")
async def test_a_mark():
    await days_pass()

class TestMethods:
    @staticmethod
    async def test_static(coherer_simulated):
        await days_pass()

    @classmethod
    async def test_class(cls, coherer_simulated):
        await days_pass()

    async def test_of_itself(self, shop):
        assert isinstance(self, TestMethods)
        await days_pass()

@pytest.mark.xfail(raises=pytest.UsageError, strict=True)
@explore(seeds=1)
async def test_explored(shop):
    await days_pass()
"""


@pytest.mark.parametrize("options", [[], ["-o", "asyncio_mode=auto"]])
def test_async_tests_reach_the_node_through_fixtures_and_marks(
    pytester: pytest.Pytester, options: list[str]
) -> None:
    pytester.makepyfile(INDIRECT)
    result = pytester.runpytest_subprocess(
        "-p", "no:randomly", "-q", "-o", "asyncio_default_fixture_loop_scope=function", *options
    )
    result.assert_outcomes(passed=5, xfailed=1)


HUNG = """
import asyncio
import pytest

@pytest.mark.coherer_virtual_time(hours=0.1)
async def test_hung(coherer_simulated):
    while True:
        await asyncio.sleep(1)

@pytest.mark.coherer_virtual_time(hours=0.1)
async def test_hung_cluster(coherer_simulated_cluster):
    while True:
        await asyncio.sleep(1)

@pytest.mark.coherer_virtual_time(24)
async def test_wrong(coherer_simulated):
    pass
"""


def test_a_mark_says_how_long_a_test_may_poll(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(HUNG)
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:asyncio")
    result.assert_outcomes(failed=2, errors=1)
    out = result.stdout.str()
    late = "It has not ended within 360 s of virtual time, leaps not counted."
    assert out.count(f"NeverEndsError: {late}") >= 2  # once more in a summary that is not cut
    assert f"test_hung waits at {path}:7" in out
    assert f"test_hung_cluster waits at {path}:12" in out
    assert "coherer_virtual_time has one named argument, as in hours=24." in out


def test_a_node_says_that_it_runs_in_async_functions(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio, unittest, pytest
        from coherer.errors import UsageError

        @pytest.fixture
        def after(coherer_simulated):
            yield
            with pytest.raises(UsageError, match="runs while an async test function does"):
                coherer_simulated.create_topic("orders")

        async def test_async(after):
            pass

        class Orders(unittest.IsolatedAsyncioTestCase):
            @pytest.fixture(autouse=True)
            def keep(self, coherer_simulated):
                self.node = coherer_simulated

            async def test_orders(self):
                for use in (self.node.start, self.node.stop):
                    with pytest.raises(UsageError, match="classes of unittest"):
                        await use()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-q")
    result.assert_outcomes(passed=2)


def test_a_node_loads_only_what_every_test_needs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gc
        import pathlib
        import sys

        def test_modules(coherer_node):
            assert gc.isenabled()
            pathlib.Path("loaded").write_text(" ".join(sys.modules))
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    loaded = set((pytester.path / "loaded").read_text().split())
    assert "coherer._server.node.node" in loaded
    assert UNUSED.keys() & loaded == set()
    assert sum(name.startswith("coherer.") for name in loaded) < MODULES_MAX


def test_http_loads_with_its_first_request(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, urllib.request

        def test_http(coherer_node):
            coherer_node.create_topic("t", 2)
            url = f"{coherer_node.admin_url}/metrics"
            assert b"rocketmq_topic_number" in urllib.request.urlopen(url).read()
            assert "h11" in sys.modules
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_nothing_heavy_is_imported_at_load() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules);"
        "import coherer.testing.plugin; print(*set(sys.modules) - before)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(out)
    assert len(out) < 10
