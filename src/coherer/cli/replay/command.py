"""`coherer replay`: sends messages of a topic again, to another topic or to a group.

A replay into a topic gives each message an origin that does not depend on the run: the properties
`spark.query` (`replay TOPIC`), `spark.batch`, `spark.part` (broker and partition) and `spark.seq`
(offset and id). So `coherer.spark.deduplicate` removes the copies that a second run sends, and
`--resume` does not send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from coherer._common.urls import is_rocketmq
from coherer._record.properties import KEYS
from coherer.cli import copying, jobs
from coherer.cli.job_arguments import JobArguments, with_arguments
from coherer.cli.options import Yes
from coherer.cli.output import amount, warn
from coherer.cli.questions import confirm
from coherer.cli.replay.group import moves_of, print_moves, set_offsets
from coherer.cli.target import AdminTarget, AdminUrl, Token
from coherer.errors import CohererError, UsageError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SENT: Final = ("key", "tag", "timestamp", "value", "properties")
COLUMNS: Final = ("broker", "partition", "offset", "id", *SENT)
TUBE_KEYS: Final = "spark.keys"
"""The property with the keys of a message that goes to TubeMQ, which has none."""
ORIGIN: Final = ("spark.query", "spark.batch", "spark.part", "spark.seq")

app = typer.Typer(help="Send messages of a topic again.", add_completion=False)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that a replay sends to.

    Args:
        topic: its name.
        url: its cluster.
        transactional: the directory for decisions, if consumers see all messages or none.
        resume: skip messages that an earlier run has sent to the topic.
    """

    topic: str
    url: str
    transactional: str | None = None
    resume: bool = False

    @property
    def format(self) -> str:
        """The name of Spark's format."""
        return "rocketmq" if is_rocketmq(self.url) else "tubemq"


To = Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Send to this topic.")]
Group = Annotated[
    str | None,
    typer.Option("--group", "-g", help="Deliver again to this group: move it back to --from."),
]
Transactional = Annotated[
    str | None,
    typer.Option(
        "--transactional",
        metavar="DIR",
        help="RocketMQ: consumers see all messages or none; a directory for the decisions.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Skip messages that an earlier replay over the same protocol has sent to --to.",
    ),
]


@app.command()
@with_arguments
def replay(
    given: JobArguments,
    to: To = None,
    group: Group = None,
    transactional: Transactional = None,
    resume: Resume = False,
    skip_lost: jobs.SkipLost = False,
    yes: Yes = False,
    admin: AdminUrl = None,
    token: Token = None,
) -> None:
    """Send messages of a topic again: to another topic with Spark, or to a group.

    --to copies messages with key, tag, time and properties to another topic of --url, from --url or
    from the files of --store. --group moves the offsets of a group back to --from, never forward,
    and asks before that. Exit codes: 0 done; 1 the source, the target or Spark failed; 2 the
    command line is wrong; 130 interrupted.
    """
    jobs.check_installed()
    if (to is None) == (group is None):
        raise UsageError("Give either --to or --group.")
    source = given.source(COLUMNS, lenient=skip_lost)
    if group is not None:
        if given.begin is None:
            raise UsageError("--group needs --from.", hint="It moves the group back to there.")
        if given.stores or transactional or resume or given.until or skip_lost:
            raise UsageError(
                "--group excludes --store, --until, --transactional, --resume and --skip-lost."
            )
        administration = AdminTarget(given.url, admin, token, given.user, given.password)
        _move(source, administration, group, dry_run=given.dry_run, yes=yes, as_json=given.as_json)
        return
    target = Target(topic=str(to), url=given.url, transactional=transactional, resume=resume)
    _check(source, target)
    parts = source.preview()
    if given.dry_run:
        jobs.print_preview(parts, as_json=given.as_json)
        return
    _send(source, target, parts, given.spark_remote, as_json=given.as_json)


