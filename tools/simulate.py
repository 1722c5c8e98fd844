"""Searches for broken promises: simulates a node, its clients and their troubles, seed by seed.

    python tools/simulate.py --seeds 1000                  # seeds 0 to 999, both protocols
    python tools/simulate.py --seed 7 --protocol rocketmq  # one run, and its timeline

It ends with 1 if a promise was broken, and prints how to repeat the run. `tests/simulation` has the
programs, the faults and the checks; docs/explanation/simulation.md explains them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.simulation.workload import run

PROTOCOLS: Final = ("tubemq", "rocketmq")
SHOWN: Final = 5


def one(chosen: tuple[str, int]) -> tuple[str, int, str, float]:
    """Simulate a protocol and a seed; returns what was broken as text, and the virtual seconds."""
    protocol, seed = chosen
    history, wrong = run(seed, protocol)
    text = "\n".join(f"  {one.check}: {one.message} {one.text}" for one in wrong[:SHOWN])
    if wrong:
        text += f"\n{history.timeline(wrong[0].message)}"
    return protocol, seed, text, history.events[-1].at_s


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
    parser.add_argument("--seed", type=int, help="one seed, with its whole timeline")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append")
    chosen = parser.parse_args()
    protocols = chosen.protocol or PROTOCOLS
    if chosen.seed is not None:
        for protocol in protocols:
            history, wrong = run(chosen.seed, protocol)
            print(history.timeline())
            for each in wrong:
                print(f"  {each.check}: {each.message} {each.text}")
        return 0
    began, virtual_s, broken, done = time.monotonic(), 0.0, 0, 0
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    runs = [(protocol, seed) for seed in seeds for protocol in protocols]
    # A killed program's memory is never freed, so that its destructors do not run. Not an executor:
    # that of Python 3.11 waits for ever when its last worker has done its share.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=20) as pool:
        for protocol, seed, text, took_s in pool.imap_unordered(one, runs):
            virtual_s, done = virtual_s + took_s, done + 1
            if text:
                broken += 1
                print(f"\nmake simulate SEED={seed} PROTOCOL={protocol}\n{text}")
            elif sys.stdout.isatty():
                print(f"\r{done} of {len(runs)}", end="", flush=True)
    took_s = time.monotonic() - began
    print(
        f"\n{done} runs, {virtual_s / 3600:.1f} simulated hours in {took_s / 60:.1f} minutes; "
        f"{broken} broke a promise"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
