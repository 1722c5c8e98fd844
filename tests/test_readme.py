"""The README's Python runs as it stands, against a node of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

import coherer.blocking
from coherer.testing import embedded_node

BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).parent.parent / "README.md").read_text("utf-8"),
    re.DOTALL,
)
SPARK = [block for block in BLOCKS if "pyspark" in block]
FIXTURE = [block for block in BLOCKS if "def test_" in block]
SCRIPTS = [block for block in BLOCKS if block not in SPARK + FIXTURE]


def run(block: str, url: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "readme"}
    for usual in ("tubemq://127.0.0.1:8715", "rocketmq://127.0.0.1:9876"):
        block = block.replace(usual, url)
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_there_is_something_to_run() -> None:
    assert (len(SCRIPTS), len(SPARK), len(FIXTURE)) == (4, 1, 1)


def test_the_scripts_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_node() as node:
        for block in SCRIPTS:
            run(block, node.rocketmq_url if "rocketmq://" in block else node.url)
    said = capsys.readouterr().out
    assert "stored in partition" in said
    assert "en b'hello'" in said
    assert "('42',) b'42'" in said


def test_the_test_runs(coherer_rocketmq_url: str, coherer_topic: str) -> None:
    (block,) = FIXTURE
    test = cast("Callable[[str, str], None]", run(block, coherer_rocketmq_url)["test_it"])
    test(coherer_rocketmq_url, coherer_topic)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # a session that is made here has no retries
def test_the_spark_snippet_runs(coherer_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with coherer.blocking.connect(coherer_url) as client, client.producer("greetings") as producer:
        producer.send(coherer.Message("greetings", b"for spark"))
    (block,) = SPARK
    run(block, coherer_url)
    assert "partition" in capsys.readouterr().out
