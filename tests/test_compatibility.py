"""The page about compatibility says what the code does: every request code, every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coherer
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Handler
from coherer._client.rocketmq.transactions import Verdict
from coherer._wire.rocketmq.codes import RequestCode
from coherer.testing import async_embedded_node
from tests.interop.peers.mqadmin import COMMANDS, NOT_RUN
from tests.interop.peers.releases import CASES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
ROWS = {
    int(code): (name, who, text)
    for code, name, who, text in re.findall(
        r"(?m)^\| (\d+) \| ([A-Z_0-9]+) \| ([^|]+) \| ([^|]+) \|$", PAGE
    )
}


def test_every_request_code_has_a_row() -> None:
    assert {code: row[0] for code, row in ROWS.items()} == {int(c): c.name for c in RequestCode}


async def test_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    by_client: set[int] = set()

    def handle(self: Instance, code: int, handler: Handler) -> None:
        by_client.add(code)
        register(self, code, handler)

    register = Instance.handle
    monkeypatch.setattr(Instance, "handle", handle)
    async with (
        async_embedded_node() as node,
        coherer.connect(node.rocketmq_url) as client,
        client.producer("t", check=lambda _message: Verdict.UNKNOWN),
        client.consumer("g", "t"),
    ):
        assert node.rocketmq is not None
        broker, name_server = node.rocketmq.broker, node.rocketmq.name_server
        assert broker is not None
        assert name_server is not None
        assert _said("broker") == broker.codes
        assert _said("name server") == set(name_server.handlers)
        assert _said("client") == by_client


def _said(who: str) -> set[int]:
    return {code for code, row in ROWS.items() if who in row[1].split(", ")}


def test_what_works_has_a_test() -> None:
    linked = {link for row in ROWS.values() for link in re.findall(r"\]\(\.\./([^)]+)\)", row[2])}
    assert linked
    assert [link for link in sorted(linked) if not (ROOT / link).is_file()] == []
    for code, (name, who, text) in ROWS.items():
        assert text.startswith("works: [") == (who != "nobody"), (code, name)


def test_every_command_of_javas_tools_has_a_row() -> None:
    rows = dict(re.findall(r"(?m)^\| (\w+) \| ((?:works|not run)[^|]*) \|$", PAGE))
    run = {command.name for command in COMMANDS}
    assert {name for name, text in rows.items() if text.startswith("works")} == run
    assert {name for name, text in rows.items() if text.startswith("not run: ")} == {
        command.name for command in NOT_RUN
    }


def test_every_release_that_is_tried_has_a_row() -> None:
    rows = re.findall(r"(?m)^\| Apache [^|]+ \| ([0-9.]+) \| [^|]*\| `([a-z0-9.-]+)` \|$", PAGE)
    assert [case for _, case in rows] == CASES
    assert all(case.endswith(f"-{release}") for release, case in rows)
