"""What `tools/run_tests.py` runs again, and what it leaves out."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
ONCE = """
from pathlib import Path
def test_{name}():
    seen = Path(__file__ + ".{name}")
    ran = seen.exists()
    seen.touch()
    assert ran, "the broker was late"
"""
Run = Callable[..., int]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE.parent / "tools")
    spec = importlib.util.spec_from_file_location("peers", HERE.parent / "tools/run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(tests: str, *others: str) -> int:
        (tmp_path / "conftest.py").write_text("from tests.conftest import *")
        (tmp_path / "test_it.py").write_text(tests)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
            monkeypatch.delenv(name, raising=False)
        group = tool.Group(("-q", "-p", "no:cacheprovider", "test_it.py", *others), share=1.0)
        monkeypatch.setattr(tool, "groups", lambda: [group])
        code = tool.main()
        assert isinstance(code, int)
        return code

    return run


def test_what_passes_alone_is_listed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ONCE.format(name="late")) == 0
    shown = capsys.readouterr().out
    assert "unstable" in shown
    assert "the broker was late" in shown


def test_what_fails_twice_fails_the_run(run: Run) -> None:
    assert run("def test_it(): assert 1 == 2") == 1


def test_failures_of_a_run_within_a_test_are_not_noted_for_the_outer_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "failures"
    outer.touch()
    monkeypatch.setenv("COHERER_FAILURES", str(outer))
    assert run("def test_it(): assert 1 == 2") == 1
    assert outer.read_text() == ""


def test_tests_of_more_than_five_files_are_not_tried_again(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abcde":
        (tmp_path / f"test_{name}.py").write_text(ONCE.format(name=name))
    assert run(ONCE.format(name="f"), "test_a.py", "test_b.py", "test_c.py") == 0
    for path in tmp_path.glob("test_*.py.*"):
        path.unlink()
    assert run(ONCE.format(name="f"), *(f"test_{name}.py" for name in "abcde")) == 1
    assert "Tests of 6 files failed" in capsys.readouterr().out


def test_a_fixture_that_fails_once_fails_no_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    late = """
import pytest
from pathlib import Path
@pytest.fixture(scope="module")
def broker():
    seen = Path(__file__ + ".seen")
    ran = seen.exists()
    seen.touch()
    assert ran, "the broker was late"
"""
    tests = "".join(f"def test_{number}(broker): pass\n" for number in range(10))
    assert run(late + tests) == 0
    assert "the broker was late" in capsys.readouterr().out


def test_a_run_without_failures_lists_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("def test_it(): assert 1 == 1") == 0
    assert "unstable" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("left_s", "mark", "ran"),
    [(-1, "slow", False), (-1, "filterwarnings", True), (600, "slow", True), (None, "slow", True)],
)
def test_what_begins_too_late_is_left_out_and_listed(
    run: Run,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    left_s: int | None,
    mark: str,
    ran: bool,
) -> None:
    monkeypatch.delenv("COHERER_TESTS_END", raising=False)
    if left_s is not None:
        monkeypatch.setenv("COHERER_TESTS_END", str(time.monotonic() + left_s))
    test = 'def test_it(): __import__("pathlib").Path("ran").touch()'
    assert run(f"import pytest\n@pytest.mark.{mark}\n{test}") == 0
    assert (tmp_path / "ran").exists() is ran
    shown = capfd.readouterr().out
    assert ("1 tests left out" in shown) is not ran
    assert ("1  test_it.py" in shown) is not ran


def test_tests_that_cannot_be_collected_fail_the_run(run: Run) -> None:
    assert run("import nothing_like_it") != 0
