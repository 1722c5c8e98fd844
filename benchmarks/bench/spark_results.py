"""Samples of the comparison with Kafka, their medians, and tables of them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from rich.table import Table

from bench.results import mark, markdown_of, ratio_text
from bench.spark_cases import (
    FILES,
    FILES_OF_PLAIN,
    FILES_OF_ROCKETMQ,
    FORMATS,
    KAFKA,
    KAFKA_TUNED,
    OF_FILES,
    PLAIN,
    ROCKETMQ,
    Contender,
    SparkCase,
)

PARTS = ("broker", "jvm", "workers")


@dataclass(frozen=True)
class SparkSample:
    """One repetition.

    Args:
        rows: that were read or written.
        rate: rows per second.
        batch_ms: median time of a micro-batch, for the floor.
        cpu_us: CPU per row of broker, JVM and Python workers.
    """

    rows: int
    rate: float
    batch_ms: float | None
    cpu_us: dict[str, float]


@dataclass
class SparkResults:
    """The results of the comparison.

    Args:
        cases: that were run.
        contenders: that were run.
        spark: version of Spark.
    """

    cases: list[SparkCase]
    contenders: list[Contender]
    spark: str
    samples: dict[tuple[str, str], list[SparkSample]] = field(default_factory=dict)

    def add(self, case: SparkCase, contender: Contender, sample: SparkSample) -> None:
        """Adds a repetition."""
        self.samples.setdefault((case.key, contender.key), []).append(sample)

    def figure(self, case: SparkCase, key: str) -> float | None:
        """The median rows per second of a contender, or milliseconds of a micro-batch."""
        samples = self.samples.get((case.key, key), [])
        values = [one.rate if one.batch_ms is None else one.batch_ms for one in samples]
        return statistics.median(values) if values else None

    def cpu(self, case: SparkCase, key: str, part: str) -> float | None:
        """The median CPU time per row in microseconds."""
        samples = self.samples.get((case.key, key), [])
        return statistics.median(one.cpu_us[part] for one in samples) if samples else None

    def ratio(self, case: SparkCase, key: str, to: str) -> float | None:
        """The ratio of two contenders; more is better, also for milliseconds."""
        ours, theirs = self.figure(case, key), self.figure(case, to)
        if not ours or not theirs:
            return None
        return theirs / ours if case.is_paced else ours / theirs

    def ratio_to_baseline(self, case: SparkCase, key: str) -> float | None:
        """The ratio of a contender's rate to its own in the case's baseline."""
        ours = self.figure(case, key)
        baselines = (other for other in self.cases if other.key == case.baseline)
        before = next((self.figure(other, key) for other in baselines), None)
        return ours / before if ours and before else None

    def met(self, case: SparkCase, key: str) -> bool | None:
        """Whether a contender reaches all goals that can be judged; None without any."""
        known = [(self.ratio(case, key, to), goal) for to, goal in _goals(case)]
        if case.of_baseline is not None:
            known.append((self.ratio_to_baseline(case, key), case.of_baseline))
        judged = [ratio >= goal for ratio, goal in known if ratio is not None]
        taken_ms = self.figure(case, key)
        if case.at_most_ms is not None and taken_ms is not None:
            judged.append(taken_ms <= case.at_most_ms)
        return all(judged) if judged else None

    def json(self) -> dict[str, object]:
        """All results, for a file."""
        return {
            "protocol": "Spark",
            "spark": self.spark,
            "cases": [self._case(case) for case in self.cases],
            "singles": [],
        }

    def _case(self, case: SparkCase) -> dict[str, object]:
        return {
            **asdict(case),
            "contenders": {
                one.key: {
                    "median": self.figure(case, one.key),
                    "cpu_us": {part: self.cpu(case, one.key, part) for part in PARTS},
                    "ratio_to_default": self.ratio(case, one.key, KAFKA),
                    "ratio_to_tuned": self.ratio(case, one.key, KAFKA_TUNED),
                    "ratio_to_baseline": self.ratio_to_baseline(case, one.key),
                    "met": self.met(case, one.key) if one.key in FORMATS else None,
                    "samples": [asdict(sample) for sample in self.samples[case.key, one.key]],
                }
                for one in self.contenders
                if (case.key, one.key) in self.samples
            },
        }

    def tables(self) -> list[Table]:
        """The tables of rates and of CPU time."""
        files = [case for case in self.cases if (case.key, FILES) in self.samples]
        return [self._rates(), self._cpu(), *([self._files(files)] if files else [])]

    def markdown(self) -> str:
        """The tables as Markdown."""
        return markdown_of(self.tables())

    def _rates(self) -> Table:
        title = f"Spark {self.spark}: rows per second, or ms of a micro-batch"
        table = Table(title=title, title_justify="left")
        table.add_column("")
        brokers = [one for one in self.contenders if one.key not in OF_FILES]
        for one in brokers:
            table.add_column(one.title, justify="right")
        judged = [one for one in self.contenders if one.key in FORMATS]
        for one in judged:
            table.add_column(f"{one.title} / default, tuned", justify="right")
        table.add_column("goal", justify="right")
        for case in self.cases:
            cells = [_figure(case, self.figure(case, one.key)) for one in brokers]
            cells += [self._ratios(case, one.key) for one in judged]
            table.add_row(case.title, *cells, _goal(case))
        return table

    def _files(self, cases: list[SparkCase]) -> Table:
        """The rows of files, compared with those of the broker and with a plain read."""
        title = "The same rows from the files of the store, read from the disk: rows per second"
        table = Table(title=title, title_justify="left")
        goals = {ROCKETMQ: FILES_OF_ROCKETMQ, PLAIN: FILES_OF_PLAIN}
        shown = [one for one in self.contenders if one.key in (*goals, FILES)]
        for heading in ("", *(one.title for one in shown)):
            table.add_column(heading, justify="right" if heading else "left")
        for one in shown:
            if one.key in goals:
                table.add_column(f"files / {one.title}", justify="right")
        for case in cases:
            cells = [_figure(case, self.figure(case, one.key)) for one in shown]
            for key, goal in goals.items():
                ratio = self.ratio(case, FILES, key)
                if ratio is not None:
                    cells.append(f"{ratio_text(ratio)} \u2265 {goal:g} {mark(ratio >= goal)}")
            table.add_row(case.title, *cells)
        return table

    def _ratios(self, case: SparkCase, key: str) -> str:
        if case.baseline:
            ratio = ratio_text(self.ratio_to_baseline(case, key))
            return f"{ratio} {mark(self.met(case, key))}".strip()
        to_others = (ROCKETMQ,) if case.of_rocketmq else (KAFKA, KAFKA_TUNED)
        ratios = [ratio_text(self.ratio(case, key, to)) for to in to_others]
        return f"{', '.join(filter(None, ratios))} {mark(self.met(case, key))}".strip()

    def _cpu(self) -> Table:
        title = "CPU per row in \u00b5s: broker + JVM + Python workers"
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for one in self.contenders:
            table.add_column(one.title, justify="right")
        for case in self.cases:
            cells = []
            for one in self.contenders:
                parts = [self.cpu(case, one.key, part) for part in PARTS]
                cells.append(" + ".join(f"{part:,.2f}" for part in parts if part is not None))
            table.add_row(case.title, *cells)
        return table


def _goals(case: SparkCase) -> list[tuple[str, float]]:
    goals = (
        (KAFKA, case.of_default),
        (KAFKA_TUNED, case.of_tuned),
        (ROCKETMQ, case.of_rocketmq),
    )
    return [(to, goal) for to, goal in goals if goal is not None]


def _goal(case: SparkCase) -> str:
    if case.of_baseline is not None:
        return f"\u2265 {case.of_baseline:g} of {case.baseline.removeprefix('spark-')}"
    if case.at_most_ms is not None:
        return f"\u2264 {case.at_most_ms:,} ms"
    names = {KAFKA: "default", KAFKA_TUNED: "tuned", ROCKETMQ: "rocketmq"}
    return ", ".join(f"\u2265 {goal:g} of {names[to]}" for to, goal in _goals(case))


def _figure(case: SparkCase, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} ms" if case.is_paced else f"{value:,.0f}"
