"""Runs the comparison with Spark's Kafka source and sink: contenders interleaved in one session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.spark_cases import CONTENDERS, KAFKA, ROCKETMQ_JAVA, TOPICS, Contender, SparkCase, Topic
from bench.spark_results import SparkResults, SparkSample
from bench.spark_sites import BROKERS, SPARK, Broker, kafka_jars, spark_python, start_spark
from tests.interop.peers.cache import UnavailableError
from tests.interop.peers.driver import Driver

ACTION_TIMEOUT_S = 300.0
PACE = 1_000
FLOOR_S, QUICK_FLOOR_S = 12.0, 5.0
WARM_FLOOR_S = 1.0
FEED_S = 120.0
QUICK = 0.15
"""Share of the rows in a quick run."""


def chosen(names: Sequence[str]) -> list[Contender]:
    """The contenders with these keys; without keys, all but the one with Java's RocketMQ.

    Raises:
        ValueError: an unknown name.
    """
    known = {one.key: one for one in CONTENDERS}
    if unknown := set(names) - known.keys():
        raise ValueError(f"contenders are {', '.join(known)}, not {', '.join(sorted(unknown))}")
    return [one for one in CONTENDERS if one.key in (names or known.keys() - {ROCKETMQ_JAVA})]


@dataclass
class Comparison:
    """A run of the comparison.

    Args:
        cases: to measure.
        contenders: to compare.
        repetitions: of each, after a warm-up.
        quick: with fewer rows.
        folder: for data and logs.
        console: for progress.
        say: prints a line.
    """

    cases: list[SparkCase]
    contenders: list[Contender]
    repetitions: int
    quick: bool
    folder: Path
    console: Console
    say: Callable[[str], None]

    def run(self) -> SparkResults:
        """Starts everything, and measures.

        Raises:
            UnavailableError: the environment of Spark cannot be had.
        """
        python = spark_python(self.say)
        with contextlib.ExitStack() as stack:
            jars = self._jars()
            brokers = self._brokers(stack)
            results = SparkResults(self.cases, self.contenders, SPARK)
            self._fill(brokers)
            driver = start_spark(python, jars, self.folder)
            stack.callback(driver.stop)
            self._measure(results, brokers, driver)
        return results

    def _jars(self) -> Path | None:
        """The jars of the Kafka source; without them there are fewer contenders."""
        if not any(one.site == KAFKA for one in self.contenders):
            return None
        try:
            return kafka_jars(self.say)
        except UnavailableError as reason:
            self._without(KAFKA, reason)
            return None

    def _brokers(self, stack: contextlib.ExitStack) -> dict[str, Broker]:
        brokers = {}
        for site in dict.fromkeys(one.site for one in self.contenders):
            self.say(f"starting the broker: {site}")
            broker = BROKERS[site](self.folder / site, self.say)
            stack.callback(broker.stop)
            try:
                broker.start(self._topics())
            except UnavailableError as reason:
                self._without(site, reason)
            else:
                brokers[site] = broker
        return brokers

    def _without(self, site: str, reason: UnavailableError) -> None:
        self.say(f"[red]no {site}, which is left out:[/] {reason}")
        self.contenders = [one for one in self.contenders if one.site != site]

    def _topics(self) -> list[Topic]:
        return [TOPICS[name] for name in dict.fromkeys(case.topic for case in self.cases)]

    def _rows(self, topic: Topic) -> int:
        return int(topic.rows * QUICK) if self.quick else topic.rows

    def _fill(self, brokers: dict[str, Broker]) -> None:
        """Sends the messages to be read, once for each broker and protocol."""
        work = dict.fromkeys(
            (TOPICS[case.topic], one.site, one.format)
            for case in self.cases
            for one in self.contenders
            if self._rows(TOPICS[case.topic]) and one.can(case)
        )
        with self._progress("sending", len(work)) as advance:
            for topic, site, spark_format in work:
                advance(f"sending {self._rows(topic):,} messages {topic.name}: {spark_format}")
                brokers[site].send(topic, spark_format, self._rows(topic))

    def _measure(self, results: SparkResults, brokers: dict[str, Broker], driver: Driver) -> None:
        rounds = self.repetitions + 1
        pairs = sum(one.can(case) for case in self.cases for one in self.contenders)
        with self._progress("Spark", rounds * pairs) as advance:
            for repetition in range(rounds):
                for case in self.cases:
                    for one in filter(lambda one: one.can(case), self.contenders):
                        advance(f"{repetition or 'warm-up'}: {case.title}, {one.title}")
                        sample = self._sample(case, one, brokers[one.site], driver, repetition)
                        if repetition:
                            results.add(case, one, sample)

    def _sample(
        self, case: SparkCase, one: Contender, broker: Broker, driver: Driver, repetition: int
    ) -> SparkSample:
        topic = TOPICS[case.topic]
        rows = case.parameters.get("rows") or topic.rows
        request = {
            **case.parameters,
            "rows": int(rows * QUICK) if self.quick else rows,
            "check": not repetition,
            "format": one.format,
            "access": broker.access(one.format),
            "options": one.options,
            "session": one.session,
            "topic": broker.name(topic, one.format),
            "into": broker.name(TOPICS["sink-8"], one.format),
            "pids": broker.pids,
            "seconds": self._floor_s(repetition),
            "store": str(broker.store),
        }
        feed = contextlib.nullcontext()
        if case.is_paced:
            feed = broker.feed(topic, one.format, PACE, FEED_S)
        with feed:
            answer: Any = driver.call(one.key, one.does(case), **request).result(ACTION_TIMEOUT_S)
        if not case.is_paced and answer["rows"] != request["rows"]:
            raise RuntimeError(f"{case.key}, {one.key}: {answer['rows']} of {request['rows']} rows")
        return SparkSample(
            rows=answer["rows"],
            rate=answer["rows"] / answer["seconds"],
            batch_ms=answer.get("batch_ms"),
            cpu_us={part: used / answer["rows"] * 1e6 for part, used in answer["cpu"].items()},
        )

    def _floor_s(self, repetition: int) -> float:
        if not repetition:
            return WARM_FLOOR_S
        return QUICK_FLOOR_S if self.quick else FLOOR_S

    @contextlib.contextmanager
    def _progress(self, title: str, total: int) -> Iterator[Callable[[str], None]]:
        """A progress bar; yields a function that begins the next step, with its text."""
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=total)
            begun = 0

            def advance(text: str) -> None:
                nonlocal begun
                progress.update(task, completed=begun, description=text)
                begun += 1

            yield advance
            progress.update(task, completed=total, description=title)
