"""The election in a ZooKeeper in memory: who is active, and when not. A real one is in interop."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coherer._server.node.node import Node
from coherer._server.tubemq.master import zookeeper
from coherer._server.tubemq.master.zookeeper import Election, in_term
from coherer.errors import CohererError, DamagedStoreError, StoreError, UsageError
from coherer.tubemq import connect
from tests.interop.peers.process import free_ports
from tests.server.node_harness import options
from tests.server.tubemq.master.keeper import Keeper
from tests.waiting import until

WAIT_S = 60
SESSION_MS = 300
CONTENT = b'{"catalog":{"cluster":{},"brokers":[{"id":1}],"topics":[]},"roll":{"g":["c"]}}'


class Listener:
    """Records the events of an election."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, object]] = queue.Queue()
        self.damaged = False

    def check(self, content: bytes) -> None:
        if self.damaged:
            raise DamagedStoreError("It is damaged.")

    def elected(self, content: bytes | None, term: int) -> None:
        self.events.put(("elected", (content, term)))

    def demoted(self) -> None:
        self.events.put(("demoted", None))

    def leader_changed(self, admin_address: str | None) -> None:
        self.events.put(("leader_changed", admin_address))

    def next(self) -> tuple[str, object]:
        return self.events.get(timeout=WAIT_S)


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    made = Keeper()
    monkeypatch.setattr(zookeeper, "import_module", lambda name: made.kazoo())
    return made


@pytest.fixture
def elections() -> Iterator[list[Election]]:
    started: list[Election] = []
    yield started
    for one in started:
        one.close()


def join(elections: list[Election], name: str, admin_port: int = 8080) -> tuple[Election, Listener]:
    listener = Listener()
    election = Election("zk:2181/tube", f"{name}:8715", admin_port, SESSION_MS, listener)
    election.start()
    elections.append(election)
    return election, listener


def test_the_first_is_active_and_the_next_takes_over(
    keeper: Keeper, elections: list[Election]
) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next() == ("elected", (None, 1))
    assert one.may_act
    two, second = join(elections, "10.0.0.2")
    assert second.next() == ("leader_changed", "10.0.0.1:8080")
    assert not two.may_act
    one.save("x", in_term(1, CONTENT))
    assert "/tube/metaData/brokerConfig/1" in keeper.nodes
    one.close()
    assert first.next() == ("demoted", None)
    kind, found = second.next()
    assert kind == "elected"
    assert isinstance(found, tuple)
    content = msgspec.json.decode(found[0])
    assert content["roll"] == {"g": ["c"]}
    assert content["catalog"]["brokers"] == [{"id": 1}]
    two.save("x", in_term(1, CONTENT.replace(b'{"id":1}', b"")))
    assert "/tube/metaData/brokerConfig/1" not in keeper.nodes


def test_a_master_without_answers_stops_before_its_session_ends(
    keeper: Keeper, elections: list[Election]
) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next()[0] == "elected"
    keeper.away.add(1)
    assert first.next() == ("demoted", None)
    assert not one.may_act
    with pytest.raises(StoreError, match="not active"):
        one.save("x", in_term(1, CONTENT))
    keeper.expire(1)
    keeper.away.clear()
    assert first.next() == ("elected", (None, 2))
    with pytest.raises(StoreError, match="not active"):
        one.save("x", in_term(1, CONTENT))  # made in the term before
    one.save("x", in_term(2, CONTENT))


def test_a_master_whose_server_has_lost_the_others_stops_before_its_session_ends(
    keeper: Keeper, elections: list[Election]
) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next()[0] == "elected"
    keeper.cut_off(1)  # reads are answered, from what this server remembers
    assert first.next() == ("demoted", None)
    assert not one.may_act
    _, second = join(elections, "10.0.0.2")
    keeper.expire(1)
    assert [second.next()[0] for _ in range(2)] == ["leader_changed", "elected"]
    assert not one.may_act
    keeper.behind.clear()
    assert first.next() == ("leader_changed", "10.0.0.2:8080")


def test_the_timeout_that_zookeeper_grants_counts(
    keeper: Keeper, elections: list[Election], caplog: pytest.LogCaptureFixture
) -> None:
    keeper.longest_s = 0.06
    one, first = join(elections, "10.0.0.1")
    assert "grants a session of 0.06 s, not of 0.3 s" in caplog.text
    assert first.next()[0] == "elected"
    assert one.session_s == pytest.approx(0.06)


def test_zookeeper_refuses_the_writes_of_a_former_master(
    keeper: Keeper, elections: list[Election]
) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next()[0] == "elected"
    keeper.nodes["/tube/metaData/coherer/epoch"].version += 1  # another one was elected
    with pytest.raises(StoreError, match="Another master has become active"):
        one.save("x", in_term(1, CONTENT))
    assert not one.may_act
    assert first.next() == ("demoted", None)
    assert first.next() == ("elected", (None, 2))


