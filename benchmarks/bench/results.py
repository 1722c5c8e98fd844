"""Samples, their medians, and tables of them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from rich.table import Table

from bench.cases import COHERER, CPP, JAVA, Case

PAIRS = [(JAVA, JAVA), (COHERER, JAVA), (JAVA, COHERER), (COHERER, COHERER)]
"""Client and broker, in the order of the table."""

CPP_PAIR = (CPP, JAVA)
NAMES = {JAVA: "Java", COHERER: "Coherer", CPP: "C++"}


@dataclass(frozen=True)
class Sample:
    """One repetition.

    Args:
        rate: messages per second; None for latency.
        p50_ms: for latency.
        p99_ms: for latency.
        client_us: CPU of the client process per message.
        broker_us: CPU of the broker process per message.
        failed: sends that were refused.
    """

    rate: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    client_us: float | None = None
    broker_us: float | None = None
    failed: int = 0


@dataclass(frozen=True)
class Single:
    """A measurement without a Java counterpart.

    Args:
        key: for the JSON.
        title: for the table.
        unit: of the values.
        values: one per repetition.
        goal: maximum value; with `at_least`, minimum.
        at_least: whether higher values are better.
    """

    key: str
    title: str
    unit: str
    values: list[float]
    goal: float | None = None
    at_least: bool = False

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached."""
        if self.goal is None:
            return None
        return self.median >= self.goal if self.at_least else self.median <= self.goal


