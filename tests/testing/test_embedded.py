"""A node inside the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coherer._net import TlsOptions
from coherer.errors import StoreError, UsageError
from coherer.testing import EmbeddedNode, async_embedded_node, embedded_node
from tests.threads import loop_threads

PEM = Path(__file__).parent.parent / "net" / "localhost.pem"


def test_it_is_there_in_the_block_and_gone_after_it() -> None:
    threads = loop_threads()
    with embedded_node() as node:
        assert node.url.startswith("tubemq://127.0.0.1:")
        assert node.admin_url.startswith("http://127.0.0.1:")
        assert node.directory.is_dir()
        node.create_topic("orders", 3)
        assert node.call(node.node.topics) == {"orders": {1: 3}}
        assert repr(node) == f"<EmbeddedNode {node.url} in {node.directory}>"
    assert not node.directory.exists()
    assert not loop_threads() - threads
    assert "stopped" in repr(node)
    with pytest.raises(UsageError, match="stopped"):
        _ = node.url


def test_two_do_not_meet(tmp_path: Path) -> None:
    with embedded_node() as one, embedded_node(tmp_path, admin_port=None) as two:
        assert one.url != two.url
        assert two.directory == tmp_path
        with pytest.raises(UsageError, match="no administration"):
            _ = two.admin_url
    assert tmp_path.is_dir(), "a directory that was given is kept"


def test_two_with_tls_do_not_meet_either() -> None:
    tls = TlsOptions(certificate=PEM)
    with embedded_node(tls=tls) as one, embedded_node(tls=tls) as two:
        ports = {
            port
            for node in (one.node, two.node)
            for port in (node.master_port, node.master_tls_port, node.broker_tls_port)
        }
        assert len(ports) == 6
        assert min(ports) > 0
        before = one.node.master_tls_port
        one.restart()
        assert one.node.master_tls_port == before


def test_restarted_it_is_where_it_was() -> None:
    with embedded_node() as node:
        url, admin_url, rocketmq_url = node.url, node.admin_url, node.rocketmq_url
        broker_port = node.node.rocketmq_port
        node.create_topic("orders", 3)
        node.restart()
        assert (node.url, node.admin_url, node.rocketmq_url) == (url, admin_url, rocketmq_url)
        assert node.node.rocketmq_port == broker_port
        assert node.call(node.node.topics) == {"orders": {1: 3}}
        node.stop()
        node.stop()
        node.start()
        node.start()
        assert node.url == url


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    threads = loop_threads()
    with embedded_node(tmp_path):
        inside = loop_threads()
        with pytest.raises(StoreError, match="in use"), embedded_node(tmp_path):
            raise AssertionError("two nodes share a directory")
        assert not loop_threads() - inside
    assert not loop_threads() - threads
    with pytest.raises(UsageError, match="nosuch"), embedded_node(nosuch=1):
        raise AssertionError("there is no such option")


def test_after_a_failed_start_it_is_stopped() -> None:
    with embedded_node() as node, embedded_node() as other:
        other.stop()
        other.options = node.options
        for _ in range(2):
            with pytest.raises((StoreError, UsageError), match="use"):
                other.start()
        assert not other.is_running
        with pytest.raises(UsageError, match="stopped"):
            other.call(lambda: None)
        other.kill()


async def test_it_can_share_the_loop() -> None:
    async with async_embedded_node(default_partitions=5) as node:
        assert node.create_topic("a")
        assert node.topics() == {"a": {1: 5}}


def test_it_starts_in_milliseconds() -> None:
    def once() -> float:
        start = time.process_time()
        with embedded_node():
            return time.process_time() - start

    # 10 ms on the machine that this was written on. Processor time does not depend on the load.
    assert min(once() for _ in range(5)) < 0.3


def test_the_node_of_the_session(
    coherer_node: EmbeddedNode, coherer_url: str, coherer_rocketmq_url: str
) -> None:
    assert coherer_node.url == coherer_url
    assert coherer_node.rocketmq_url == coherer_rocketmq_url


@pytest.mark.parametrize("collection", [list, tuple, set, frozenset])
def test_one_door_is_enough(collection: Callable[[list[str]], object]) -> None:
    with embedded_node(protocols=collection(["rocketmq"])) as node:
        assert node.url == node.rocketmq_url
        assert node.url.startswith("rocketmq://127.0.0.1:")
    with embedded_node(namesrv_port=None) as node, pytest.raises(UsageError, match="RocketMQ"):
        _ = node.rocketmq_url


@pytest.mark.parametrize("name", ["roles", "protocols"])
@pytest.mark.parametrize("value", ["broker", 5, [5], ["nosuch"]])
def test_roles_and_protocols_are_collections_of_names(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"`{name}`"), embedded_node(**{name: value}):  # type: ignore[arg-type]
        pass
