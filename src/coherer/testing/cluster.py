"""A cluster in the process of a test: several brokers, each a node of its own.

It is laid out as `coherer serve --brokers` does: the first broker's node has TubeMQ's master and
the name server, too, and topics are on all brokers. A master that is *apart* has a node of its own,
so that it can fail alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from coherer._server.node.node import Node, NodeOptions
from coherer._server.options.siblings import broker_name, directory_of, servers_of, sibling
from coherer.errors import RequestTimeoutError, UsageError
from coherer.testing.clock import ManualClock
from coherer.testing.embedded import EmbeddedNode, catch_up, node_options, running, workspace

HEARTBEAT_MS: Final = 50
"""How often brokers report to the master. It limits the delay until a new topic is on all."""
TOPIC_S: Final = 30.0
LOOK_S: Final = 0.005


class Shape(msgspec.Struct, frozen=True):
    """Which nodes a cluster has.

    Args:
        brokers: the number of brokers.
        with_slaves: whether each broker has a slave.
        apart: whether the master has a node of its own.
    """

    brokers: int
    with_slaves: bool
    apart: bool

    def first(self, directory: Path, given: Mapping[str, object]) -> NodeOptions:
        """The options of the node with the master, which starts first.

        Raises:
            UsageError: there is no broker, or an option is not known.
        """
        if self.brokers < 1:
            raise UsageError(f"A cluster has at least one broker, not {self.brokers}.")
        own: dict[str, object] = {"heartbeat_ms": HEARTBEAT_MS, "brokers": self.brokers}
        if self.with_slaves:
            own["ha_port"] = 0
        options = sibling(node_options(directory, {**own, **given}), 0)
        if self.apart:
            roles = frozenset({"master"})
            return msgspec.structs.replace(options, roles=roles, brokers=1)
        return options

    def others(self, first: NodeOptions, master: Node) -> list[NodeOptions]:
        """The options of the brokers without a master."""
        servers = servers_of(first, master.master_port, master.namesrv_port)
        return [
            msgspec.structs.replace(
                first,
                brokers=1,
                roles=frozenset({"broker"}),
                broker_id=first.broker_id + number,
                broker_name=broker_name(first.broker_name, number),
                directory=directory_of(first, number + self.apart),
                accounts_directory=first.accounts_home,
                **servers,
            )
            for number in range(0 if self.apart else 1, self.brokers)
        ]

    def slaves(self, first: NodeOptions, master: Node) -> list[NodeOptions]:
        """The options of the slaves."""
        if not self.with_slaves:
            return []
        brokers = self.others(first, master)
        servers = servers_of(first, master.master_port, master.namesrv_port)
        return [
            msgspec.structs.replace(
                broker,
                brokers=1,
                roles=frozenset({"broker"}),
                protocols=frozenset({"rocketmq"}),
                role="SLAVE",
                rocketmq_broker_id=1,
                directory=first.directory / "slaves" / broker.broker_name,
                accounts_directory=first.accounts_home,
                **servers,
            )
            for broker in (brokers if self.apart else [first, *brokers])
        ]


class _Member(EmbeddedNode):
    """A node of a cluster; `on_restart` is called when it has started again."""

    on_restart: Callable[[], object] | None = None

    def start(self) -> None:
        was_stopped = not self.is_running
        super().start()
        if was_stopped and self.on_restart is not None:
            self.on_restart()


class EmbeddedCluster:
    """A running cluster. Made by `embedded_cluster` and by the fixture `coherer_cluster`.

    Each node is an `EmbeddedNode`, with its own faults and requests:

    ```python
    with cluster.brokers[1].down():
        ...
    cluster.brokers[0].kill()
    ```

    Attributes:
        brokers: the brokers.
        slaves: the slave of each broker; empty without slaves.
        master: the node with TubeMQ's master and the name server: the first broker, unless it is
            apart.
        url: the URL for TubeMQ clients. It stays the same while the master is stopped.
        rocketmq_url: the URL for RocketMQ clients.
    """

    def __init__(
        self, master: EmbeddedNode, brokers: Sequence[EmbeddedNode], slaves: Sequence[EmbeddedNode]
    ) -> None:
        self.master = master
        self.brokers = list(brokers)
        self.slaves = list(slaves)
        self.url, self.rocketmq_url = urls_of(master.node)

    def __repr__(self) -> str:
        return f"<EmbeddedCluster {self.url}, {len(self.brokers)} brokers>"

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic on all brokers, and wait until clients find it on those that run.

        Args:
            name: its name.
            partitions: how many on each broker.

        Raises:
            UsageError: the master is stopped.
            RequestTimeoutError: a broker did not report the topic within 30 s.
        """
        self.master.create_topic(name, partitions)
        up = [one.options for one in self.brokers if one.is_running]
        until_s = time.monotonic() + TOPIC_S
        while missing := self.master.call(lambda: without_topic(self.master.node, up, name)):
            if time.monotonic() > until_s:
                raise late(name, missing)
            time.sleep(LOOK_S)


