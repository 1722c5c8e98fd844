"""What a run does: its programs, its cluster and its faults, as data that follow from a seed.

So a run can be repeated with a part of its programs and faults: see `shrink.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random
from typing import Final, NamedTuple

import msgspec

NODE_FAULTS: Final = ("kill", "power", "restart", "full", "sick", "drop", "drain")
CLIENT_FAULTS: Final = ("crash", "crash", "leave")
ANY_FAULTS: Final = ("freeze", "unplug", "clock", "slow")
NETWORK_FAULTS: Final = ("cut", "stop", "sever")
FAULTS: Final = NODE_FAULTS + CLIENT_FAULTS + ANY_FAULTS + NETWORK_FAULTS

POWER_FAULTS: Final = frozenset({"power", "tear", "sick", "drop"})
UNINHERITED: Final = frozenset({"backup", "scribbler", "scraps"})
"""What does not go on at another machine: a backup, and what an administrator has just done."""

FOREMAN: Final = "foreman"
"""Who sends messages that become dead letters."""
SENDERS: Final = {
    "tubemq": ("alice", "bob", "crowd", "bulk"),
    "rocketmq": (
        *("alice", "bob", "crowd", "bulk", "seller", "timer", "clerk", FOREMAN),
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
HEIR: Final = "heir"
"""The shape of a RocketMQ cluster whose slave becomes the master when that is lost."""
TWIN: Final = "twin"
"""A second slave in such a cluster."""
MASTERS: Final = "masters"
"""The shape of a TubeMQ cluster whose masters elect one of them."""
FOUNDER: Final = "founder"
"""Who creates and deletes topics there."""
QUERY, TABLE, WORKER = "spark", "table", "worker"
"""The drivers of streaming queries, one that writes to a topic and one that reads it, and their
worker."""
SETTINGS: Final = ("jitter_s", "pieces", "threads_s", "steps_s")
"""Of a plan; 0 makes them harmless."""
STEPS_S: Final = (0, 0, 0.01, 0.05)
"""How long the threads of a store pause at most; with 0 they run each function in one step."""
WATCHER: Final = "watcher"
"""An operator."""
CALLER, DESK = "caller", "desk"
"""Who asks, and the group that answers."""
MENDERS: Final = ("mender", "rival")
"""Operators who replay these."""
NEEDS: Final = {
    "clerk": "ledger", FOREMAN: "crew", "reporter": "press", "scribbler": "scraps",
}  # fmt: skip
"""Senders whose topic only one group reads."""
SHORT_S: Final = 0.5
"""The shortest fault. A node whose power fails for so long starts twice."""
SILENT_S: Final = 4.0
"""A client that is away for longer has lost its power: nobody is told."""
FORGETTING_S: Final = 150.0
"""RocketMQ's brokers forget such a client after 120 s, and look every 10 s. Then the members of its
groups share the queues, at the latest within 20 s."""
CALMING_S: Final = 75.0
"""Otherwise: clients notice broken connections, ask for routes every 30 s, and share queues."""


class Form(NamedTuple):
    """How much a run has.

    Args:
        trouble_s: how long faults begin.
        pause_s: between the beginnings of two faults, at most.
        lasts_s: how long faults last.
        senders: the probability of each sender.
        groups: that of each group which no sender needs.
        kinds: that of each kind of fault.
    """

    trouble_s: float
    pause_s: float
    lasts_s: tuple[float, ...]
    senders: float
    groups: float
    kinds: float


FORMS: Final = {
    "short": Form(20.0, 6.0, (0.5, 1.0, 4.0, 10.0), 0.3, 0.2, 0.3),
    "long": Form(60.0, 12.0, (0.5, 1.0, 4.0, 10.0, 20.0), 0.6, 0.4, 0.5),
}
"""A short run has half of the programs, and a third of the trouble."""

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

    @property
    def is_silent(self) -> bool:
        """Whether the other end of a connection may not be told that it is gone."""
        if self.kind in {"crash", "sick", "fail"}:
            return self.lasts_s >= SILENT_S
        return self.kind in {"sever", "power", "tear", "drop"}


class Plan(msgspec.Struct, frozen=True):
    """One run.

    Args:
        seed: of everything.
        protocol: `tubemq` or `rocketmq`.
        form: one of `FORMS`.
        shape: of the cluster: `one` node, `two` brokers with a master or name server apart, a
            master and its `slave`, a master and its `heir`, or two `masters` in front of two
            brokers.
        flush: the option of the brokers.
        jitter_s: of the network.
        pieces: the probability that data arrives in two pieces.
        threads_s: how long functions for executors take at most.
        steps_s: how long those of the store pause at most before they change a file, see `threads`.
        senders: the programs that send.
        groups: the groups that receive, with two members each.
        extras: those of `EXTRAS` that the run has, and `TWIN`.
        faults: in order.
    """

    seed: int
    protocol: str
    form: str
    shape: str
    flush: str
    jitter_s: float
    pieces: float
    threads_s: float
    steps_s: float
    senders: tuple[str, ...]
    groups: tuple[str, ...]
    extras: tuple[str, ...]
    faults: tuple[Fault, ...]

    def words(self) -> list[str]:
        """The parts of the plan that can be left out: the faults, the programs, and the rest.

        >>> plan(0, "tubemq").words()[-3:]
        ['alice', 'watcher', 'shop']
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
        without = set() if MASTERS in words else {FOUNDER}
        without |= set() if WORKER in words else {QUERY, TABLE}
        return msgspec.structs.replace(
            self,
            shape=self.shape if self.shape in words else "one",
            senders=tuple(one for one in self.senders if one in words and one not in without),
            groups=tuple(one for one in self.groups if one in words),
            extras=tuple(one for one in self.extras if one in words),
            faults=tuple(one for one in self.faults if str(one) in words),
            **{name: 0 for name in SETTINGS if name not in words},
        )

    @property
    def quiet_s(self) -> float:
        """How long nothing goes wrong after the faults, until everything has to be right."""
        if "scribbler" in self.senders or any(fault.is_silent for fault in self.faults):
            return FORGETTING_S
        return CALMING_S

    @property
    def rots(self) -> bool:
        """Whether bits flip on a disk."""
        return any(fault.kind == "rot" for fault in self.faults)

    def chance(self, who: str) -> Random:
        """Random numbers of one program, which do not depend on the others."""
        return Random(f"{self.seed} {who}")


