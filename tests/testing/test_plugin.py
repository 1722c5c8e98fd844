"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    result.stdout.fnmatch_lines(
        ["*coherer_node*session scope*", "*coherer_url*session scope*", "*coherer_topic*"]
    )


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
