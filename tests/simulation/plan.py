"""What a run does: its programs, its cluster and its faults, as data that follow from a seed.

So a run can be repeated with a part of its programs and faults: see `shrink.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random
from typing import Final

import msgspec

TROUBLE_S: Final = 60.0
NODE_FAULTS: Final = ("kill", "power", "restart", "full", "sick", "drop", "drain")
CLIENT_FAULTS: Final = ("crash", "crash", "leave")
ANY_FAULTS: Final = ("freeze", "unplug", "clock", "slow")
NETWORK_FAULTS: Final = ("cut", "stop", "sever")
FAULTS: Final = NODE_FAULTS + CLIENT_FAULTS + ANY_FAULTS + NETWORK_FAULTS

SENDERS: Final = {
    "tubemq": ("alice", "bob", "crowd", "bulk"),
    "rocketmq": (
        *("alice", "bob", "crowd", "bulk", "seller", "timer", "clerk", "foreman"),
        *("warden", "reporter", "scribbler"),
    ),
}
GROUPS: Final = {
    "tubemq": ("shop", "books", "blue", "sloth"),
    "rocketmq": (
        *("shop", "books", "blue", "sloth", "large", "radio", "ledger", "crew"),
        *("press", "scraps"),
    ),
}
ALWAYS: Final = frozenset({"alice", "shop"})
SETTINGS: Final = ("jitter_s", "pieces", "threads_s")
"""Of a plan; 0 makes them harmless."""
NEEDS: Final = {
    "clerk": "ledger", "foreman": "crew", "reporter": "press", "scribbler": "scraps",
}  # fmt: skip
"""Senders whose topic only one group reads."""
EXTRAS: Final = ("accounts", "retention", "backup")
"""What the brokers and their operators do in some runs."""


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong.

    Args:
        at_s: when, in virtual time after the start of the programs.
        kind: one of `FAULTS`.
        target: 0 to 1, chooses the program, the machine or the connection.
        lasts_s: until it ends.
        after: the kind of event to wait for, because the moment just after it is the best one.
    """

    at_s: float
    kind: str
    target: float
    lasts_s: float
    after: str = ""

    def __str__(self) -> str:
        return f"{self.kind}@{self.at_s}"


class Plan(msgspec.Struct, frozen=True):
    """One run.

    Args:
        seed: of everything.
        protocol: `tubemq` or `rocketmq`.
        shape: of the cluster: `one` node, `two` brokers with a master or name server apart, or a
            master and its `slave`.
        flush: the option of the brokers.
        jitter_s: of the network.
        pieces: the probability that data arrives in two pieces.
        threads_s: how long functions for executors take at most.
        senders: the programs that send.
        groups: the groups that receive, with two members each.
        extras: those of `EXTRAS` that the run has.
        faults: in order.
    """

    seed: int
    protocol: str
    shape: str
    flush: str
    jitter_s: float
    pieces: float
    threads_s: float
    senders: tuple[str, ...]
    groups: tuple[str, ...]
    extras: tuple[str, ...]
    faults: tuple[Fault, ...]

    def words(self) -> list[str]:
        """The parts of the plan that can be left out: the faults, the programs, and the rest.

        >>> plan(0, "tubemq").words()[-3:]
        ['alice', 'crowd', 'shop']
        """
        rest = [name for name in SETTINGS if getattr(self, name)]
        shape = [] if self.shape == "one" else [self.shape]
        return [*map(str, self.faults), *rest, *self.extras, *shape, *self.senders, *self.groups]

    def only(self, words: Collection[str]) -> Plan:
        """The plan with these parts only.

        >>> small = plan(0, "tubemq").only(["shop", "alice"])
        >>> small.words(), small.faults
        (['alice', 'shop'], ())
        """
        return msgspec.structs.replace(
            self,
            shape=self.shape if self.shape in words else "one",
            senders=tuple(one for one in self.senders if one in words),
            groups=tuple(one for one in self.groups if one in words),
            extras=tuple(one for one in self.extras if one in words),
            faults=tuple(one for one in self.faults if str(one) in words),
            **{name: 0 for name in SETTINGS if name not in words},
        )

    def chance(self, who: str) -> Random:
        """Random numbers of one program, which do not depend on the others."""
        return Random(f"{self.seed} {who}")


def plan(seed: int, protocol: str) -> Plan:
    """The run of a seed.

    Seeds differ in which programs and which kinds of faults they have: a fault that would hide the
    effect of another one is missing in half of them.
    """
    chance = Random(f"{seed} {protocol}")
    shapes = ["one", "one", "two"] + (["slave"] if protocol == "rocketmq" else [])
    senders = [one for one in SENDERS[protocol] if one in ALWAYS or chance.random() < 0.6]
    readers = {NEEDS.get(one) for one in senders}
    groups = [
        one
        for one in GROUPS[protocol]
        if one in ALWAYS or one in readers or (one not in NEEDS.values() and chance.random() < 0.4)
    ]
    extras = [one for one in EXTRAS if chance.random() < 0.25]
    if "warden" in senders and "accounts" not in extras:
        senders.remove("warden")
    kinds = [kind for kind in FAULTS if chance.random() < 0.5]
    if protocol == "tubemq" and "accounts" in extras:
        # A signature names its time, and a node may refuse one that is too old.
        kinds = [kind for kind in kinds if kind != "clock"]
    kinds = kinds or ["power"]
    return Plan(
        seed,
        protocol,
        chance.choice(shapes),
        chance.choice(["sync", "async"]),
        chance.choice([0, 0.001, 0.05]),
        chance.choice([0, 0.2]),
        chance.choice([0, 0.01, 0.2]),
        tuple(senders),
        tuple(groups),
        tuple(extras),
        tuple(_faults(chance, kinds)),
    )


def _faults(chance: Random, kinds: list[str]) -> Iterator[Fault]:
    at_s = 0.0
    while (at_s := at_s + chance.random() * 12) < TROUBLE_S:
        kind = chance.choice(kinds)
        after = {"crash": "received"}.get(kind, "stored" if kind in NODE_FAULTS else "")
        yield Fault(
            round(at_s, 3),
            kind,
            int(chance.random() * 1000) / 1000,
            chance.choice([0.5, 1.0, 4.0, 10.0, 20.0]),
            after if chance.random() < 0.5 else "",
        )
