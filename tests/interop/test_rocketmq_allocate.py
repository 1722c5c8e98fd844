"""Allocation of queues by Java's strategies and by ours: members of one group must agree."""

from __future__ import annotations

import random
import subprocess
from typing import Final

import msgspec
import pytest

from coherer._wire.rocketmq.allocate import (
    Strategy,
    average,
    by_circle,
    consistent_hash,
    machine_room,
    nearby,
    sorted_for_allocation,
)
from coherer._wire.rocketmq.names import Queue
from tests.interop.peers.rocket_site import RocketSite

pytestmark = pytest.mark.interop

CASES = 400
WAIT_S = 60

STRATEGIES: Final[dict[str, Strategy]] = {
    "average": average,
    "by_circle": by_circle,
    "consistent_hash": consistent_hash(),
    "machine_room": machine_room(["x", "y"]),
    "nearby": nearby(average, lambda queue: queue.broker[0], lambda client: client[0]),
}
LETTERS = "xyz\uffff"


class Case(msgspec.Struct):
    """A question to both: what `me` gets."""

    strategy: str
    queues: list[tuple[str, int]]
    clients: list[str]
    me: str


def case(dice: random.Random, strategy: str) -> Case:
    brokers = [f"{dice.choice(LETTERS)}@{n}" for n in range(dice.randint(1, 4))]
    queues = [(broker, n) for broker in brokers for n in range(dice.randint(1, 12))]
    clients = [f"{dice.choice([*LETTERS, '😀'])}10.0.0.{n}@{n}" for n in range(dice.randint(1, 6))]
    dice.shuffle(queues)
    return Case(strategy, queues, clients, dice.choice([*clients, "x-stranger"]))


def our_answer(one: Case) -> list[tuple[str, int]]:
    queues, clients = sorted_for_allocation(
        [Queue("orders", *place) for place in one.queues], one.clients
    )
    mine = STRATEGIES[one.strategy](queues, clients, one.me)
    return [(queue.broker, queue.id) for queue in mine]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_java_allocates_the_same(rocket: RocketSite, strategy: str) -> None:
    dice = random.Random(strategy)
    cases = [case(dice, strategy) for _ in range(CASES)]
    done = subprocess.run(
        rocket.java.command("AllocatePeer", heap_mb=256, log="off"),
        input="".join(msgspec.json.encode(one).decode() + "\n" for one in cases),
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_S,
        check=True,
    )
    java = [
        msgspec.json.decode(line, type=list[tuple[str, int]]) for line in done.stdout.splitlines()
    ]
    ours = [our_answer(one) for one in cases]
    assert len(java) == CASES
    differences = [trio for trio in zip(cases, java, ours, strict=True) if trio[1] != trio[2]]
    assert differences == []
