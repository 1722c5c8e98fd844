"""The programs of docs/how-to/taskiq.md run as they are printed, against a node."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from coherer.blocking.rocketmq import connect
from tests.integrations.programs import Program, added_lines, lines, until
from tests.integrations.taskiq.conftest import Working

PAGE = Path(__file__).parents[3] / "docs/how-to/taskiq.md"
TEXT = PAGE.read_text("utf-8")
SHOP, TOPICS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_new_lines_are_those_of_the_program() -> None:
    assert added_lines(TEXT) <= {*SHOP.splitlines()}


def test_the_application(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("rocketmq://127.0.0.1:9876", url), "utf-8")
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=60)
    command = ("-m", "taskiq", "worker", "shop:broker", "--workers", "2")
    with Program(*command, log=tmp_path / "log", folder=tmp_path) as worker:
        until(lambda: {"order 1: 42 EUR", "order 2: 7 EUR"} <= {*lines(worker.log)})
        assert worker.stop() == 0


async def test_topics(url: str, working: Working, capfd: Any) -> None:
    names: dict[str, Any] = {"__name__": __name__}  # Taskiq looks for the module of a task
    exec(compile(TOPICS.replace("rocketmq://127.0.0.1:9876", url), "shop.py", "exec"), names)
    printed = ""
    async with asyncio.timeout(60), working(names["fast"]), working(names["slow"]):
        await names["greet"].kiq("you")
        await names["report"].kiq(2026)
        while printed.count("\n") < 2:
            await asyncio.sleep(0.02)
            printed += capfd.readouterr().out
    assert sorted(printed.splitlines()) == ["hello you", "report of 2026"]
    with connect(url) as client:
        assert {"taskiq", "slow-workers"} <= set(client.admin().groups.names())
