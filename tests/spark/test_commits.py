"""Carrying out decisions: each half message is committed once, whoever dies and whenever."""

from __future__ import annotations

import itertools
import os
from array import array
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, cast

import msgspec
import pytest
from pyarrow import fs

from coherer._wire.rocketmq.codes import HALF_NOT_FOUND, ResponseCode
from coherer.errors import (
    CohererError,
    DisconnectedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from coherer.rocketmq import HalfMessages, Queue
from coherer.spark import commits, decisions
from coherer.spark.commits import (
    PATIENCE_S,
    QUIET_S,
    STEP_S,
    Coordinator,
    RocketHalfQueue,
)
from coherer.spark.decisions import (
    ArrowFolder,
    Decision,
    Decisions,
    Folder,
    LocalFolder,
    decode,
    encode,
    open_folder,
)
from coherer.spark.planning import DataLossError
from tests.spark.fake_brokers import QUEUES, Cluster, DeathError, nothing

if TYPE_CHECKING:
    from coherer.blocking.rocketmq import Client as RocketClient


class Steps:
    """Raises errors at chosen steps."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.count = 0
        self.errors = errors

    def __call__(self, what: str) -> None:
        self.count += 1
        if self.count in self.errors:
            raise self.errors[self.count]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMMITS_AT_ONCE", 3)
    monkeypatch.setattr(os, "fsync", nothing)  # no power is cut


def arrow(folder: Path) -> ArrowFolder:
    return ArrowFolder(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "d")


@pytest.fixture(params=[LocalFolder, arrow])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    made: Folder = request.param(tmp_path)
    return made


def coordinator(cluster: Cluster, decisions: Decisions) -> Coordinator:
    return Coordinator(cluster, decisions, clock=cluster.clock, sleep=cluster.sleep)


@pytest.fixture(params=[False, True], ids=["java", "ours"])
def once(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def settle(cluster: Cluster, folder: Folder, name: str, attempts: int) -> None:
    """Runs a micro-batch as Spark does: from the beginning, until it succeeds."""
    decisions = Decisions(folder)
    for attempt in itertools.count():
        assert attempt < attempts
        halves = cluster.prepare(10, 100 * (attempt + 1))
        try:
            if not coordinator(cluster, decisions).finish(name):
                coordinator(cluster, decisions).commit(name, halves)
        except (DeathError, CohererError):
            continue
        return


def check_whole(seen: Counter[int]) -> None:
    """One attempt is there, once; nothing of the others."""
    first = min(seen) // 100 * 100
    assert seen == Counter(range(first, first + 10))


def test_a_micro_batch_is_committed(folder: Folder) -> None:
    cluster = Cluster()
    settle(cluster, folder, "5", 1)
    check_whole(cluster.seen())
    assert Decisions(folder).latest() == 5
    assert cluster.now == 0


def steps_of_a_run(tmp_path: Path, errors: dict[int, BaseException], once: bool) -> int:
    steps = Steps(errors)
    # Only with Coherer's broker it does not matter how late a commit arrives.
    cluster = Cluster(steps, once=once, late_s=1e6 if once else 7)
    settle(cluster, LocalFolder(tmp_path / str(errors)), "0", 5)
    cluster.step = nothing
    cluster.sleep(1e6)
    check_whole(cluster.seen())
    return steps.count


def test_a_death_at_each_step(tmp_path: Path, once: bool) -> None:
    for at in range(1, steps_of_a_run(tmp_path, {}, once) + 1):
        steps_of_a_run(tmp_path, {at: DeathError()}, once)


def test_a_lost_connection_at_each_step(tmp_path: Path, once: bool) -> None:
    for at in range(1, steps_of_a_run(tmp_path, {}, once) + 1):
        steps_of_a_run(tmp_path, {at: DisconnectedError("The broker is gone.")}, once)


def test_two_deaths_and_a_lost_connection(tmp_path: Path, once: bool) -> None:
    for at in range(1, 30, 2):
        for further in range(1, 30, 3):
            errors: dict[int, BaseException] = {
                at: DeathError(),
                at + further: DisconnectedError("The broker is gone."),
                at + further + 5: DeathError(),
            }
            steps_of_a_run(tmp_path, errors, once)


def test_another_owner_stops_the_first(tmp_path: Path) -> None:
    """A driver that was taken for dead goes on: it sends no further window of commits."""
    decisions = Decisions(LocalFolder(tmp_path))

    def interrupted(what: str) -> None:
        if what == "after" and sum(slow.seen().values()) == 2:
            slow.step = nothing
            assert coordinator(slow, decisions).finish("0")

    slow = Cluster()
    slow.step = interrupted
    first = coordinator(slow, decisions)
    with pytest.raises(UsageError, match="Another process finishes micro-batch 0"):
        first.commit("0", slow.prepare(10))
    # The window that had left is the reason for the wait, which this test cuts short.
    assert set(slow.seen()) == set(range(100, 110))
    assert sum(slow.seen().values()) == 11


def test_brokers_that_stand_still_make_it_wait_longer(tmp_path: Path) -> None:
    """A commit waits in a broker that is paused, which reads it when it goes on."""
    cluster = Cluster(late_s=QUIET_S + 2)
    found = Decisions(LocalFolder(tmp_path))
    pauses = 0

    def die(what: str) -> None:
        if what == "after":
            raise DeathError

    def pause(what: str) -> None:
        nonlocal pauses
        if what == "ends" and pauses < 3:
            pauses += 1
            cluster.now += QUIET_S / 3

    cluster.step = die
    with pytest.raises(DeathError):
        coordinator(cluster, found).commit("0", cluster.prepare(10))
    cluster.step = pause
    assert coordinator(cluster, found).finish("0")
    assert pauses == 3
    check_whole(cluster.seen())


def test_brokers_that_stand_still_for_ever(tmp_path: Path) -> None:
    cluster, found = Cluster(), Decisions(LocalFolder(tmp_path))
    found.record("0", Decision("dead", cluster.prepare(10), (2, 2, 2)))

    def pause(what: str) -> None:
        if what == "ends":
            cluster.now += STEP_S * 2

    cluster.step = pause
    with pytest.raises(UnavailableError, match=r"10 of 10 .* unknown whether commits are on"):
        coordinator(cluster, found).finish("0")
    assert cluster.seen() == Counter()


def test_only_one_process_decides(tmp_path: Path) -> None:
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))
    coordinator(cluster, decisions).commit("0", cluster.prepare(10))
    with pytest.raises(UsageError, match="Another process has committed micro-batch 0"):
        coordinator(cluster, decisions).commit("0", cluster.prepare(10, 200))
    check_whole(cluster.seen())


def test_no_half_messages_are_no_decision(tmp_path: Path) -> None:
    decisions = Decisions(LocalFolder(tmp_path))
    coordinator(Cluster(), decisions).commit("0", HalfMessages("g"))
    assert decisions.latest() == -1


def test_rows_of_a_table_are_not_to_be_written_again(tmp_path: Path) -> None:
    """Spark does not repeat `df.write`, and its user would send the rows twice."""
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def away(what: str) -> None:
        if what == "before":
            raise DisconnectedError("It is gone.")

    cluster.step = away
    with pytest.raises(UnavailableError, match="do not write these rows again") as raised:
        coordinator(cluster, decisions).commit("0f-a", cluster.prepare(10))
    assert "start the query" not in str(raised.value)
    cluster.step = nothing
    assert coordinator(cluster, decisions).finish("0f-a")
    check_whole(cluster.seen())


@pytest.mark.parametrize("error", [DisconnectedError("It is gone."), RefusedError("It is full.")])
def test_a_broker_that_stays_away(tmp_path: Path, error: CohererError) -> None:
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def away(what: str) -> None:
        if what in {"before", "look"}:
            raise DisconnectedError(str(error)) if what == "before" else error

    cluster.step = away
    with pytest.raises(UnavailableError, match=r"10 of 10 .* start the query again") as raised:
        coordinator(cluster, decisions).commit("0", cluster.prepare(10))
    assert raised.value.__cause__ is not None
    assert cluster.now > PATIENCE_S
    cluster.step = nothing
    assert coordinator(cluster, decisions).finish("0")
    check_whole(cluster.seen())


def test_a_broker_that_is_away_for_a_moment_before_the_decision(tmp_path: Path) -> None:
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def away(what: str) -> None:
        if what == "ends" and cluster.now < PATIENCE_S - STEP_S:
            raise UnavailableError("It is gone.")

    cluster.step = away
    coordinator(cluster, decisions).commit("0", cluster.prepare(10))
    check_whole(cluster.seen())
    assert decisions.find("0") is not None


def test_a_broker_that_stays_away_before_the_decision(tmp_path: Path) -> None:
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def away(what: str) -> None:
        if what == "ends":
            raise UnavailableError("It is gone.")

    cluster.step = away
    with pytest.raises(UnavailableError, match=r"It is gone"):
        coordinator(cluster, decisions).commit("0", cluster.prepare(10))
    assert decisions.latest() == -1


@pytest.mark.parametrize("others", [False, True], ids=["no route", "a route of others"])
def test_the_end_of_a_queue_is_not_0_because_its_broker_has_stopped(others: bool) -> None:
    """A broker that stops unregisters itself, and its queues are in no route."""
    registered = [SimpleNamespace(name="a", role="master"), SimpleNamespace(name="b", role="slave")]

    class Client:
        brokers = SimpleNamespace(list=lambda **_: registered)

        def admin(self) -> Client:
            return self

        def offsets(self, topic: str) -> dict[Queue, tuple[int, int]]:
            if others:
                return dict.fromkeys(QUEUES[:2], (3, 9))
            raise RefusedError("No route.", code=int(ResponseCode.TOPIC_NOT_EXIST), topic=topic)

    queue = RocketHalfQueue(cast("RocketClient", Client()))
    with pytest.raises(UnavailableError, match="No name server knows a master of broker b"):
        queue.ends(QUEUES)
    registered.append(SimpleNamespace(name="b", role="master"))
    assert queue.ends(QUEUES) == ([9, 9, 0] if others else [0, 0, 0]), "the topic is new there"


def test_half_messages_that_the_broker_has_lost_are_an_error(tmp_path: Path) -> None:
    """To start the query again does not help."""
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path), "/checkpoint/decisions")

    def lost(what: str) -> None:
        if what in {"before", "look"}:
            raise RefusedError(HALF_NOT_FOUND, code=1)

    cluster.step = lost
    with pytest.raises(DataLossError, match=r"10 of 10 .* Delete /checkpoint/decisions and"):
        coordinator(cluster, decisions).commit("0", cluster.prepare(10))


def test_a_queue_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    """A broker without sync flush was cut off from power after the decision."""
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def cut(what: str) -> None:
        if what == "before":
            cluster.stored[QUEUES[1]].clear()
            raise DisconnectedError("It is gone.")

    cluster.step = cut
    with pytest.raises(DataLossError, match=r"ends at 0, and ended at 2 when micro-batch 7"):
        coordinator(cluster, decisions).commit("7", cluster.prepare(10))


def test_a_queue_that_became_shorter_continues_behind_the_gap(tmp_path: Path) -> None:
    """Coherer's broker beside one of Java's."""
    cluster, decisions = Cluster(), Decisions(LocalFolder(tmp_path))

    def cut(what: str) -> None:
        stored = cluster.stored[QUEUES[1]]
        if what == "before" and stored == [7, 7]:
            stored.clear()
            raise DisconnectedError("It is gone.")
        if what == "reach":
            stored += [-1] * 3

    cluster.step = cut
    coordinator(cluster, decisions).commit("7", cluster.prepare(10))
    found = [offset for stored in cluster.stored.values() for offset in stored if offset >= 100]
    assert sorted(found) == list(range(100, 110))


class ShortReader:
    """A reader whose broker returns less than the range."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.left_out = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> None:
        return None


def test_a_read_that_ends_early_is_an_error() -> None:
    asked: list[tuple[object, ...]] = []

    class Client:
        def reader(self, *place: object, **options: object) -> ShortReader:
            asked.append((*place, options))
            return ShortReader(8)

    queue = RocketHalfQueue(cast("RocketClient", Client()))
    with pytest.raises(UnavailableError, match="up to offset 8, and the queue ends at 9"):
        queue.committed(QUEUES[0], 5, 9)
    assert queue.committed(QUEUES[0], 5, 8) == set()
    assert asked[0] == (QUEUES[0], 5, {"end": 9, "masters_only": True})


def test_a_folder_belongs_to_one_query(folder: Folder) -> None:
    assert Decisions(folder).query() is None
    Decisions(folder).belong_to("first")
    Decisions(folder).belong_to("first")
    with pytest.raises(UsageError, match=r"in s3://d are those of query first, .* query second"):
        Decisions(folder, "s3://d").belong_to("second")
    assert Decisions(folder).latest() == -1


def test_a_decision_is_about_one_plan(folder: Folder) -> None:
    decisions = Decisions(folder, "s3://d")
    decisions.check_plan(5, "p")
    decisions.record("5", Decision("me", HalfMessages("g"), (), "p"))
    for batch, plan in ((5, "p"), (5, ""), (6, "q")):
        decisions.check_plan(batch, plan)
    with pytest.raises(UsageError, match=r"already sent other rows as micro-batch 5, .* s3://d"):
        decisions.check_plan(5, "q")
    with pytest.raises(UsageError, match=r"runs micro-batch 4, .* already sent micro-batch 5"):
        decisions.check_plan(4, "p")


def test_all_parents_of_the_folder_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents are synced before the first file is there, also after a death in between."""
    synced: list[Path] = []
    (tmp_path / "checkpoint").mkdir()
    place = tmp_path / "checkpoint" / "a" / "b"

    def die(_: Path) -> None:
        raise DeathError

    monkeypatch.setattr(decisions, "sync_folder", die)
    with pytest.raises(DeathError):
        LocalFolder(place).create("x", b"1")
    assert place.is_dir()
    monkeypatch.setattr(decisions, "sync_folder", synced.append)
    assert LocalFolder(place).create("x", b"1")
    assert synced == [*place.parents, place]
    assert LocalFolder(place).create("y", b"1")
    assert LocalFolder(place).read_durable("y") == b"1"
    assert synced[-2:] == [place, place]
    assert LocalFolder(place).read_durable("z") is None


def test_an_owner_is_that_of_one_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that died while it forgot one has no part in a later one about the same rows."""
    found, mine = Decisions(LocalFolder(tmp_path)), Decision("me", HalfMessages("g"), ())
    found.record("9", mine)
    found.claim("9", mine, "you")
    unlink = Path.unlink

    def die(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        raise DeathError

    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(DeathError):
        found.forget("9")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["9.owner"]
    assert found.owner("9", mine) == "you"
    later = Decision("him", HalfMessages("g"), ())
    assert found.record("9", later)
    assert found.owner("9", later) == "him"
    found.record("10", later)
    found.forget_older()
    assert [path.name for path in tmp_path.iterdir()] == ["10.decision"]


def test_the_owner_that_an_older_version_wrote(folder: Folder) -> None:
    found, mine = Decisions(folder), Decision("me", HalfMessages("g"), ())
    found.record("9", mine)
    folder.replace("9.owner", b"you")
    assert found.owner("9", mine) == "you"


def test_a_driver_that_hung_does_not_decide_again(folder: Folder) -> None:
    """It had looked for a decision; meanwhile another one has decided, and gone on."""
    found, late = Decisions(folder), Decision("late", HalfMessages("g"), ())
    for name in ("9", "10"):
        assert found.record(name, Decision("me", HalfMessages("g"), ()))
    found.forget_older()
    assert found.find("9") is None
    assert not found.record("9", late)
    assert found.find("9") is None
    assert list(found.names()) == ["10"]


def test_a_driver_that_hung_does_not_go_on_with_what_others_have_finished(folder: Folder) -> None:
    """On Java's broker its commits would be carried out again."""
    found, mine = Decisions(folder), Decision("me", HalfMessages("g"), ())
    found.record("9", mine)
    assert found.owner("9", mine) == "me"
    found.claim("9", mine, "you")
    assert found.owner("9", mine) == "you"
    found.record("10", Decision("you", HalfMessages("g"), ()))
    found.forget_older()
    assert found.owner("9", mine) == ""


def test_decisions_are_forgotten(folder: Folder) -> None:
    decisions = Decisions(folder)
    for name in ("9", "10", "a-b"):
        assert decisions.record(name, Decision("me", HalfMessages("g"), ()))
        decisions.claim(name, Decision("me", HalfMessages("g"), ()), "you")
    assert decisions.latest() == 10
    assert list(decisions.names()) == ["10", "9", "a-b"]
    decisions.forget("10")
    decisions.forget("10")
    assert decisions.find("10") is None
    assert decisions.latest() == 9
    assert decisions.owner("9", Decision("me", HalfMessages("g"), ())) == "you"


def test_the_second_of_two_files_is_refused(folder: Folder) -> None:
    assert folder.read("x") is None
    assert folder.create("x", b"1")
    assert not folder.create("x", b"2")
    assert folder.read("x") == b"1"
    folder.replace("x", b"3")
    assert folder.read("x") == b"3"
    assert folder.names() == ["x"]


def test_what_dead_processes_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / ".9.decision.123.abcd").touch()
    Decisions(LocalFolder(tmp_path)).forget("9")
    assert list(tmp_path.iterdir()) == []


def test_places(tmp_path: Path) -> None:
    assert isinstance(open_folder(str(tmp_path)), LocalFolder)
    written = open_folder((tmp_path / "a b").as_uri())
    assert written.create("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert isinstance(open_folder("mock://d"), ArrowFolder)
    with pytest.raises(UsageError, match="transactionLocation"):
        open_folder("unknown://d")


def test_a_decision_of_an_older_version_is_carried_out() -> None:
    """It knows no half batches: each half message is one message."""
    halves = HalfMessages("g", QUEUES, array("H", [0, 1]), array("q", [5, 6]), array("q", [7, 8]))
    written = msgspec.msgpack.decode(encode(Decision("dead", halves, (2, 2, 2))))
    del written["counts"]
    found = decode(msgspec.msgpack.encode(written))
    assert (len(found.halves), list(found.halves.counts)) == (2, [])
    assert list(found.halves.pick([1]).log_offsets) == [8]


def test_a_decision_knows_its_half_batches() -> None:
    columns = (array("q", values) for values in ([5, 6], [7, 8], [100, 0]))
    halves = HalfMessages("g", QUEUES, array("H", [0, 1]), *columns)
    found = decode(encode(Decision("me", halves, (2, 2, 2)))).halves
    assert list(found.counts) == [100, 0]
    assert list(HalfMessages.joined([found, found.pick([0])]).counts) == [100, 0, 100]
