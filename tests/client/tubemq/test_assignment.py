from __future__ import annotations

from coherer._client.tubemq.membership import (
    CONNECT,
    DISCONNECT,
    ONLY_CONNECT,
    ONLY_DISCONNECT,
    REPORT_EVERY,
    Instruction,
    Report,
    ReportedAssignment,
)
from coherer._wire.tubemq.names import BrokerInfo, Partition

BROKER = BrokerInfo(1, "h", 8123)
A, B = Partition(BROKER, "demo", 0), Partition(BROKER, "demo", 1)


def report(assignment: ReportedAssignment) -> Report:
    content = assignment.next_report()
    assignment.accepted(content)
    return content


def test_kinds_of_instructions() -> None:
    kinds = {CONNECT, ONLY_CONNECT, DISCONNECT, ONLY_DISCONNECT, 3, 4, 5, -1}
    assert {kind for kind in kinds if Instruction(1, kind).takes} == {1, 10}
    assert {kind for kind in kinds if Instruction(1, kind).gives_up} == {2, 20}


def test_what_is_held() -> None:
    assignment = ReportedAssignment()
    assignment.add(A)
    assert (assignment.partitions, A.key in assignment) == ((A,), True)
    assert assignment.missing([A, B]) == [B]
    assignment.remove(A.key)
    assignment.remove(A.key)
    assert assignment.partitions == ()


def test_a_report_every_sixth_time() -> None:
    assignment = ReportedAssignment()
    reports = [report(assignment).partitions is not None for _ in range(2 * REPORT_EVERY)]
    assert reports == [*[False] * 5, True] * 2


def test_a_change_is_reported_at_once() -> None:
    assignment = ReportedAssignment()
    assignment.add(A)
    assert report(assignment) == Report((A,), None)
    assert report(assignment) == Report(None, None)
    assignment.remove(A.key)
    assert report(assignment) == Report((), None)


def test_an_acknowledgement_is_repeated_until_it_gets_through() -> None:
    assignment = ReportedAssignment()
    instruction = Instruction(3, ONLY_CONNECT, (A,))
    assignment.add(A)
    assignment.finished(instruction)
    assert assignment.next_report() == assignment.next_report() == Report((A,), instruction)
    assert report(assignment) == Report((A,), instruction)
    assert report(assignment) == Report(None, None)
    assert assignment.is_reported


def test_what_happens_during_a_heartbeat_is_told_by_the_next() -> None:
    assignment = ReportedAssignment()
    assignment.add(A)
    content = assignment.next_report()
    assignment.add(B)
    instruction = Instruction(3, ONLY_CONNECT, (B,))
    assignment.finished(instruction)
    assignment.accepted(content)
    assert not assignment.is_reported
    assert report(assignment) == Report((A, B), instruction)


def test_a_registration_tells_everything() -> None:
    assignment = ReportedAssignment()
    assignment.add(A)
    assignment.finished(Instruction(3, ONLY_CONNECT, (A,)))
    assignment.registered()
    assert assignment.is_reported
    assert report(assignment) == Report(None, None)
