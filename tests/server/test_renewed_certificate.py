"""A certificate that is replaced while a node runs: new connections get it, on every port."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._server.node.node import Node
from tests.server.node_harness import options
from tests.server.rocketmq_caller import Caller
from tests.waiting import until

FIRST = Path(__file__).parents[1] / "net" / "localhost.pem"
RENEWED = FIRST.with_name("renewed.pem")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    shutil.copy(FIRST, path)
    return path


@pytest.fixture
async def node(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    monkeypatch.setattr("coherer._server.node.node.TICK_S", 0.001)
    monkeypatch.setattr("coherer._server.node.node.TLS_EVERY_MS", 0)
    given = options(
        tmp_path / "node",
        tls=net.TlsOptions(certificate=certificate),
        master_tls_port=0,
        broker_tls_port=0,
        ha_port=0,
    )
    async with Node(given) as node:
        yield node


def ports(node: Node) -> dict[str, int]:
    return {
        "TubeMQ master": node.master_tls_port,
        "TubeMQ broker": node.broker_tls_port,
        "name server": node.namesrv_port,
        "RocketMQ broker": node.rocketmq_port,
        "RocketMQ broker, fast": node.rocketmq_fast_port,
        "replication": node.ha_port,
    }


async def shown(port: int) -> str:
    """The certificate that a port shows to a new connection."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


def lines_of(file: Path) -> list[str]:
    text = file.read_text().partition("-----BEGIN CERTIFICATE-----")[2]
    return text.partition("-----")[0].split()


CERTIFICATES = {file: lines_of(file) for file in (FIRST, RENEWED)}


async def all_show(node: Node, file: Path) -> bool:
    found = [await shown(port) for port in ports(node).values()]
    return all(text.splitlines()[1:-1] == CERTIFICATES[file] for text in found)


def replace(path: Path, content: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


async def test_a_changed_file_is_used_for_new_connections(node: Node, certificate: Path) -> None:
    assert await all_show(node, FIRST)
    before = await Caller.dial(node.rocketmq_port, net.TlsOptions(verify=False))
    replace(certificate, RENEWED.read_bytes())
    await until(lambda: all_show(node, RENEWED))
    assert not before.connection.closed, "existing connections stay"
    text = (await node.metrics.text()).decode()
    assert text.split("\ncoherer_tls_files_refused{")[1].split("\n")[0].endswith(" 0")


async def test_a_broken_file_keeps_the_certificate_and_says_so(
    node: Node, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    replace(certificate, b"not a certificate")
    await until(lambda: node.certificates.problem)
    assert await all_show(node, FIRST)
    assert "the previous ones stay" in caplog.text
    status = await node.metrics.status()
    assert any("New TLS files are not used" in one.text for one in status.warnings)
    text = (await node.metrics.text()).decode()
    assert text.split("\ncoherer_tls_files_refused{")[1].split("\n")[0].endswith(" 1")
    replace(certificate, RENEWED.read_bytes())
    await until(lambda: all_show(node, RENEWED))
    assert node.certificates.problem == ""


async def test_a_reload_reads_the_files_again_at_once(
    node: Node, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    node.change(node.options)
    await until(lambda: "Read the TLS files again" in caplog.text)
    assert await all_show(node, FIRST)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
async def test_a_fifo_stops_nothing(node: Node, certificate: Path) -> None:
    new = str(certificate) + ".new"
    os.mkfifo(new)
    os.replace(new, certificate)  # noqa: PTH105 - does not block
    await until(lambda: "not a regular file" in node.certificates.problem)
    assert await all_show(node, FIRST)