def plan(seed: int, protocol: str, form: str = "short") -> Plan:
    """The run of a seed.

    Seeds differ in which programs and which kinds of faults they have: a fault that would hide the
    effect of another one is missing in half of them.
    """
    chance, amount = Random(f"{seed} {protocol}"), FORMS[form]
    shapes = ["one", "one", "two"] + (["slave"] if protocol == "rocketmq" else [])
    senders = [
        one for one in SENDERS[protocol] if one in ALWAYS or chance.random() < amount.senders
    ]
    readers = {NEEDS.get(one) for one in senders}
    groups = [
        one
        for one in GROUPS[protocol]
        if one in ALWAYS
        or one in readers
        or (one not in NEEDS.values() and chance.random() < amount.groups)
    ]
    extras = [one for one in EXTRAS if chance.random() < 0.25]
    if "warden" in senders and "accounts" not in extras:
        senders.remove("warden")
    kinds = [kind for kind in FAULTS if chance.random() < amount.kinds]
    if protocol == "tubemq" and "accounts" in extras:
        # A signature names its time, and a node may refuse one that is too old.
        kinds = [kind for kind in kinds if kind != "clock"]
    kinds = kinds or ["power"]
    shape, flush = chance.choice(shapes), chance.choice(["sync", "async"])
    settings = (
        chance.choice([0, 0.001, 0.05]),
        chance.choice([0, 0.2]),
        chance.choice([0, 0.01, 0.2]),
    )
    faults = list(_faults(chance, kinds, amount))
    # Drawn last, so that the rest of a seed does not depend on it.
    if protocol == "rocketmq":
        if chance.random() < amount.senders:
            senders.append(QUERY)
            if chance.random() < amount.kinds * 2:
                faults += _usurpers(chance, amount)
            faults += _tears(chance, amount)
    elif shape == "two" and chance.random() < 0.5:
        shape = MASTERS
        senders.append(FOUNDER)
        faults += _splits(chance, amount)
    new = [TABLE, WATCHER] if protocol == "tubemq" else [TABLE, CALLER, WATCHER]
    senders += [one for one in new if chance.random() < amount.senders]
    groups += [DESK] if CALLER in senders else []
    if FOREMAN in senders and chance.random() < 0.5:
        senders += MENDERS
    senders += [WORKER] if {QUERY, TABLE}.intersection(senders) else []
    found = Plan(
        seed,
        protocol,
        form,
        shape,
        flush,
        *settings,
        Random(f"{seed} steps").choice(STEPS_S),
        tuple(senders),
        tuple(groups),
        tuple(extras),
        tuple(faults),
    )
    if shape in {"two", "slave"} and protocol == "rocketmq" and chance.random() < 0.3:
        found = _with_heir(found, chance, amount)
    faults = [*found.faults, *_failures(found, amount)]
    if chance.random() < amount.kinds:
        faults += _rots(chance, amount)
    faults.sort(key=lambda fault: fault.at_s)
    return msgspec.structs.replace(found, faults=tuple(faults))