def test_large_metadata_is_written_in_parts(keeper: Keeper, elections: list[Election]) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next()[0] == "elected"
    topics = [{"topic": f"t{number}", "broker": 1} for number in range(1200)]
    content = msgspec.json.encode({"catalog": {"cluster": {}, "topics": topics}})
    one.save("x", in_term(1, content))
    begin = "/tube/metaData/topicDeployConfig/"
    assert len([path for path in keeper.nodes if path.startswith(begin)]) == 1200
    one.save("x", in_term(1, CONTENT))
    assert not [path for path in keeper.nodes if path.startswith(begin)]


def test_damaged_metadata_is_not_used(keeper: Keeper, elections: list[Election]) -> None:
    one, first = join(elections, "10.0.0.1")
    assert first.next()[0] == "elected"
    one.save("x", in_term(1, CONTENT))
    two, second = join(elections, "10.0.0.2", admin_port=0)
    second.damaged = True
    assert second.next() == ("leader_changed", "10.0.0.1:8080")
    one.close()
    three, third = join(elections, "10.0.0.3")
    assert third.next() == ("leader_changed", None), "it is the next, though it cannot serve"
    assert not two.may_act
    assert not three.may_act
    keeper.nodes["/tube/metaData/coherer/members"].data = b"broken"
    with pytest.raises(DamagedStoreError, match="cannot be read"):
        zookeeper.content_of({"coherer/members": b"broken"})


def test_a_java_master_is_refused(keeper: Keeper) -> None:
    session = keeper.connect()
    session.ensure_path("/coherer/masterHA")
    session.create("/coherer/masterHA/nodeId:", b"10.0.0.9:8715", ephemeral=True, sequence=True)
    election = Election("zk:2181", "10.0.0.1:8715", 0, SESSION_MS, Listener())
    with pytest.raises(UsageError, match="is not a Coherer master"):
        election.start()


def test_a_server_that_does_not_answer_is_named(keeper: Keeper) -> None:
    keeper.away.add(1)
    election = Election("zk:2181", "10.0.0.1:8715", 0, SESSION_MS, Listener())
    with pytest.raises(CohererError, match="zk:2181 does not answer"):
        election.start()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(zookeeper, "import_module", missing)
    with pytest.raises(UsageError, match="kazoo"):
        Election("zk:2181", "10.0.0.1:8715", 0, SESSION_MS, Listener())


@pytest.mark.parametrize(
    "wrong", [{}, {"roles": frozenset({"master"}), "master_port": 0}, {"protocols": {"rocketmq"}}]
)
def test_contradictory_options_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="zookeeper"):
        options(tmp_path, zookeeper="zk:2181", **wrong)


async def test_nodes_hand_over_with_their_topics(keeper: Keeper, tmp_path: Path) -> None:
    def node(name: str, port: int) -> Node:
        return Node(
            options(
                tmp_path / name,
                roles=frozenset({"master"}),
                master_port=port,
                zookeeper="zk:2181",
                zookeeper_session_ms=SESSION_MS,
            )
        )

    one, two = (node(name, port) for name, port in zip("ab", free_ports(2), strict=True))
    async with one:
        await until(lambda: one.master is not None and not one.master.standby, WAIT_S)
        async with Node(
            options(
                tmp_path / "broker",
                roles=frozenset({"broker"}),
                master=f"{one.url.removeprefix('tubemq://')}",
                heartbeat_ms=10,
            )
        ) as broker:
            await broker.ready()
            one.create_topic("flights", 4)
            async with two:
                assert two.master is not None
                assert two.master.standby
                with pytest.raises(CohererError, match="not master now"):
                    two.create_topic("other")
                await one.stop()
                await until(lambda: two.master is not None and not two.master.standby, WAIT_S)
                assert two.topics() == {"flights": {1: 4}}


async def test_an_administration_follows_its_master(keeper: Keeper, tmp_path: Path) -> None:
    """It knew only the one that was active when it was made."""

    def node(name: str, port: int) -> Node:
        return Node(
            options(
                tmp_path / name,
                roles=frozenset({"master"}),
                master_port=port,
                admin_port=0,
                zookeeper="zk:2181",
                zookeeper_session_ms=SESSION_MS,
            )
        )

    ports = free_ports(2)
    masters = ",".join(f"127.0.0.1:{port}" for port in ports)
    one, two = (node(name, port) for name, port in zip("ab", ports, strict=True))
    async with one:
        await until(lambda: one.master is not None and not one.master.standby, WAIT_S)
        place = {"roles": frozenset({"broker"}), "master": masters, "heartbeat_ms": 10}
        async with (
            Node(options(tmp_path / "broker", admin_port=0, **place)) as broker,
            two,
            connect(f"tubemq://{masters}") as client,
        ):
            await broker.ready()
            asks, changes = client.admin(), client.admin()
            for admin in (asks, changes):
                await admin.topics.create("flights", 4, exist_ok=True)
            await one.stop()
            await until(lambda: two.master is not None and not two.master.standby, WAIT_S)
            assert await asks.topics.names() == ["flights"]
            await changes.topics.create("trains", 1)
            assert await asks.topics.names() == ["flights", "trains"]
