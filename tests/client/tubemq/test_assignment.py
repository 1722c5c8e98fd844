from __future__ import annotations

from coherer._client.tubemq.membership import (
    CONNECT,
    DISCONNECT,
    ONLY_CONNECT,
    ONLY_DISCONNECT,
    REPORT_EVERY,
    Assignment,
    Beat,
    Event,
)
from coherer._wire.tubemq.names import BrokerInfo, Partition

BROKER = BrokerInfo(1, "h", 8123)
A, B = Partition(BROKER, "demo", 0), Partition(BROKER, "demo", 1)


def beat(assignment: Assignment) -> Beat:
    told = assignment.beat()
    assignment.accepted(told)
    return told


def test_kinds_of_instructions() -> None:
    kinds = {CONNECT, ONLY_CONNECT, DISCONNECT, ONLY_DISCONNECT, 3, 4, 5, -1}
    assert {kind for kind in kinds if Event(1, kind).takes} == {1, 10}
    assert {kind for kind in kinds if Event(1, kind).gives_up} == {2, 20}


def test_what_is_held() -> None:
    assignment = Assignment()
    assignment.hold(A)
    assert (assignment.held, A.key in assignment) == ((A,), True)
    assert assignment.missing([A, B]) == [B]
    assignment.drop(A.key)
    assignment.drop(A.key)
    assert assignment.held == ()


def test_a_report_every_sixth_time() -> None:
    assignment = Assignment()
    reports = [beat(assignment).report is not None for _ in range(2 * REPORT_EVERY)]
    assert reports == [*[False] * 5, True] * 2


def test_a_change_is_reported_at_once() -> None:
    assignment = Assignment()
    assignment.hold(A)
    assert beat(assignment) == Beat((A,), None)
    assert beat(assignment) == Beat(None, None)
    assignment.drop(A.key)
    assert beat(assignment) == Beat((), None)


def test_an_acknowledgement_is_repeated_until_it_gets_through() -> None:
    assignment = Assignment()
    event = Event(3, ONLY_CONNECT, (A,))
    assignment.hold(A)
    assignment.finished(event)
    assert assignment.beat() == assignment.beat() == Beat((A,), event)
    assert beat(assignment) == Beat((A,), event)
    assert beat(assignment) == Beat(None, None)
    assert assignment.settled


def test_what_happens_during_a_heartbeat_is_told_by_the_next() -> None:
    assignment = Assignment()
    assignment.hold(A)
    told = assignment.beat()
    assignment.hold(B)
    event = Event(3, ONLY_CONNECT, (B,))
    assignment.finished(event)
    assignment.accepted(told)
    assert not assignment.settled
    assert beat(assignment) == Beat((A, B), event)


def test_a_registration_tells_everything() -> None:
    assignment = Assignment()
    assignment.hold(A)
    assignment.finished(Event(3, ONLY_CONNECT, (A,)))
    assignment.registered()
    assert assignment.settled
    assert beat(assignment) == Beat(None, None)
