"""The programs and commands of the documentation run as they are printed, against a node."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from typer.testing import CliRunner

import coherer.blocking
from coherer.cli import main
from coherer.cli.serve.running import Ready
from coherer.rocketmq import StoredMessage, Verdict
from coherer.testing import EmbeddedNode, SimulatedCluster, SimulatedNode, embedded_node
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs"
LOGGERS = ["coherer", "coherer._net"]
PAGES = ["tutorial.md", "how-to/transactions.md", "how-to/worker.md"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    with embedded_node(tmp_path_factory.mktemp("docs")) as made:
        yield made


def blocks(page: str, language: str = "python") -> list[str]:
    """The programs of a page, or its blocks in another language."""
    text = (DOCS / page).read_text("utf-8")
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
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
    one, many = blocks("how-to/transactions.md")
    run("how-to/transactions.md", f"{one}\n{many}", node)
    assert capsys.readouterr().out == "COMMIT\n100 COMMIT []\n"


def test_a_payment_that_fails_leaves_no_message(node: EmbeddedNode) -> None:
    one, _ = blocks("how-to/transactions.md")
    program = one.replace("[sale.id, 100]", "[sale.id, -100]").replace("asyncio.run(main())", "")
    names = run("how-to/transactions.md", program, node)
    with pytest.raises(sqlite3.IntegrityError):
        asyncio.run(cast("Callable[[], Coroutine[None, None, None]]", names["main"])())
    (row,) = cast("sqlite3.Connection", names["books"]).execute("SELECT COUNT(*) FROM paid")
    assert row == (0,)
    half = StoredMessage("payments", b"100 cents", unique_id="0A")
    check = cast("Callable[[StoredMessage], Verdict]", names["was_paid"])
    assert check(half) is Verdict.ROLLBACK


def test_the_worker(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("how-to/worker.md")
    run("how-to/worker.md", block, node)
    printed = capsys.readouterr().out
    assert "charging b'42 EUR'" in printed
    assert "charging b'no such card'" in printed


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("processes.md", r"\w+\n\w+\n\w+\n"),
        ("idempotent.md", "order-1 True\norder-1 False\n"),
        ("speed.md", "<SendReport: 1000 sent, 0 failed>\n2000 received\n"),
        ("filters.md", "a tag: (UA|AA)\nan expression: DL 45\nan item: AA\n"),
        ("request-reply.md", "a pizza costs 42 EUR\n"),
        ("tracing.md", "cooking b'one (pizza|soup)'\n"),
    ],
)
def test_guides_for_services(
    page: str, printed: str, node: EmbeddedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(f"how-to/{page}"):
        names = run(f"how-to/{page}", block, node)
        if "producer_of" in names:  # its process ends long before this one
            producer_of = cast("Callable[[int], coherer.blocking.Producer]", names["producer_of"])
            producer_of(os.getpid()).close()
    coherer.blocking.forget(node.rocketmq_url)
    assert re.fullmatch(printed, capsys.readouterr().out)


def test_the_page_about_logs() -> None:
    """A line that repeats is written once, and names what it is about."""
    (block,) = blocks("how-to/logging.md")
    names = {logging.getLogger(name): logging.getLogger(name).level for name in LOGGERS}
    try:
        exec(compile(block, "how-to/logging.md", "exec"), {})
        assert logging.getLogger("coherer._client.x").isEnabledFor(logging.INFO)
        assert logging.getLogger("coherer._net.x").isEnabledFor(logging.DEBUG)
    finally:
        for logger, level in names.items():
            logger.setLevel(level)


def test_testing(coherer_rocketmq_url: str, coherer_topic: str, node: EmbeddedNode) -> None:
    simulated, order, moved, several, refused, fault, ordered, _, _ = blocks("how-to/testing.md")
    days = run("how-to/testing.md", simulated, node)["test_an_order_is_delivered_after_three_days"]
    refuses = run("how-to/testing.md", refused, node)["test_an_order_is_refused"]
    orders = run("how-to/testing.md", ordered, node)["test_orders_arrive_in_order"]
    for one in (days, refuses, orders):
        virtual = SimulatedNode()
        in_memory = cast("Callable[[SimulatedNode], Coroutine[None, None, None]]", one)
        virtual.run(in_memory(virtual))
    name = "test_orders_are_stored_while_a_broker_is_away"
    cluster = SimulatedCluster()
    away = run("how-to/testing.md", several, node)[name]
    cluster.run(cast("Callable[[object], Coroutine[None, None, None]]", away)(cluster))
    test = run("how-to/testing.md", order, node)["test_an_order_arrives"]
    cast("Callable[[str, str], None]", test)(coherer_rocketmq_url, coherer_topic)
    name = "test_a_send_fails_while_the_cluster_is_away"
    failing = run("how-to/testing.md", fault, node)[name]
    urls = cast("Callable[[str, str], Coroutine[None, None, None]]", failing)
    asyncio.run(urls(coherer_rocketmq_url, coherer_topic))
    later = run("how-to/testing.md", moved, node)["test_an_order_is_delivered_after_three_days"]
    cast("Callable[[], None]", later)()


def test_the_web_application(node: EmbeddedNode) -> None:
    from starlette.testclient import TestClient

    (block,) = blocks("how-to/web-application.md")
    with TestClient(run("how-to/web-application.md", block, node)["app"]) as web:  # type: ignore[arg-type]
        answer = web.post("/orders", content=b"one pizza")
    assert answer.status_code == 202
    assert answer.json()["id"]


@pytest.mark.parametrize(
    ("number", "library", "shown"),
    [
        (0, "pyarrow", " rows"),
        (1, "duckdb", "messages"),
        (2, "pandas", "value"),
        (3, "polars", "offset"),
    ],
)
def test_arrow(
    node: EmbeddedNode, capsys: pytest.CaptureFixture[str], number: int, library: str, shown: str
) -> None:
    from coherer import Message
    from coherer.blocking import connect

    pytest.importorskip(library)
    with connect(node.url) as client, client.producer() as producer:
        producer.send_many(Message("greetings", b"%d" % n) for n in range(1000)).check()
    run("how-to/arrow.md", blocks("how-to/arrow.md")[number], node)
    assert shown in capsys.readouterr().out


def test_arrow_reads_files(
    node: EmbeddedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from coherer import Message
    from coherer.blocking import connect

    pytest.importorskip("pyarrow")
    with (
        embedded_node(tmp_path) as stopped,
        connect(stopped.url) as client,
        client.producer() as producer,
    ):
        producer.send_many(Message("greetings", b"%d" % n) for n in range(1000)).check()
    block = blocks("how-to/arrow.md")[-1].replace("/data/store", str(tmp_path))
    run("how-to/arrow.md", block, node)
    assert capsys.readouterr().out == "1000 rows\n"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # a session that the snippet makes has no retries
def test_spark(node: EmbeddedNode, capsys: pytest.CaptureFixture[str]) -> None:
    from coherer import Message
    from coherer.blocking import connect

    with connect(node.url) as client, client.producer() as producer:
        producer.send(Message("greetings", b"for spark"))
    for page in ("how-to/spark.md", "how-to/spark-cluster.md"):
        (block,) = blocks(page)
        run(page, block, node)
        assert "rows" in capsys.readouterr().out


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the configuration file of the page."""
    monkeypatch.chdir(tmp_path)
    (file,) = blocks("how-to/configure.md", "toml")
    (tmp_path / "node.toml").write_text(file, "utf-8")
    return tmp_path


