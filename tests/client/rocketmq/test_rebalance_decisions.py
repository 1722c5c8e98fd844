from __future__ import annotations

from collections.abc import Sequence

from coherer._client.rocketmq.consuming.assignment import allocate, change_of
from coherer._wire.rocketmq.names import Queue

QUEUES = [Queue("flights", broker, number) for broker in ("a", "b") for number in range(2)]


def nth(queues: Sequence[Queue], clients: Sequence[str], own: str) -> list[Queue]:
    return list(queues[list(clients).index(own) :: len(clients)])


def test_lists_are_sorted_and_doubles_removed() -> None:
    seen: list[tuple[list[Queue], list[str]]] = []

    def look(queues: Sequence[Queue], clients: Sequence[str], own: str) -> list[Queue]:
        seen.append((list(queues), list(clients)))
        return nth(queues, clients, own)

    ours = allocate(look, "y", [*reversed(QUEUES), QUEUES[0]], ["y", "x", "y"])
    assert seen == [(QUEUES, ["x", "y"])]
    assert ours == [QUEUES[1], QUEUES[3]]


def test_a_client_outside_the_group_gets_no_queues() -> None:
    assert allocate(nth, "z", QUEUES, ["x"]) == []
    assert allocate(nth, "x", [], ["x"]) == []


def test_change_of_assignment() -> None:
    first, second, third, fourth = QUEUES
    moved = change_of([third, first], [first, second])
    assert (moved.revoked, moved.added) == ([third], [second])
    idle = change_of([first, second], [first, second], [first])
    assert (idle.revoked, idle.added) == ([first], [])
    assert not change_of([fourth], [fourth])
