"""The programs of docs/how-to/faststream.md run as they are printed, against a node."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from faststream import FastStream
from faststream.kafka import TestKafkaBroker

from coherer.integrations.faststream import RocketMQBroker
from coherer.testing import embedded_node
from tests.integrations.faststream.received import Received

PAGE = Path(__file__).parents[3] / "docs/how-to/faststream.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
BEFORE, SHOP, TEST, FAILURES, MORE = BLOCKS


def run(program: str, url: str, folder: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop"}
    program = program.replace("rocketmq://127.0.0.1:9876", url)
    file = folder / "shop.py"  # FastStream's test brokers read the source of their caller
    file.write_text(program, "utf-8")
    exec(compile(program, str(file), "exec", dont_inherit=True), names)
    return names


async def test_the_application_before_the_move(tmp_path: Path) -> None:
    names = run(BEFORE, "", tmp_path)
    async with TestKafkaBroker(names["broker"]):
        await names["first_order"]()
        names["bill"].mock.assert_called_once_with({"id": 1, "euros": 42})


async def test_the_application_after_the_move(url: str, tmp_path: Path) -> None:
    names, got = run(SHOP, url, tmp_path), Received()
    app: FastStream = names["app"]
    watcher = RocketMQBroker(url)

    @watcher.subscriber("invoices")
    async def invoice(text: str) -> None:
        got.add(text)

    async with watcher:
        await watcher.start()
        running = asyncio.create_task(app.run())
        assert await got.wait(1) == ["order 1: 42 EUR"]
        app.exit()
        await running
    [command] = re.findall("^coherer (consume .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    words = command.replace("rocketmq://127.0.0.1:9876", url).split()
    shown = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("coherer"), *words, stdout=asyncio.subprocess.PIPE
    )
    assert (await shown.communicate())[0] == b"order 1: 42 EUR\n"


def test_the_test(url: str, tmp_path: Path) -> None:
    run(TEST, url, tmp_path)


def test_failures(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(FAILURES, url, tmp_path)
    printed = capsys.readouterr().out
    assert "7 EUR, attempt 1\n" in printed
    assert "101 EUR, attempt 2\n" in printed
    assert "-1 EUR" not in printed


def test_filters_order_times_and_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with embedded_node() as node:
        run(MORE, node.rocketmq_url, tmp_path)
    printed = capsys.readouterr().out
    assert sorted(re.findall("^(?:tag|late|step|a) .*", printed, re.MULTILINE)) == [
        "a pizza costs 42 EUR",
        "late AA 2",
        "late UA 1",
        "step one",
        "step two",
        "tag UA 1",
    ]
    assert printed.index("step one") < printed.index("step two")
