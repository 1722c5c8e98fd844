"""Searches for broken promises: simulates a cluster, its clients and their troubles, seed by seed.

    python tools/simulate.py --seeds 1000                  # seeds 0 to 999, both protocols
    python tools/simulate.py --seed 7 --protocol rocketmq  # one run, and its timeline
    python tools/simulate.py --seeds 100 --form long       # more programs, and longer trouble
    python tools/simulate.py --mutants                     # which seed finds each planted bug
    python tools/simulate.py --against java --power        # real time, Java's RocketMQ 4.9.3

It ends with 1 if a promise was broken. Then it prints how to repeat the run, leaves out what the
failure does not need, and prints the timeline of what is left. `tests/simulation` has the programs,
the faults and the checks; docs/explanation/simulation.md explains them.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent))

from time_left import end_of

from tests.simulation.mutants import MUTANTS, found_by
from tests.simulation.picture import picture
from tests.simulation.plan import FORMS, Plan, plan
from tests.simulation.shrink import shrink
from tests.simulation.workload import run

PROTOCOLS: Final = ("tubemq", "rocketmq")
SERVERS: Final = ("ours", "java", "java-tubemq")
DEFAULT: Final = "short"
CPU_S: Final = 600
"""The most processor time of a run; it takes seconds, a long one a minute."""
HANGS_S: Final = 1_800
"""How long it may take on a busy machine; this ends a run that waits for ever."""
DIED: Final = "process"
"""Stands for a check, if the process of a run has ended without a result."""
SHARE: Final = 0.15
"""What a search may use of the time that is left for all tests, if that is limited."""
SHOWN: Final = 5
_Results: TypeAlias = "Connection[Outcome, Outcome]"
PICTURES: Final = Path("build/simulation")
SHRUNK: Final = 3
"""The number of failures that are made smaller, which takes a minute or two for each."""


class Outcome(NamedTuple):
    """What a run has shown.

    Args:
        check: the check that has found something, or an empty text.
        text: all that was found.
        virtual_s: how long the run lasted, in virtual time.
    """

    check: str
    text: str
    virtual_s: float


def one(what: Plan) -> Outcome:
    """Simulate a plan."""
    history, wrong = run(what)
    text = "\n".join(f"  {one.check}: {one.message} {one.text}" for one in wrong[:SHOWN])
    return Outcome(wrong[0].check if wrong else "", text, history.events[-1].at_s)


def command(what: Plan, only: str = "") -> str:
    """The command that repeats a run."""
    text = f"make simulate SEED={what.seed} PROTOCOL={what.protocol}"
    if what.form != DEFAULT:
        text += f" FORM={what.form}"
    return f'{text} ONLY="{only}"' if only else text


def show(what: Plan, picture_of: str = "") -> bool:
    """Print the timeline of a run, and what it breaks; returns whether it breaks something.

    Args:
        what: the run.
        picture_of: a check: draw what it finds, and say where.
    """
    history, wrong = run(what)
    wrong.sort(key=lambda each: each.check != picture_of)  # this one first
    print(history.timeline(wrong[0].message if wrong else ""))
    for each in wrong[:SHOWN]:
        print(f"  {each.check}: {each.message} {each.text}")
    if wrong and picture_of:
        path = PICTURES / f"{what.protocol}-{what.seed}-{wrong[0].check}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        repeat = command(what, " ".join(what.words()))
        path.write_text(picture(history, wrong[0], repeat), encoding="utf-8")
        print(f"  Picture: {path}")
    return bool(wrong)


def show_shrunk(what: Plan, check: str) -> None:
    """Print the smallest part of a plan that still breaks a check, and its timeline."""
    small = shrink(what, check)
    print(f"\nThe smallest part of seed {what.seed} that breaks `{check}`:")
    print(command(small, " ".join(small.words())))
    show(small, check)


def _report(what: Plan, results: _Results) -> None:
    """Simulate a plan in a process of its own; one that hangs shows where, and ends."""
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    results.send(one(what))


def outcomes(runs: list[Plan], until: float) -> Iterator[tuple[Plan, Outcome]]:
    """Simulate plans on all cores, each in a process of its own; none begins after `until`.

    A process begins with what this one has imported. The memory of killed programs is never freed,
    so that their destructors do not run, nor is any other: collecting garbage takes a tenth of the
    time.
    """
    gc.disable()
    gc.freeze()
    forks = multiprocessing.get_context("fork")
    waiting = itertools.takewhile(lambda _: time.monotonic() < until, runs)
    under_way: dict[_Results, tuple[Plan, BaseProcess]] = {}
    while True:
        for what in itertools.islice(waiting, (os.cpu_count() or 1) - len(under_way)):
            results, end = forks.Pipe(duplex=False)
            child = forks.Process(target=_report, args=(what, end))
            child.start()
            end.close()
            under_way[results] = what, child
        if not under_way:
            return
        ready = wait(under_way)
        for results in [each for each in under_way if each in ready]:
            what, process = under_way.pop(results)
            try:
                found = results.recv()
            except EOFError:
                process.join()
                found = Outcome(DIED, f"  exit code {process.exitcode}", 0.0)
            process.join()
            yield what, found


def search(runs: list[Plan]) -> int:
    """Simulate plans; returns how many broke a promise."""
    began, virtual_s, until, done = time.monotonic(), 0.0, end_of(SHARE), 0
    if math.isfinite(until):
        random.shuffle(runs)  # there may be no time for the last ones: not always the same
    broken: list[tuple[Plan, str]] = []
    for done, (what, found) in enumerate(outcomes(runs, until), 1):
        virtual_s += found.virtual_s
        if found.check:
            broken.append((what, found.check))
            print(f"\n{command(what)}\n{found.text}", flush=True)
        elif sys.stdout.isatty():
            print(f"\r{done} of {len(runs)}", end="", flush=True)
    took_s = time.monotonic() - began
    print(
        f"\n{done} runs, {virtual_s / 3600:.1f} simulated hours in {took_s / 60:.1f} minutes; "
        f"{len(broken)} broke a promise"
    )
    if done < len(runs):
        print(f"{len(runs) - done} runs were left out: the time of this search is used up")
    for what, check in [each for each in broken if each[1] != DIED][:SHRUNK]:
        show_shrunk(what, check)
    return len(broken)


def measure_mutants(first: int, seeds: int, protocols: Sequence[str], form: str) -> int:
    """Print which seed finds each planted bug; returns how many are not found."""
    missed = 0
    for name, mutant in sorted(MUTANTS.items()):
        if mutant.protocol not in protocols:
            continue
        runs = (plan(seed, mutant.protocol, form) for seed in range(first, first + seeds))
        found = found_by(mutant, runs)
        missed += found is None
        text = f"not within {seeds}" if found is None else f"seed {found[0]}, by {found[1]}"
        print(f"| {name} | {mutant.protocol} | {text} |", flush=True)
    return missed


def judge_real(server: str, seed: int, trouble_s: float, *, power: bool) -> int:
    """Record the history of a real server, and print what it breaks; returns how much."""
    from tests.simulation.real import record  # it needs the peers of tests/interop

    history, wrong = record(server, seed, trouble_s, power=power)
    counts = Counter(event.what for event in history.events)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    for check, count in Counter(one.check for one in wrong).items():
        first = next(one for one in wrong if one.check == check)
        print(f"  {check} ({count}): {first.message} {first.text}")
    return len(wrong)


def main() -> int:
    """The command line."""
    if "PYTHONHASHSEED" not in os.environ:  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - this very program
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--form", choices=FORMS, default=DEFAULT)
    parser.add_argument("--seed", type=int, help="one seed, with its timeline")
    parser.add_argument("--only", help="of one seed: the parts of its plan, as printed")
    parser.add_argument(
        "--shrink", metavar="CHECK", help="of one seed: leave out what is not needed"
    )
    parser.add_argument(
        "--against", choices=SERVERS, help="record a real server that is killed, and judge it"
    )
    parser.add_argument("--trouble", type=float, default=60.0, help="of it: for how many seconds")
    parser.add_argument("--power", action="store_true", help="of it: lose what was not synced")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append")
    parser.add_argument("--mutants", action="store_true", help="plant bugs instead")
    chosen = parser.parse_args()
    protocols = chosen.protocol or PROTOCOLS
    if chosen.against:
        found = judge_real(chosen.against, chosen.seed or 0, chosen.trouble, power=chosen.power)
        return 1 if found else 0
    if chosen.mutants:
        missed = measure_mutants(chosen.first, chosen.seeds, protocols, chosen.form)
        return 1 if missed else 0
    if chosen.seed is None:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        runs = [plan(seed, protocol, chosen.form) for seed in seeds for protocol in protocols]
        return 1 if search(runs) else 0
    wrong = False
    for protocol in protocols:
        what = plan(chosen.seed, protocol, chosen.form)
        if chosen.only is not None:
            what = what.only(chosen.only.split())
        if chosen.shrink:
            show_shrunk(what, chosen.shrink)
        else:
            wrong |= show(what)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