def _with_heir(one: Plan, chance: Random, amount: Form) -> Plan:
    """A plan in which slaves become masters."""
    faults = list(one.faults)
    if one.flush == "async":  # a power cut would take what both have acknowledged
        faults = [fault for fault in faults if fault.kind not in POWER_FAULTS]
    twin = (TWIN,) if one.chance(TWIN).random() < 0.5 else ()
    return msgspec.structs.replace(
        one,
        shape=HEIR,
        extras=(*(name for name in one.extras if name not in UNINHERITED), *twin),
        senders=tuple(name for name in one.senders if name not in UNINHERITED),
        groups=tuple(name for name in one.groups if name not in UNINHERITED),
        faults=(*faults, *_promotions(chance, amount)),
    )


def _promotions(chance: Random, amount: Form) -> Iterator[Fault]:
    """Masters that are lost, and slaves that take their place."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        after = chance.choice(("", "stored", "received", "committed"))
        target = int(chance.random() * 1000) / 1000
        yield Fault(at_s, "promote", target, chance.choice(amount.lasts_s), after)


def _rots(chance: Random, amount: Form) -> Iterator[Fault]:
    """Bits that flip on a disk; after some the node is killed, and started again."""
    for _ in range(chance.choice((1, 2, 4, 8))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        after = chance.choice(("", "stored"))
        target = int(chance.random() * 1000) / 1000
        yield Fault(at_s, "rot", target, chance.choice((0.0, 0.5, 1.0)), after)


def _failures(one: Plan, amount: Form) -> Iterator[Fault]:
    """Single operations of a disk that fail."""
    if one.shape == HEIR and one.flush == "async":
        return  # a power cut follows some of them
    chance = one.chance("failures")
    for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 2, 4))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        target = int(chance.random() * 1000) / 1000
        yield Fault(
            at_s, "fail", target, chance.choice(amount.lasts_s), chance.choice(("", "stored"))
        )


def _usurpers(chance: Random, amount: Form) -> Iterator[Fault]:
    """Drivers that hang, are replaced, and go on."""
    for _ in range(chance.choice((1, 2))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        after = chance.choice(("", "begun", "undecided", "decided"))
        target = int(chance.random() * 1000) / 1000
        yield Fault(at_s, "usurp", target, chance.choice(amount.lasts_s), after)


def _tears(chance: Random, amount: Form) -> Iterator[Fault]:
    """Power cuts in the middle of a commit."""
    for _ in range(chance.choice((1, 2, 3))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        target = int(chance.random() * 1000) / 1000
        yield Fault(at_s, "tear", target, chance.choice(amount.lasts_s), "ending")


def _splits(chance: Random, amount: Form) -> Iterator[Fault]:
    """Servers of ZooKeeper that lose the others, and do not notice it for a while."""
    for _ in range(chance.choice((0, 1, 2))):
        at_s = round(chance.random() * amount.trouble_s, 3)
        yield Fault(at_s, "split", 0.0, chance.choice((4.0, 10.0)))


def _faults(chance: Random, kinds: list[str], amount: Form) -> Iterator[Fault]:
    at_s = 0.0
    while (at_s := at_s + chance.random() * amount.pause_s) < amount.trouble_s:
        kind = chance.choice(kinds)
        after = {"crash": "received"}.get(kind, "stored" if kind in NODE_FAULTS else "")
        yield Fault(
            round(at_s, 3),
            kind,
            int(chance.random() * 1000) / 1000,
            chance.choice(amount.lasts_s),
            after if chance.random() < 0.5 else "",
        )
