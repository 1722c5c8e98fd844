"""The administration is that of the cluster that the URL names, or nothing is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer import _net as net
from coherer._client.tubemq.client import Client
from coherer._server.node.node import Node
from coherer._server.tubemq.master.master import Master, MasterConnection
from coherer._wire.tubemq import messages as pb
from coherer.cli.main import app
from coherer.errors import UnavailableError, UsageError
from coherer.testing import EmbeddedNode, async_embedded_node, embedded_node
from coherer.tubemq import connect as connect_tubemq


class Silent(Master):
    """A master that says of itself what Java's says: nothing."""

    def __init__(self, other: Master) -> None:
        self._other = other

    def handle(self, *request):  # type: ignore[no-untyped-def]
        answer = self._other.handle(*request)
        if isinstance(answer, pb.RegisterResponseM2P):
            answer.ClearField("webPort")
            answer.ClearField("masterId")
        return answer


@asynccontextmanager
async def like_java(node: Node, **options: str) -> AsyncIterator[Client]:
    assert node.master is not None
    listener = await net.listen("127.0.0.1", 0, partial(MasterConnection, Silent(node.master)))
    url = f"tubemq://127.0.0.1:{listener.port}"
    try:
        async with connect_tubemq(url, **options) as client:
            yield client
    finally:
        await listener.close()


def admin_url(node: Node) -> str:
    return f"http://127.0.0.1:{node.admin_port}"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Two clusters on one host, each with the topic `victim`."""
    async with async_embedded_node(tmp_path / "a") as a, async_embedded_node(tmp_path / "b") as b:
        for node in (a, b):
            node.create_topic("victim", 2)
        yield a, b


async def test_the_master_says_where_its_administration_is(two: tuple[Node, Node]) -> None:
    a, b = two
    async with connect_tubemq(b.url) as client:
        admin = client.admin()
        assert "victim" in [topic.name for topic in await admin.topics.list()]
        await admin.topics.create("new", 1)
        await admin.topics.delete("victim")
        await admin.groups.reset_offsets("readers", "new", "latest")
    assert list(b.topics()) == ["new"]
    assert list(a.topics()) == ["victim"]


async def test_an_administration_of_another_cluster_is_refused(two: tuple[Node, Node]) -> None:
    a, b = two
    async with connect_tubemq(b.url, admin=admin_url(a)) as client:
        admin = client.admin()
        for change in (
            admin.topics.delete("victim"),
            admin.topics.create("new", 1),
            admin.groups.reset_offsets("g", "victim", "latest"),
        ):
            with pytest.raises(UsageError, match="does not prove that it belongs") as caught:
                await change
            assert b.url in str(caught.value)
            assert "--admin" in caught.value.hint
    assert list(a.topics()) == list(b.topics()) == ["victim"]
    assert a.core is not None
    assert list(a.core.offsets.groups()) == []


async def test_one_that_is_named_and_right_is_used(two: tuple[Node, Node]) -> None:
    a, b = two
    async with connect_tubemq(b.url, admin=admin_url(b)) as client:
        await client.admin().topics.delete("victim")
    assert (list(a.topics()), list(b.topics())) == (["victim"], [])


async def test_a_master_that_says_nothing_is_known_by_its_brokers(two: tuple[Node, Node]) -> None:
    a, b = two
    async with like_java(b, admin=admin_url(a)) as client:
        with pytest.raises(UsageError, match="does not know broker 1 at"):
            await client.admin().topics.delete("victim")
    async with like_java(b, admin=admin_url(b)) as client:
        await client.admin().topics.delete("victim")
    assert (list(a.topics()), list(b.topics())) == (["victim"], [])


async def test_what_answers_there_is_no_administration(two: tuple[Node, Node]) -> None:
    _, b = two
    elsewhere = await net.listen("127.0.0.1", 0, WebServer)
    async with like_java(b, admin=f"http://127.0.0.1:{elsewhere.port}") as client:
        with pytest.raises(UsageError, match=r"does not prove that it belongs.*HTTP 404"):
            await client.admin().topics.delete("victim")
    await elsewhere.close()
    assert list(b.topics()) == ["victim"]


class WebServer:
    """A web server that has nothing to do with it."""

    def __init__(self, connection: net.Connection) -> None:
        self._connection = connection

    def received(self, data: bytes) -> None:
        assert data.startswith(b"GET "), "nothing but a query may arrive"
        self._connection.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def closed(self, error: Exception | None) -> None:
        pass


async def test_a_master_that_was_started_anew_is_known_again(tmp_path: Path) -> None:
    ports = {}
    async with async_embedded_node(tmp_path) as node:
        ports = {"master_port": node.master_port, "admin_port": node.admin_port,
                 "broker_port": node.broker_port}  # fmt: skip
        url = node.url
    async with connect_tubemq(url) as client:
        admin = client.admin()
        for name in ("one", "two"):
            async with async_embedded_node(tmp_path, **ports) as node:
                await admin.topics.create(name, 1)
                assert name in node.topics()


async def test_a_name_that_the_master_does_not_know_is_no_obstacle(two: tuple[Node, Node]) -> None:
    _, b = two
    async with connect_tubemq(f"tubemq://localhost:{b.master_port}") as client:
        admin = client.admin()
        await admin.topics.list()
        assert repr(admin) == f"Admin('127.0.0.1:{b.admin_port}')"


async def test_a_master_without_administration_says_so(tmp_path: Path) -> None:
    async with (
        async_embedded_node(tmp_path, admin_port=None) as node,
        connect_tubemq(node.url) as client,
    ):
        with pytest.raises(UnavailableError, match="no HTTP administration"):
            await client.admin().topics.list()


async def test_offsets_go_to_the_broker_that_the_master_means(two: tuple[Node, Node]) -> None:
    """Both clusters have a broker 1; the record of one of them names the other's port."""
    a, b = two
    async with connect_tubemq(b.url) as client:
        admin = client.admin()
        assert b.master is not None
        state = b.master.state
        state.catalog.update_broker(1, {"web_port": a.admin_port}, state.change("somebody"))
        with pytest.raises(UsageError, match=f"belongs to broker 1:127.0.0.1:{a.broker_port}"):
            await admin.groups.set_offsets("readers", {"1:victim:0": 0})
    assert a.core is not None
    assert list(a.core.offsets.groups()) == []


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[EmbeddedNode, EmbeddedNode]:
    with embedded_node(tmp_path / "a") as a, embedded_node(tmp_path / "b") as b:
        for node in (a, b):
            node.create_topic("victim")
        yield a, b  # type: ignore[misc]


def test_commands(
    nodes: tuple[EmbeddedNode, EmbeddedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = nodes
    monkeypatch.delenv("COHERER_URL", raising=False)
    monkeypatch.setenv("COHERER_ADMIN", a.admin_url)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.output

    code, text = run("topics", "delete", "victim", "-y", "--url", b.url)
    assert (code, "does not prove" in text, "--admin" in text) == (2, True, True), text
    code, text = run("groups", "reset", "g", "-t", "victim", "--to", "latest", "--url", b.url)
    assert (code, "does not prove" in text) == (2, True), text
    monkeypatch.delenv("COHERER_ADMIN")
    assert run("topics", "delete", "victim", "-y", "--url", b.url)[0] == 0
    assert a.call(a.node.topics), "the other node has its topic still"
    assert not b.call(b.node.topics)
    # Without a URL, the administration that is named is meant.
    assert run("topics", "delete", "victim", "-y", "--admin", a.admin_url)[0] == 0
    assert not a.call(a.node.topics)
