"""The Python of the documentation runs as it is printed, against a node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from coherer.testing import EmbeddedNode, embedded_node

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["tutorial.md", "how-to/transactions.md", "how-to/worker.md"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    with embedded_node(tmp_path_factory.mktemp("docs")) as made:
        yield made


def blocks(page: str) -> list[str]:
    """The Python programs of a page."""
    text = (DOCS / page).read_text("utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    return found


def run(page: str, block: str, node: EmbeddedNode) -> dict[str, object]:
    """Execute a block with the node's addresses for those of a node with the usual ports."""
    block = block.replace("tubemq://127.0.0.1:8715", node.url)
    block = block.replace("rocketmq://127.0.0.1:9876", node.rocketmq_url)
    names: dict[str, object] = {"__name__": "snippet"}
    exec(compile(block, page, "exec"), names)
    return names


def test_the_tutorial(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("tutorial.md"):
        run("tutorial.md", block, node)
    printed = capsys.readouterr().out
    assert "stored in partition" in printed
    assert "received 1001 messages, the last one:" in printed
    assert "en b'hello'" in printed


def test_transactions(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("how-to/transactions.md")
    run("how-to/transactions.md", block, node)
    assert capsys.readouterr().out == "COMMIT\n"


def test_the_worker(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("how-to/worker.md")
    run("how-to/worker.md", block, node)
    printed = capsys.readouterr().out
    assert "charging b'42 EUR'" in printed
    assert "charging b'no such card'" in printed


def test_testing(coherer_rocketmq_url: str, coherer_topic: str, node: EmbeddedNode) -> None:
    (block,) = blocks("how-to/testing.md")
    test = run("how-to/testing.md", block, node)["test_an_order_arrives"]
    cast("Callable[[str, str], None]", test)(coherer_rocketmq_url, coherer_topic)


def test_the_web_application(node: EmbeddedNode) -> None:
    from starlette.testclient import TestClient

    (block,) = blocks("how-to/web-application.md")
    with TestClient(run("how-to/web-application.md", block, node)["app"]) as web:  # type: ignore[arg-type]
        answer = web.post("/orders", content=b"one pizza")
    assert answer.status_code == 202
    assert answer.json()["id"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # a session that the snippet makes has no retries
def test_spark(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    from coherer import Message
    from coherer.blocking import connect

    with connect(node.url) as client, client.producer() as producer:
        producer.send(Message("greetings", b"for spark"))
    (block,) = blocks("how-to/spark.md")
    run("how-to/spark.md", block, node)
    assert "rows" in capsys.readouterr().out
