"""Compares Coherer with Java's systems and Kafka, in one run on one machine: see README.md.

python benchmarks/run.py [--quick] [--only produce,sync,latency] [--json FILE]
python benchmarks/run.py --only spark [--contenders kafka-tuned,rocketmq]
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import (
    backlog,
    brokers,
    connections,
    operators,
    rocketmq_cases,
    spark_cases,
    spark_run,
    store_files,
    tubemq_cases,
)
from bench.cases import BEHIND, CPP, Case
from bench.results import CPP_PAIR, PAIRS, Results, Sample
from bench.singles import embedded, idle, memory
from bench.sites import SETTINGS, Bench, RocketMQBench, TubeMQBench
from bench.spark_results import SparkResults
from bench.usage import cpu_seconds, machine, versions
from rich.console import Console

from tests.interop.peers.cache import JavaSystem, UnavailableError, prepare

REPETITIONS = 5
QUICK_REPETITIONS = 1
WARM_SHARE = 0.25
CASE_TIMEOUT_S = 180.0
FREE_GB = 20
ENOUGH = 0.98
"""Share of the messages that is enough: callers and batches may leave a remainder."""
CPP_COUNT_MAX = 40_000
"""The C++ client takes a minute for messages that others handle in seconds."""

console = Console(width=max(Console().width, 150))
_groups = itertools.count(1)


@dataclass(frozen=True)
class Suite:
    """The benchmarks of one protocol.

    Args:
        name: of the protocol, and of its Java system.
        title: for the tables.
        cases: to measure.
        bench: starts the processes.
        pairs: client and broker, in the order of the table.
    """

    name: str
    title: str
    cases: list[Case]
    bench: type[Bench]
    pairs: list[tuple[str, str]]


SUITES = [
    Suite("tubemq", "TubeMQ", tubemq_cases.CASES, TubeMQBench, PAIRS),
    Suite("rocketmq", "RocketMQ", rocketmq_cases.CASES, RocketMQBench, [*PAIRS, CPP_PAIR]),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the tables, and writes files."""
    options = _options(arguments)
    about: dict[str, object] = {"machine": machine()}
    folder = Path(tempfile.mkdtemp(prefix="coherer-bench-", dir=options.folder))
    alone = Results("Coherer alone", [])
    everything: list[Results | SparkResults] = [alone]
    java: JavaSystem | None = None
    try:
        _check_disk(folder, quick=options.quick)
        _measure_singles(alone, options, folder)
        for suite in SUITES:
            cases = [case for case in suite.cases if _wanted(case.key, options.only)]
            if not cases:
                continue
            java = None if options.without_java else _java(suite.name)
            results = Results(suite.title, cases, suite.pairs)
            everything.append(results)
            with suite.bench(java, folder, _log) as bench:
                _measure(bench, results, suite, options)
                for kind, system in bench.systems.items():
                    title = f"memory of the broker after all cases, {kind}, {suite.title}"
                    alone.singles += memory(title, f"{suite.name}-{kind}-memory", system.pids)
        everything += _compare_spark(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about |= {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(java.version if java else "absent"),
        "settings": SETTINGS,
        "repetitions": options.repetitions,
        "quick": options.quick,
        "results": [results.json() for results in everything],
    }
    for results in everything:
        for table in results.tables():
            console.print(table)
    if options.json:
        options.json.write_text(json.dumps(about, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text("\n".join(results.markdown() for results in everything))
    return 0


def _java(name: str) -> JavaSystem | None:
    try:
        return prepare(name, _log)
    except UnavailableError as reason:
        console.print(f"[red]No Java {name}; measuring Coherer alone:[/] {reason}")
        return None


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Coherer's client and broker with Java's.")
    parser.add_argument("--quick", action="store_true", help="few messages, one repetition")
    parser.add_argument("--only", default="", help="prefixes of case names, separated by commas")
    parser.add_argument("--contenders", default="", help="of Spark, separated by commas")
    parser.add_argument("--repetitions", type=int, help="of each case, after a warm-up")
    parser.add_argument("--json", type=Path, help="file for all results, with samples")
    parser.add_argument("--markdown", type=Path, help="file for the tables as Markdown")
    parser.add_argument("--folder", type=Path, help="for data; default: the temporary directory")
    parser.add_argument(
        "--backlog", type=int, nargs="*", help="messages of the backlogs; each takes 138 bytes"
    )
    parser.add_argument("--without-java", action="store_true", help="measure Coherer alone")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name]
    try:
        options.contenders = spark_run.chosen([n for n in options.contenders.split(",") if n])
    except ValueError as error:
        parser.error(str(error))
    default = QUICK_REPETITIONS if options.quick else REPETITIONS
    options.repetitions = options.repetitions or default
    return options


def _wanted(key: str, only: Sequence[str]) -> bool:
    return not only or any(key.startswith(name) for name in only)


def _log(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False)


def _check_disk(folder: Path, *, quick: bool) -> None:
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < (FREE_GB / 10 if quick else FREE_GB):
        sys.exit(f"{folder} has {free_gb:.0f} GB free, but {FREE_GB} are needed. See --folder.")


def _measure(bench: Bench, results: Results, suite: Suite, options: argparse.Namespace) -> None:
    """Measures every case with every pair: a warm-up, then interleaved repetitions."""
    todo = [
        (case, client, broker)
        for case in results.cases
        for client, broker in suite.pairs
        if client in case.clients and broker in case.brokers and (client, broker) in bench.clients
    ]
    if any(case.topic == "consume" or BEHIND in case.parameters for case in results.cases):
        _fill(bench, suite, options)
    for repetition in range(options.repetitions + 1):
        for case, client, broker in todo:
            warm = repetition == 0
            count = case.counted(quick=options.quick)
            if warm:  # the same in a quick run, since Java needs it
                count = min(int(case.count * WARM_SHARE), _consumed(suite, options))
            if client == CPP:
                count = min(count, CPP_COUNT_MAX)
            sample = _run_case(bench, case, client, broker, count)
            phase = "warm-up" if warm else f"{repetition}/{options.repetitions}"
            figure = f"{sample.rate:,.0f}/s" if sample.rate else f"p50 {sample.p50_ms:.2f} ms"
            _log(f"{phase} {case.title}, {client} client, {broker} broker: {figure}")
            if not warm:
                results.add(case, client, broker, sample)


def _consumed(suite: Suite, options: argparse.Namespace) -> int:
    return max(case.counted(quick=options.quick) for case in suite.cases if case.topic == "consume")


def _fill(bench: Bench, suite: Suite, options: argparse.Namespace) -> None:
    """Sends the messages to be consumed, with each broker's own client."""
    count = int(_consumed(suite, options) * 1.02)
    for kind in bench.systems:
        _log(f"sending {count:,} messages of 1 KiB to the {kind} broker, to be consumed")
        name = bench.clients[kind, kind]
        pending = bench.driver(kind).call(
            name, "produce", topic="consume", count=count, size=1024, window=500
        )
        answer = pending.result(CASE_TIMEOUT_S)
        assert isinstance(answer, dict)
        assert answer["failed"] == 0, answer


def _run_case(bench: Bench, case: Case, client: str, broker: str, count: int) -> Sample:
    driver = bench.driver(client)
    pids = bench.systems[broker].pids
    before = _cpu([driver.child.pid]), _cpu(pids)
    pending = driver.call(
        bench.clients[client, broker],
        case.action,
        topic=case.topic,
        count=count,
        group=f"bench{next(_groups)}",
        **case.parameters,
    )
    answer = pending.result(CASE_TIMEOUT_S)
    assert isinstance(answer, dict)
    after = _cpu([driver.child.pid]), _cpu(pids)
    done = int(str(answer["count"]))
    if done < count * ENOUGH:
        raise RuntimeError(f"{case.title}, {client} client, {broker} broker: {done} of {count}")
    us = [(b - a) / done * 1e6 for a, b in zip(before, after, strict=True)]
    seconds = float(str(answer["seconds"]))
    return Sample(
        rate=done / seconds if seconds else None,
        p50_ms=_number(answer.get("p50_ms")),
        p99_ms=_number(answer.get("p99_ms")),
        client_us=us[0],
        broker_us=us[1],
        failed=int(str(answer.get("failed", 0))),
    )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _cpu(pids: Sequence[int]) -> float:
    return sum(cpu_seconds(pid) or 0.0 for pid in pids)


def _measure_singles(results: Results, options: argparse.Namespace, folder: Path) -> None:
    """Measures start and memory, before anything else runs."""
    for key, measure in (("embedded", embedded), ("idle", idle)):
        if _wanted(key, options.only):
            _log(f"{key}: {options.repetitions} fresh processes")
            results.singles += measure(folder, options.repetitions)
    if _wanted("commands", options.only):
        _log(f"commands: {options.repetitions} times each")
        results.singles += operators.commands(folder, options.repetitions)
    if _wanted("large", options.only):
        results.singles += operators.large(folder, options.repetitions, _log, quick=options.quick)
    if _wanted("brokers", options.only):
        results.singles += brokers.measure(folder, options.repetitions, _log, quick=options.quick)
    for protocol in connections.SYSTEMS:
        if _wanted(f"connections-{protocol}", options.only):
            java = None if options.without_java else _java(protocol)
            results.singles += connections.measure(
                protocol, folder, options.repetitions, _log, java, quick=options.quick
            )
    if _wanted("backlog", options.only):
        counts = backlog.QUICK_COUNTS if options.quick else backlog.COUNTS
        results.singles += backlog.measure(folder, _log, counts=options.backlog or counts)
    if _wanted("scan", options.only):
        results.singles += store_files.measure(
            folder, options.repetitions, _log, quick=options.quick
        )


def _compare_spark(options: argparse.Namespace, folder: Path) -> list[SparkResults]:
    """Compares Spark's formats with its Kafka source, if that is wanted and can be had."""
    cases = [case for case in spark_cases.CASES if _wanted(case.key, options.only)]
    if not cases:
        return []
    (folder / "spark").mkdir()
    comparison = spark_run.Comparison(
        cases,
        options.contenders,
        options.repetitions,
        options.quick,
        folder / "spark",
        console,
        _log,
    )
    try:
        return [comparison.run()]
    except UnavailableError as reason:
        console.print(f"[red]No comparison with Spark's Kafka source:[/] {reason}")
        return []


if __name__ == "__main__":
    begin = time.monotonic()
    code = main()
    _log(f"took {time.monotonic() - begin:.0f} s")
    sys.exit(code)