def test_the_commands_for_a_configuration(configured: Path) -> None:
    commands, start, *_ = blocks("how-to/configure.md", "bash")
    assert start == "coherer serve --config node.toml\n"
    example, check, show = (line.split()[1:] for line in commands.splitlines())
    assert example[-2:] == [">", "all.toml"]
    printed = CliRunner().invoke(main.app, example[:-2])
    (configured / "all.toml").write_text(printed.stdout, "utf-8")
    for words, told in (
        (["config", "check", "all.toml"], "sets 0 options"),
        (check, "sets 7 options"),
        (show, "retention_hours in node.toml"),
    ):
        done = CliRunner().invoke(main.app, words)
        assert done.exit_code == 0
        assert told in done.stdout


def test_the_variables_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "how-to/configure.md").read_text("utf-8")
    given = dict(re.findall(r"\| `(COHERER_\w+)=(.+?)` \|", text))
    assert len(given) == 4
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(main.app, ["config", "show"]).stdout
    assert all(f"{name} in the environment" in shown for name in given)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGHUP")
def test_a_configured_node(configured: Path) -> None:
    ports = ("MASTER", "BROKER", "NAMESRV", "ROCKETMQ", "ADMIN")
    node = subprocess.Popen(
        [sys.executable, "-m", "coherer", "serve", "--config", "node.toml", "--json"],
        env={**os.environ, **{f"COHERER_{port}_PORT": "0" for port in ports}},
        stdout=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        ready = msgspec.json.decode(node.stdout.readline(), type=Ready)
        pages = blocks("how-to/configure.md", "bash")[-1].split()[1::2]
        assert len(pages) == 3
        for page in pages:
            url = page.replace("http://127.0.0.1:8080", str(ready.admin_url))
            with urllib.request.urlopen(url) as answer:
                assert answer.status == 200
        file, log = configured / "node.toml", configured / "node.log"
        shown = msgspec.json.decode(blocks("how-to/configure.md", "json")[0])
        assert shown.keys() <= msgspec.json.decode(log.read_bytes().splitlines()[0]).keys()
        file.write_text(file.read_text("utf-8").replace("24", "48").replace("sync", "async"))
        node.send_signal(signal.SIGHUP)
        asyncio.run(until(lambda: "a restart is needed for flush" in log.read_text("utf-8")))
    finally:
        node.terminate()
        node.wait()
        if node.stdout is not None:
            node.stdout.close()