def _move(
    source: jobs.Source,
    target: AdminTarget,
    group: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    moves = moves_of(source, target, group)
    count = sum(move.messages for move in moves)
    changes = bool(moves) and not dry_run
    if not (as_json and changes):
        print_moves(moves, group, dry_run=dry_run, as_json=as_json)
    if not changes:
        return
    if not yes:
        confirm(f"Deliver {amount(count, 'message')} again?")
    set_offsets(source, target, group, moves)
    if as_json:  # programs take it for done
        print_moves(moves, group, dry_run=False, as_json=True)
    else:
        typer.echo(f"{group}: {amount(count, 'message')} will be delivered again")


def _check(source: jobs.Source, target: Target) -> None:
    if target.topic == source.topic and not source.stores:
        raise UsageError(
            "Source and target topic are the same; every message would be duplicated.",
            hint="--group delivers messages again to one group.",
        )
    if target.transactional is None:
        return
    if target.format != "rocketmq":
        raise UsageError("TubeMQ has no transactions.", hint="Leave --transactional out.")
    if target.resume:
        raise UsageError(
            "--transactional and --resume exclude each other.",
            hint="A transactional replay sends everything or nothing.",
        )


def _send(
    source: jobs.Source,
    target: Target,
    parts: Sequence[jobs.Part],
    remote: str | None,
    *,
    as_json: bool,
) -> None:
    if target.resume and not _exists(source, target):
        warn(f"Topic {target.topic} does not exist yet, so all messages are sent.")
        target = msgspec.structs.replace(target, resume=False)
    options = _access(source, target) | {"topic": target.topic}
    if target.transactional is None:
        options["includeOrigin"] = "false"
    else:
        options |= {"transactional": "true", "checkpointLocation": target.transactional}
    try:
        copying.copy(
            source,
            parts,
            target.topic,
            remote,
            lambda spark, watch: _outgoing(source, target, spark, watch),
            lambda rows: rows.write.format(target.format).options(**options).mode("append").save(),
            as_json=as_json,
        )
    except UsageError:  # nothing was sent
        raise
    except (CohererError, KeyboardInterrupt):
        if target.transactional is None:
            warn(
                f"Some messages may be in {target.topic} already. Run it again with --resume to "
                "send only the others."
            )
        raise


def _exists(source: jobs.Source, target: Target) -> bool:
    """Whether the target topic exists: the first message makes it, where brokers allow that."""
    # Spark is an extra, and other commands load no clients.
    from coherer.rocketmq import TopicNotExistError
    from coherer.spark.connections import OPENERS
    from coherer.spark.options import read_options
    from coherer.spark.topics import Topics, monotonic_ms
    from coherer.tubemq import TopicNotDeployedError

    options = read_options(_access(source, target) | {"topic": target.topic}, target.format)
    with closing(OPENERS[target.format](options.access)) as queue:
        try:
            Topics(options, monotonic_ms).bounds(queue)
        except (TopicNotDeployedError, TopicNotExistError):
            return False
    return True


def _access(source: jobs.Source, target: Target) -> dict[str, str]:
    given = {"url": target.url, "user": source.user, "password": source.password}
    return {name: text for name, text in given.items() if text is not None}


def _outgoing(
    source: jobs.Source, target: Target, spark: SparkSession, watch: copying.Watch | None
) -> DataFrame:
    """The rows to send, with their origins."""
    from pyspark.sql import functions as sf

    part = sf.concat_ws(":", "broker", "partition").alias("part")
    number = sf.concat_ws("-", "offset", "id").alias("seq")
    rows = source.table(spark, watch).select("*", part, number)
    query = f"replay {source.topic}"
    if target.resume:
        there = spark.read.format(target.format).options(
            **_access(source, target), topic=target.topic, columns="properties"
        )
        found = there.load().where(sf.col("properties")["spark.query"] == query)
        done = found.select(
            sf.col("properties")["spark.part"].alias("part"),
            sf.col("properties")["spark.seq"].alias("seq"),
        )
        rows = rows.join(done, ["part", "seq"], "left_anti")
    given = sf.coalesce("properties", sf.create_map().cast("map<string,string>"))
    added: dict[str, Column] = {}
    if target.transactional is None:
        origin = [sf.lit(query), sf.lit("0"), sf.col("part"), sf.col("seq")]
        added |= zip(ORIGIN, origin, strict=True)
    # A source joins the keys of a message with spaces.
    keys = sf.filter(sf.split("key", " "), lambda key: key != "")
    if target.format == "tubemq":  # its source gives the keys of RocketMQ's messages as a property
        added[TUBE_KEYS] = sf.coalesce(sf.array_join(keys, " "), given[KEYS], given[TUBE_KEYS])
        keys = sf.lit(None).cast("array<string>")
    kept = sf.map_filter(given, lambda name, _: ~name.isin(*ORIGIN, KEYS, *added))
    pairs = [one for name, value in added.items() for one in (sf.lit(name), value)]
    new = sf.create_map(*pairs).cast("map<string,string>")
    properties = sf.map_concat(kept, sf.map_filter(new, lambda _, value: value != ""))
    return rows.withColumns({"key": keys, "properties": properties}).select(*SENT)
