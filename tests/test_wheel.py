"""The wheel is pure, and runs outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import coherer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

PROGRAM = """
import sys, coherer, coherer.blocking
from coherer.testing import embedded_node
assert coherer.__file__.startswith(sys.argv[1]), coherer.__file__
with embedded_node() as node, coherer.blocking.connect(node.url) as client:
    with client.producer("t") as producer:
        print(producer.send(coherer.Message("t", b"x")).offset)
import importlib.util
assert importlib.util.find_spec("pyspark_tubemq").origin.startswith(sys.argv[1])
"""

REWRITTEN = """
import sys

def test_a_node(coherer_node):
    loaders = {name: type(module.__spec__.loader).__name__ for name, module in sys.modules.items()
               if name.split(".")[0] == "coherer"}
    assert loaders["coherer._server.node.node"] == "SourceFileLoader"
    assert list(loaders.values()).count("AssertionRewritingHook") <= 6, loaders
"""


def run(*words: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_pure_and_runs_elsewhere(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", str(ROOT), cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    target = tmp_path / "installed"
    run(*pip, "install", "--no-deps", "--target", str(target), str(wheel), cwd=tmp_path)
    assert (target / "coherer/cli/demo/flights/spark-pipeline.yml").is_file()
    console = target / "coherer/console"
    assert {file.suffix for file in (console / "static/vendor").iterdir()} == {
        ".js", ".css", ".txt",
    }  # fmt: skip
    assert (console / "templates/base.html").is_file()
    path = {"PYTHONPATH": str(target)}
    assert run(sys.executable, "-c", PROGRAM, str(target), cwd=tmp_path, **path) == "0\n"
    version = run(sys.executable, "-m", "coherer", "--version", cwd=tmp_path, **path)
    assert version == f"coherer {coherer.__version__}\n"
    # What pytest imports before the plugin's finder is there is rewritten.
    (tmp_path / "test_it.py").write_text(REWRITTEN)
    run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path, **path)
