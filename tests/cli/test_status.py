"""`coherer status` and `coherer top`."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

import coherer
from coherer._administration.overview import Overview
from coherer._client.tubemq.administration.admin import Admin
from coherer._common.node_status import (
    LimitStatus,
    ListenerStatus,
    NodeStatus,
    Rate,
    StatusWarning,
)
from coherer.admin import Broker, Group, Partition, Topic
from coherer.cli.main import app
from coherer.cli.status import rendered as rendered_status
from coherer.cli.top import (
    GroupRate,
    Rates,
    Snapshot,
    Sort,
    TopicRate,
    ordered,
    rates,
    take_snapshot,
)
from coherer.cli.top import rendered as rendered_top
from coherer.message import Message
from coherer.testing import EmbeddedNode, embedded_node

run = CliRunner()


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node(admin_port=0, default_partitions=2) as node:
        node.create_topic("flights", 2)
        with coherer.blocking.connect(node.rocketmq_url) as client:
            with client.producer("flights") as producer:
                producer.send_many([Message("flights", b"x")] * 10).check()
            with client.consumer("readers", ["flights"], start="earliest") as consumer:
                read = 0
                while read < 10:
                    batch = consumer.receive(10_000)
                    assert batch is not None
                    read += len(batch)
                    consumer.commit(batch)
            with client.producer("flights") as producer:
                producer.send_many([Message("flights", b"x")] * 3).check()
        yield node


def output_of(*words: str) -> str:
    done = run.invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_status_of_a_node_has_everything(node: EmbeddedNode) -> None:
    found: dict[str, Any] = msgspec.json.decode(output_of("status", "-u", node.url, "--json"))
    assert (found["lag"], found["groups"]) == (3, 1)
    of_node = found["node"]
    assert (of_node["ready"], of_node["reason"], of_node["version"]) == (
        True, "", coherer.__version__,
    )  # fmt: skip
    names = {one["name"] for one in of_node["listeners"]}
    assert {"TubeMQ master", "RocketMQ broker", "HTTP administration"} <= names
    assert [one["name"] for one in of_node["limits"]] == [
        "connections", "unfinished requests", "unsent answers",
    ]  # fmt: skip
    assert of_node["disk"]["log_bytes"] > 0
    assert of_node["disk"]["damaged_bytes"] == 0
    assert {one["name"] for one in of_node["rates"]} == {"messages in", "bytes in", "messages out"}


def test_status_is_shown_as_text(node: EmbeddedNode) -> None:
    text = output_of("status", "-u", node.url)
    assert re.search(r"ready for \d+ (s|min)", text)
    assert re.search(r"lag\s+3\b", text)
    listed = msgspec.json.decode(output_of("topics", "list", "-u", node.url, "--json"))
    assert re.search(rf"topics\s+{len(listed)}\b", text), "as topics list counts them"
    assert "HTTP administration" in text


def test_over_rocketmq_status_shows_what_the_protocol_reports(node: EmbeddedNode) -> None:
    found = msgspec.json.decode(output_of("status", "-u", node.rocketmq_url, "--json"))
    assert found["node"] is None
    assert (found["lag"], found["brokers"][0]["status"]) == (3, "running")
    text = output_of("status", "-u", node.rocketmq_url)
    assert "limit" not in text


def test_warnings_say_what_to_do() -> None:
    with embedded_node(admin_port=0, users={"me": "a"}, unprotected=frozenset({"tubemq"})) as node:
        found = msgspec.json.decode(
            output_of("status", "-u", node.url, "--user", "me", "--password", "a", "--json")
        )
        (warning,) = found["node"]["warnings"]
        assert warning["text"].startswith("TubeMQ is served without accounts")
        assert warning["action"] == "Remove tubemq from `unprotected`."
        refused = run.invoke(app, ["status", "-u", node.url])
        assert refused.exit_code == 1


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_top_shows_rates_and_lag(node: EmbeddedNode, protocol: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    words = ["top", "-u", url, "--once", "--interval", "0.1", "--json"]
    found = msgspec.json.decode(output_of(*words), type=Rates)
    topics = {one.topic: one for one in found.topics}
    assert (topics["flights"].messages, topics["flights"].in_per_s) == (13, 0)
    (group,) = [one for one in found.groups if one.topic == "flights"]
    assert (group.group, group.lag, group.out_per_s) == ("readers", 3, 0)
    text = output_of(*words[:-1], "--sort", "lag")
    assert re.search(r"readers\s+flights\s+\d\s+0\s+3", text)


def test_rates_are_differences_of_known_offsets() -> None:
    before = Snapshot(
        10.0,
        {"a": {"0": (0, 5), "1": (0, 5)}, "b": {"0": (0, None)}},
        {("g", "a"): {"0": (1, 4), "1": (2, 3)}, ("h", "a"): {"0": (None, None)}},
        {"g": 2},
    )
    after = Snapshot(
        12.0,
        {"a": {"0": (1, 9), "1": (0, 11)}, "b": {"0": (0, 7)}, "c": {"0": (0, 4)}},
        {("g", "a"): {"0": (4, 5), "1": (5, 6)}, ("h", "a"): {"0": (3, None)}},
        {"g": 1},
    )
    found = rates(before, after, Sort.NAME)
    assert [(one.topic, one.in_per_s, one.messages) for one in found.topics] == [
        ("a", 5.0, 19),
        ("b", None, 7),
        ("c", None, 4),
    ]
    assert [(one.group, one.members, one.out_per_s, one.lag) for one in found.groups] == [
        ("g", 1, 3.0, 11),
        ("h", 0, None, None),
    ]
    assert [one.topic for one in ordered(found, Sort.RATE).topics] == ["a", "b", "c"]
    assert [one.topic for one in ordered(found, Sort.LAG).topics] == ["a", "b", "c"]
    assert [one.group for one in ordered(found, Sort.LAG).groups] == ["g", "h"]


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        import pty

        self._main, other = pty.openpty()
        command = [str(Path(sys.executable).parent / "coherer"), *words]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment
        )
        os.close(other)
        self.text = ""

    def until(self, words: str) -> None:
        """Read until these words have been printed."""
        deadline_s = time.monotonic() + 60
        while words not in self.text:
            ready, _, _ = select.select([self._main], [], [], deadline_s - time.monotonic())
            assert ready, self.text
            self.text += os.read(self._main, 65_536).decode("utf-8", "replace")

    def press(self, key: str) -> None:
        self.text = ""
        os.write(self._main, key.encode())

    def exit_code(self) -> int:
        """Read until the program has ended: it cannot end while nobody takes what it prints."""
        with suppress(OSError):  # there is no terminal after its end
            while os.read(self._main, 65_536):
                pass
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._main)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_top_sorts_and_quits_by_keys(node: EmbeddedNode, terminals: list[Terminal]) -> None:
    terminal = Terminal("top", "-u", node.url, "--interval", "0.2")
    terminals.append(terminal)
    terminal.until("sorted by rate")
    terminal.press("n")
    terminal.until("sorted by name")
    terminal.press("q")
    assert terminal.exit_code() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_watch_redraws_the_status(node: EmbeddedNode, terminals: list[Terminal]) -> None:
    terminal = Terminal("status", "-u", node.url, "--watch", "--interval", "0.2")
    terminals.append(terminal)
    terminal.until("Not shown: limits, ports.")
    terminal.press("")
    terminal.until("Not shown: limits, ports.")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.exit_code() in {1, 130}


@pytest.mark.parametrize("command", [("status", "--watch"), ("top",)])
def test_a_view_goes_on_while_the_node_is_restarted(command: tuple[str, ...]) -> None:
    """It ended when it was needed most."""
    words = [*command, "--interval", "0.2", "--json"]
    with embedded_node() as node:
        process = subprocess.Popen(
            [sys.executable, "-m", "coherer", *words, "-u", node.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            with node.down():
                for _ in range(2):
                    assert process.stderr.readline().startswith(b"error: ")
            for _ in range(10):  # some of them are from before
                assert process.stdout.readline().startswith(b"{")
        finally:
            process.kill()
            process.communicate()


class JavaAdmin:
    """What the administration of a Java TubeMQ cluster reports: partitions share an index."""

    def __init__(self, messages: int, read: int) -> None:
        self.parts = [
            Partition("t", "1", number, 0, messages * 28, committed=read * 28,
                          lag=messages - read, offset_step=28)
            for number in (0, 1, 10_000)
        ]  # fmt: skip

        self.topics = SimpleNamespace(list=self._topics, partitions=self._partitions)
        self.groups = SimpleNamespace(list=self._groups)

    async def _topics(self) -> list[Topic]:
        return [Topic("t", 3, {"1": 3}, writable=True, readable=True)]

    async def _partitions(self, topic: str) -> list[Partition]:
        assert topic == "t"
        return self.parts

    async def _groups(self) -> list[Group]:
        return [Group("g", ("t",), (), tuple(self.parts))]


async def test_a_store_of_javas_broker_counts_once() -> None:
    before = await take_snapshot(cast("Admin", JavaAdmin(100, 40)))
    after = await take_snapshot(cast("Admin", JavaAdmin(160, 100)))
    found = rates(msgspec.structs.replace(before, at_s=after.at_s - 10), after, Sort.RATE)
    assert [(one.in_per_s, one.messages) for one in found.topics] == [(12, 320)]
    assert [(one.out_per_s, one.lag) for one in found.groups] == [(12, 120)]


def crowded(warnings: int = 2) -> Overview:
    """The status of a node with many ports, limits and brokers."""
    node = NodeStatus(
        version="1.0", pid=7, running_s=90.0, directory="/var/lib/coherer", ready=True, reason="",
        listeners=tuple(ListenerStatus(f"port {n}", f"127.0.0.1:{n}") for n in range(10)),
        topics=3, groups=2, rates=(Rate("messages in", 1.0, 2.0),), disk=None,
        limits=tuple(LimitStatus(f"limit {n}", 1, 10) for n in range(3)), memory_bytes=1 << 20,
        loop_lag_ms=4.0,
        warnings=tuple(StatusWarning(f"Problem {n}.", "Do this.") for n in range(warnings)),
    )  # fmt: skip
    brokers = tuple(
        Broker(f"broker-{n}", n, f"10.0.0.{n}:10911", "broker", "running") for n in range(30)
    )
    return Overview(node.warnings, brokers, 3, 2, 7, (), node)


def screen_of(view: RenderableType, height: int) -> list[str]:
    """The lines of a view on a terminal 80 characters wide, which must fit."""
    console = Console(width=80, height=height, file=io.StringIO())
    console.print(view)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert len(lines) <= height, lines
    return [line.rstrip() for line in lines]


def test_warnings_come_first_and_tables_are_cut_to_the_screen() -> None:
    console = Console(width=80, height=24, file=io.StringIO())
    lines = screen_of(rendered_status(crowded(), console, 23), 23)
    assert lines[0].startswith("coherer 1.0, process 7: ready")
    assert lines[1:3] == ["! Problem 0. Do this.", "! Problem 1. Do this."]
    text = "\n".join(lines)
    assert re.search(r"broker-0\b", text)
    cut = re.search(r"… (\d+) more", text)
    assert cut is not None, text
    assert int(cut[1]) + len(re.findall(r"^broker-\d", text, re.MULTILINE)) == 30
    assert lines[-1] == "Not shown: limits, ports."
    whole = screen_of(rendered_status(crowded(), console), 200)
    assert any(line.startswith("port 9") for line in whole), "without a screen nothing is cut"


def test_more_warnings_than_lines_are_counted() -> None:
    console = Console(width=80, height=24, file=io.StringIO())
    lines = screen_of(rendered_status(crowded(60), console, 23), 23)
    shown = [line for line in lines if line.startswith("! Problem")]
    assert f"… {60 - len(shown)} more" in lines
    assert len(shown) > 15


def test_top_fits_the_screen_and_counts_what_it_leaves_out() -> None:
    long_name = "a-topic-with-a-name-that-is-far-too-long-for-a-column-of-a-narrow-terminal-"
    found = Rates(
        1.0,
        tuple(TopicRate(f"{long_name}{n}", 1.0, 5) for n in range(40)),
        tuple(GroupRate(f"{long_name}{n}", f"{long_name}{n}", 1, 1.0, 9) for n in range(40)),
    )
    console = Console(width=80, height=24, file=io.StringIO())
    lines = screen_of(rendered_top(found, Sort.LAG, console, 24), 24)
    assert len([line for line in lines if re.fullmatch(r"… \d+ more", line)]) == 2
    assert "q: quit" in " ".join(lines[:2])
