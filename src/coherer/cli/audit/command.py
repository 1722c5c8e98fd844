"""`coherer audit`: counts the messages of a topic, with gaps and latency."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from coherer.cli import jobs
from coherer.cli.groups import committed_offsets, group_states
from coherer.cli.job_arguments import JobArguments, with_arguments
from coherer.cli.output import amount, print_json, print_table
from coherer.cli.target import AdminTarget, AdminUrl
from coherer.errors import UsageError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from coherer.cli.audit.report import Committed, Report

INCOMPLETE: Final = 3
"""Exit code: the audit worked, and the topic or the table lacks or repeats messages."""

app = typer.Typer(help="Count what was sent, stored, consumed and landed.", add_completion=False)


Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", help="Count what this group consumed; may be repeated."),
]
Landed = Annotated[
    str | None,
    typer.Option(
        "--landed",
        metavar="DIR",
        help="Compare with the Parquet files of this directory; they need the columns broker, "
        "partition and offset.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE.png", help="Draw counts and latency by minute; needs matplotlib."
    ),
]


@app.command()
@with_arguments
def audit(
    given: JobArguments,
    groups: Groups = None,
    landed: Landed = None,
    plot: Plot = None,
    admin: AdminUrl = None,
) -> None:
    """Count the messages of a topic per partition and minute, with Spark.

    Sent messages count in the minute of sending, the others in the minute of storing (TubeMQ has
    one time, to the minute). --group counts the messages below the offsets of the group as
    consumed; --landed counts the rows of a table. Exit codes: 0 whole; 1 the source or Spark
    failed; 2 the command line is wrong; 3 offsets are missing, messages were sent twice, or the
    table lacks or repeats messages; 130 interrupted.
    """
    jobs.check_installed()
    from coherer.cli.audit.report import COLUMNS

    if given.stores and groups:
        raise UsageError(
            "--group needs a cluster; a store directory has no groups.",
            hint="Use --url, or leave --group out.",
        )
    if plot is not None:
        _check_plot(plot)
    source = given.source(COLUMNS, lenient=True)
    parts = source.preview()
    if given.dry_run:
        jobs.print_preview(parts, as_json=given.as_json)
        return
    names = list(dict.fromkeys(groups or ()))
    target = AdminTarget(given.url, admin, None, given.user, given.password)
    committed = _committed(target, source.topic, names)
    report = _report(source, parts, committed, landed, given.spark_remote, shown=not given.as_json)
    _show(report, plot, as_json=given.as_json)
    if not report.is_whole:
        raise typer.Exit(INCOMPLETE)


def _check_plot(plot: Path) -> None:
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib.", hint="Try: pip install matplotlib.")
    if not plot.parent.is_dir():
        raise UsageError(f"--plot is {plot}: there is no directory {plot.parent}.")


def _show(report: Report, plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"whole": report.is_whole, **msgspec.structs.asdict(report)})
    else:
        _print(report)
    if plot is not None:
        from coherer.cli.audit.chart import draw

        draw(report, plot)


def _committed(target: AdminTarget, topic: str, groups: Sequence[str]) -> Committed:
    """The offsets of groups in a topic."""
    if not groups:
        return {}
    states = group_states(target, *groups)
    return {name: committed_offsets(states, name, topic) for name in groups}


def _report(
    source: jobs.Source,
    parts: Sequence[jobs.Part],
    committed: Committed,
    landed: str | None,
    remote: str | None,
    *,
    shown: bool,
) -> Report:
    from coherer.cli.audit.report import landed_table, measure

    counted = source.is_counted(parts)
    with (
        jobs.session(remote) as spark,
        jobs.progress(spark, f"auditing {source.topic}", shown=shown),
    ):
        table = None if landed is None else landed_table(spark, landed, source.topic)
        rows = source.table(spark)
        return measure(
            rows,
            source.topic,
            parts,
            committed,
            table,
            counted=counted,
            left_out=source.left_out,
        )


def _print(report: Report) -> None:
    groups = list(report.partitions[0].consumed) if report.partitions else []
    with_table = report.total("landed") is not None and bool(report.partitions)
    table = ["landed", "not landed", "doubled"] if with_table else []
    print_table(
        ["broker", "partition", "begin", "end", "stored", "bytes", "missing", *table]
        + [word for group in groups for word in (f"consumed by {group}", "lag")],
        [
            [one.broker, one.partition, one.begin, one.end, one.stored, one.bytes, one.missing]
            + ([one.landed, one.stored - (one.landed or 0), one.doubled] if with_table else [])
            + [
                n
                for group in groups
                for n in (one.consumed[group], one.stored - one.consumed[group])
            ]
            for one in report.partitions
        ],
        empty="There is nothing to read.",
    )
    timed = report.p50_ms is not None
    print_table(
        ["minute", "sent", "stored", "bytes", *(["landed"] if with_table else [])]
        + [f"consumed by {group}" for group in groups]
        + (["p50 ms", "p99 ms"] if timed else []),
        [
            [
                f"{one.minute:%Y-%m-%d %H:%M}" if one.minute else None,
                one.sent,
                one.stored,
                one.bytes,
            ]
            + ([one.landed] if with_table else [])
            + [one.consumed.get(group, 0) for group in groups]
            + ([one.p50_ms, one.p99_ms] if timed else [])
            for one in report.minutes
        ],
        empty="",
    )
    for gap in report.gaps:
        typer.echo(f"{gap.broker}:{gap.partition} has no messages [{gap.begin}, {gap.end})")
    typer.echo(f"{report.topic}: {_summary(report, with_table=with_table)}")


def _summary(report: Report, *, with_table: bool) -> str:
    missing = report.total("missing")
    words = [
        amount(report.total("stored") or 0, "message"),
        "gaps unknown" if missing is None else f"{missing:,} missing",
        f"{report.repeated:,} sent twice",
    ]
    if left_out := report.total("left_out"):
        words.insert(2, f"{left_out:,} left out by power cuts")
    if with_table:
        words += [f"{report.not_landed:,} not landed", f"{report.total('doubled') or 0:,} doubled"]
    if report.p50_ms is not None:
        words.append(f"stored after {report.p50_ms} ms (p50), {report.p99_ms} ms (p99)")
    return ", ".join(words)
