"""The programs of docs/how-to/testing.md that test with `coherer-node` in other languages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.peers.cache import UnavailableError
from tests.interop.peers.others import HERE, node_modules
from tests.interop.peers.rocket_site import RocketSite

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"
TIMEOUT_S = 300


def write_program(language: str, path: Path) -> None:
    block = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    (program,) = block.findall(PAGE.read_text("utf-8"))
    path.write_text(program, "utf-8")


def run_beside_our_commands(*command: str | Path, folder: Path, **env: str) -> str:
    """Run a program that finds `coherer-node` on its PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_node(tmp_path: Path) -> None:
    try:
        modules = node_modules()
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))
    write_program("javascript", tmp_path / "orders.js")
    said = run_beside_our_commands("node", "orders.js", folder=tmp_path, NODE_PATH=str(modules))
    assert said == "an order\n"


def test_go(rocket: RocketSite, tmp_path: Path) -> None:
    if not rocket.has("go"):
        pytest.skip("no client in Go")
    write_program("go", tmp_path / "orders_test.go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, tmp_path)
    said = run_beside_our_commands("go", "test", "-v", "-count=1", ".", folder=tmp_path)
    assert "--- PASS: TestAnOrderArrives" in said


def test_java(rocket: RocketSite, tmp_path: Path) -> None:
    write_program("java", tmp_path / "Orders.java")
    *options, _ = rocket.java.command("Orders")
    said = run_beside_our_commands(*options, "Orders.java", folder=tmp_path)
    assert said.splitlines()[-1] == "an order"
