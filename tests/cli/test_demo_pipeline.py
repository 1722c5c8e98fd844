"""`coherer demo --pipeline`: both runs of the pipeline, and what must be installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from coherer.cli.demo import pipeline
from coherer.cli.demo.pipeline import Tally, check_installed, copy_project
from coherer.errors import UsageError
from tests.cli.test_demo import Run, needs_proc

CLEAN = Tally(flights=10, broken=2, bronze=12, distinct=12, silver=10, dead=2, late=1, alerts=1)


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
def test_both_runs_land_everything(tmp_path: Path) -> None:
    """Flights are sent over TubeMQ, then over RocketMQ; the pipeline reads over RocketMQ."""
    run = Run(tmp_path, "--pipeline", "--rows", "900", "--via", "both")
    code, output, errors = run.finish()
    assert (code, errors) == (0, ""), output
    assert "nothing lost, nothing duplicated" in output
    last = [line.split() for line in output.splitlines() if line.split()[:2] == ["2", "900"]]
    assert [row[:6] for row in last] == [["2", "900", "2", "902", "900", "2"]]
    assert run.left_over() == []
    assert list(run.temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["distinct", "silver", "dead", "alerts"])
def test_every_difference_shows(name: str) -> None:
    from msgspec.structs import replace

    assert CLEAN.clean
    assert not replace(CLEAN, **{name: getattr(CLEAN, name) - 1}).clean


def test_a_copy_keeps_its_checkpoints_to_itself(tmp_path: Path) -> None:
    spec = copy_project(tmp_path / "flights")
    values = yaml.safe_load(spec.read_text("utf-8"))
    assert values["storage"] == (tmp_path / "flights" / "storage").as_uri()
    assert (spec.parent / "transformations" / "flights.py").is_file()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "grpc" else find(name))
    with pytest.raises(UsageError, match=r"needs grpc\. .*coherer\[demo,pipelines\]"):
        check_installed()
