"""The program of docs/how-to/dramatiq.md runs as it is printed, against a node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.integrations.programs import Program, added_lines, lines, until

PAGE = Path(__file__).parents[3] / "docs/how-to/dramatiq.md"
TEXT = PAGE.read_text("utf-8")
[SHOP] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_new_lines_are_those_of_the_program() -> None:
    assert added_lines(TEXT) <= {*SHOP.splitlines()}


def test_the_application(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("rocketmq://127.0.0.1:9876", url), "utf-8")
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=60)
    command = ("-m", "dramatiq", "shop", "--processes", "2", "--threads", "2")
    with Program(*command, log=tmp_path / "log", folder=tmp_path) as worker:
        until(lambda: {"order 1: 42 EUR", "order 2: 7 EUR"} <= {*lines(worker.log)})
        assert worker.stop() == 0