@contextmanager
def embedded_cluster(
    brokers: int = 2,
    *,
    slaves: bool = False,
    apart: bool = False,
    directory: str | Path | None = None,
    clock: ManualClock | None = None,
    **options: object,
) -> Generator[EmbeddedCluster]:
    """Run a cluster inside a `with` block, on free ports of the loopback interface.

    Args:
        brokers: the number of brokers.
        slaves: whether each broker has a slave, which serves RocketMQ.
        apart: whether the master and the name server have a node of their own, instead of sharing
            that of the first broker.
        directory: the directory of all files; None for a temporary directory that is deleted.
        clock: moves the time of messages on all nodes, see `EmbeddedNode.clock`.
        options: node options for all nodes, such as `flush`.

    ```python
    with embedded_cluster(brokers=3) as cluster, coherer.blocking.connect(cluster.url) as client:
        cluster.create_topic("orders", partitions=2)
        cluster.brokers[2].kill()
        ...
    ```

    Raises:
        UsageError: there is no broker, or an option is not known.
    """
    catch_up(clock)
    shape = Shape(brokers, slaves, apart)
    with ExitStack() as stack:
        first = shape.first(stack.enter_context(workspace(directory)), options)

        def start(options: NodeOptions) -> _Member:
            node = _Member(options, clock)
            stack.enter_context(running(node))
            node.run(node.node.ready)
            return node

        master = start(first)
        others = [start(one) for one in shape.others(first, master.node)]
        copies = [start(one) for one in shape.slaves(first, master.node)]

        def register_again() -> None:
            # At once: the name server has forgotten them, and they register every 30 s.
            for node in (*others, *copies):
                if node.is_running:
                    node.call(node.node.rocketmq.announce)

        master.on_restart = register_again
        yield EmbeddedCluster(master, others if apart else [master, *others], copies)


def urls_of(node: Node) -> tuple[str, str]:
    """The URLs of both protocols; of the other one if the node serves only one."""
    return node.url, node.rocketmq_url if node.namesrv_port >= 0 else node.url


def without_topic(master: Node, brokers: Sequence[NodeOptions], topic: str) -> list[str]:
    """The names of the brokers on which clients do not find a topic yet."""
    missing: list[str] = []
    for options in brokers:
        name, registered = options.broker_name, True
        if master.master is not None:
            broker = master.master.state.broker_registry.get(options.broker_id)
            registered = broker is not None and topic in broker.hosted
        if (
            registered
            and master.rocketmq.name_server is not None
            and options.rocketmq_broker is not None
        ):
            route = master.rocketmq.name_server.routes.route(topic)
            registered = route is not None and any(one.broker == name for one in route.queues)
        if not registered:
            missing.append(name)
    return missing


def late(topic: str, brokers: Sequence[str]) -> RequestTimeoutError:
    """The error if brokers do not report a topic."""
    return RequestTimeoutError(
        f"{', '.join(brokers)} did not report topic {topic} within {TOPIC_S:g} s.",
        hint="Do their connections with the master have a fault?",
    )
