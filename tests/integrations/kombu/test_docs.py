"""The programs of docs/how-to/celery.md run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from coherer.integrations.kombu import RocketMQ
from tests.integrations.programs import ROOT, Program

PAGE = (ROOT / "docs/how-to/celery.md").read_text("utf-8")
BEFORE, AFTER, CALLS, PARTITIONS, CLUSTER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_application_after_the_move(tmp_path: Path, coherer_rocketmq_url: str) -> None:
    shop = AFTER.replace("rocketmq://127.0.0.1:9876", coherer_rocketmq_url)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "calls.py").write_text(CALLS)
    commands = [line.split() for line in PAGE.splitlines() if line.startswith("celery -A shop")]
    assert [command[3] for command in commands] == ["worker", "inspect"]
    log = tmp_path / "worker.log"
    celery = ["-m", "celery", *commands[0][1:], "-c", "2"]
    with Program(*celery, log=log, folder=tmp_path) as worker:
        worker.await_text(" ready.")
        pong = [sys.executable, "-m", "celery", *commands[1][1:], "--timeout", "5"]
        options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True}
        found = subprocess.run(pong, timeout=60, check=True, **options)
        assert "pong" in found.stdout
        calls = [sys.executable, "calls.py"]
        found = subprocess.run(calls, timeout=60, check=True, **options)
        assert found.stdout == "order 7: 42 EUR\norder 8: 42 EUR\n"


def test_the_application_before_the_move_is_one_of_celery() -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(BEFORE, "before", "exec"), names)
    assert names["app"].conf.broker_url.startswith("redis://")


def test_the_configurations() -> None:
    for block in (PARTITIONS, CLUSTER):
        names: dict[str, Any] = {"__name__": "shop"}
        exec(compile(block, "block", "exec"), names)
        transport = names["app"].connection_for_write().transport
        assert isinstance(transport, RocketMQ)
    assert transport.client.alt[1].startswith("rocketmqs://")