@dataclass
class Results:
    """The results of one protocol.

    Args:
        name: of the protocol.
        cases: that were run.
        pairs: client and broker, in the order of the table.
    """

    name: str
    cases: list[Case]
    pairs: list[tuple[str, str]] = field(default_factory=lambda: list(PAIRS))
    samples: dict[tuple[str, str, str], list[Sample]] = field(default_factory=dict)
    singles: list[Single] = field(default_factory=list)

    def add(self, case: Case, client: str, broker: str, sample: Sample) -> None:
        """Adds a repetition."""
        self.samples.setdefault((case.key, client, broker), []).append(sample)

    def median(self, key: str, client: str, broker: str, name: str) -> float | None:
        """The median of one field over the repetitions."""
        samples = self.samples.get((key, client, broker), [])
        values = [value for sample in samples if (value := getattr(sample, name)) is not None]
        return statistics.median(values) if values else None

    def ratio(self, case: Case) -> float | None:
        """The ratio of Coherer's pair to Java's, inverted for latencies, so that more is better.

        A case with a baseline is compared with Coherer's own pair.
        """
        if case.baseline:
            coherer = self.median(case.key, COHERER, COHERER, "rate")
            before = self.median(case.baseline, COHERER, COHERER, "rate")
            return coherer / before if coherer and before else None
        unit = "p50_ms" if case.action == "latency" else "rate"
        coherer = self.median(case.key, COHERER, COHERER, unit)
        java = self.median(case.reference or case.key, JAVA, JAVA, unit)
        if not coherer or not java:
            return None
        return java / coherer if unit == "p50_ms" else coherer / java

    def ratio_cpp(self, case: Case) -> float | None:
        """The ratio of Coherer's client to the C++ client, both with Java's broker."""
        coherer = self.median(case.key, COHERER, JAVA, "rate")
        cpp = self.median(case.key, *CPP_PAIR, "rate")
        return coherer / cpp if coherer and cpp else None

    def met_cpp(self, case: Case) -> bool | None:
        """Whether that ratio reaches its goal; None without a goal or a result."""
        ratio = self.ratio_cpp(case)
        return None if case.goal_cpp is None or ratio is None else ratio >= case.goal_cpp

    def met(self, case: Case) -> bool | None:
        """Whether the case reaches its goal; None without a goal or a result."""
        limits = {"p50_ms": case.goal_ms, "p99_ms": case.goal_p99_ms}
        if given := {name: limit for name, limit in limits.items() if limit is not None}:
            found = {name: self.median(case.key, COHERER, COHERER, name) for name in given}
            if None in found.values():
                return None
            return all(found[name] <= limit for name, limit in given.items())
        ratio = self.ratio(case)
        return None if case.goal is None or ratio is None else ratio >= case.goal

    def json(self) -> dict[str, object]:
        """All results, for a file."""
        return {
            "protocol": self.name,
            "cases": [self._case(case) for case in self.cases],
            "singles": [
                {**asdict(single), "median": single.median, "met": single.met}
                for single in self.singles
            ],
        }

    def _case(self, case: Case) -> dict[str, object]:
        pairs = {
            f"{client} client, {broker} broker": {
                "median": {
                    name: self.median(case.key, client, broker, name)
                    for name in ("rate", "p50_ms", "p99_ms", "client_us", "broker_us")
                },
                "samples": [asdict(one) for one in self.samples[case.key, client, broker]],
            }
            for client, broker in self.pairs
            if (case.key, client, broker) in self.samples
        }
        return {
            "key": case.key,
            "title": case.title,
            "ratio_to_java": self.ratio(case),
            "goal": case.goal if case.goal_ms is None else case.goal_ms,
            "goal_p99_ms": case.goal_p99_ms,
            "met": self.met(case),
            "ratio_to_cpp": self.ratio_cpp(case),
            "goal_cpp": case.goal_cpp,
            "met_cpp": self.met_cpp(case),
            "pairs": pairs,
        }

    def tables(self) -> list[Table]:
        """The tables of rates, CPU, and single measurements."""
        tables = [self._rates(), self._cpu()] if self.cases else []
        return [*tables, self._singles()] if self.singles else tables

    def markdown(self) -> str:
        """The tables as Markdown."""
        return markdown_of(self.tables())

    def _rates(self) -> Table:
        title = f"{self.name}: messages per second, client \u2192 broker"
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for client, broker in self.pairs:
            table.add_column(f"{NAMES[client]} \u2192 {NAMES[broker]}", justify="right")
        table.add_column("Coherer / Java", justify="right")
        table.add_column("goal", justify="right")
        with_cpp = CPP_PAIR in self.pairs
        if with_cpp:
            table.add_column("Coherer / C++", justify="right")
            table.add_column("goal", justify="right")
        for case in self.cases:
            cells = [self._cell(case, client, broker) for client, broker in self.pairs]
            cells += [ratio_text(self.ratio(case)), self._goal_text(case)]
            if with_cpp:
                cells += [ratio_text(self.ratio_cpp(case)), self._goal_cpp_text(case)]
            table.add_row(case.title, *cells)
        return table

    def _cell(self, case: Case, client: str, broker: str) -> str:
        rate = self.median(case.key, client, broker, "rate")
        if rate is not None:
            failed = sum(one.failed for one in self.samples[case.key, client, broker])
            return f"{rate:,.0f}" + (f" ({failed} refused)" if failed else "")
        p50 = self.median(case.key, client, broker, "p50_ms")
        p99 = self.median(case.key, client, broker, "p99_ms")
        return "" if p50 is None else f"{p50:,.2f} ms, p99 {p99:,.2f}"

    def _goal_text(self, case: Case) -> str:
        limits = (("", case.goal_ms), ("p99 ", case.goal_p99_ms))
        if given := [f"{name}\u2264 {limit:g} ms" for name, limit in limits if limit is not None]:
            goal = ", ".join(given)
        elif case.goal is not None:
            goal = f"\u2265 {case.goal:g}"
        else:
            return ""
        return f"{goal} {mark(self.met(case))}"

    def _goal_cpp_text(self, case: Case) -> str:
        if case.goal_cpp is None:
            return ""
        return f"\u2265 {case.goal_cpp:g} {mark(self.met_cpp(case))}"

    def _cpu(self) -> Table:
        table = Table(
            title=f"{self.name}: CPU per message in \u00b5s, client process + broker process",
            title_justify="left",
        )
        table.add_column("")
        for client, broker in self.pairs:
            table.add_column(f"{NAMES[client]} \u2192 {NAMES[broker]}", justify="right")
        for case in self.cases:
            cells = []
            for pair in self.pairs:
                client_us = self.median(case.key, *pair, "client_us")
                broker_us = self.median(case.key, *pair, "broker_us")
                known = client_us is not None and broker_us is not None
                cells.append(f"{client_us:.1f} + {broker_us:.1f}" if known else "")
            table.add_row(case.title, *cells)
        return table

    def _singles(self) -> Table:
        table = Table(title="Start, memory and brokers", title_justify="left")
        for name in ("", "median", "goal"):
            table.add_column(name, justify="left" if not name else "right")
        for single in self.singles:
            sign = "\u2265" if single.at_least else "\u2264"
            goal = "" if single.goal is None else f"{sign} {single.goal:g} {mark(single.met)}"
            digits = 2 if single.unit == "x" or single.median < 1 else 0
            table.add_row(single.title, f"{single.median:,.{digits}f} {single.unit}", goal)
        return table


def markdown_of(tables: list[Table]) -> str:
    """Tables as Markdown."""
    return "\n\n".join(map(_markdown, tables)) + "\n"


def _markdown(table: Table) -> str:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    lines = [[str(column.header) for column in table.columns]]
    lines.append(["---" if column.justify == "left" else "---:" for column in table.columns])
    lines += [list(row) for row in zip(*columns, strict=True)]
    return "\n".join([f"**{table.title}**", "", *("| " + " | ".join(row) + " |" for row in lines)])


def ratio_text(value: float | None) -> str:
    """A ratio with two decimals."""
    return "" if value is None else f"{value:.2f}"


def mark(met: bool | None) -> str:
    """A check mark or a cross: whether a goal is reached."""
    return "" if met is None else "\u2713" if met else "\u2717"
