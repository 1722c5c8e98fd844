"""The options that all jobs on Spark have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import msgspec
import typer

from coherer._common.masking import masked
from coherer._common.urls import is_rocketmq
from coherer.cli import jobs
from coherer.cli.options import Json, with_options
from coherer.cli.output import INTERRUPTED
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import Password, Url, User

P = ParamSpec("P")


class JobArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a job; each field is an option or argument of the command line."""

    topic: jobs.Topic = None
    dead_letters: jobs.DeadLetters = None
    stores: jobs.Stores = None
    broker_name: jobs.BrokerName = None
    begin: jobs.From = None
    until: jobs.Until = None
    partitions: jobs.Partitions = None
    dry_run: jobs.DryRun = False
    spark_remote: jobs.SparkRemote = None
    url: Url = ""
    user: User = None
    password: Password = None
    as_json: Json = False

    def source(self, columns: tuple[str, ...] | None, *, lenient: bool = False) -> jobs.Source:
        """The source that these options select.

        Args:
            columns: see `Source`.
            lenient: see `Source`.

        Raises:
            UsageError: an argument is wrong, or one is missing.
        """
        paths = jobs.local_stores(self.stores)
        tubemq = not paths and not is_rocketmq(self.url)
        return jobs.Source(
            topic=jobs.source_topic(self.topic, self.dead_letters, tubemq=tubemq),
            url=self.url,
            stores=paths,
            broker_name=self.broker_name,
            user=self.user,
            password=self.password,
            begin=jobs.edge(self.begin, "--from"),
            end=jobs.edge(self.until, "--until"),
            partitions=frozenset(self.partitions) if self.partitions else None,
            columns=columns,
            lenient=lenient,
        )

    def __repr__(self) -> str:
        return masked(self, "password")


def with_arguments(command: Callable[Concatenate[JobArguments, P], None]) -> Callable[..., None]:
    """Give a command the options of `JobArguments` in place of its first parameter.

    Ctrl-C and SIGTERM, by which schedulers end tasks, end it in order.
    """
    run = with_options(JobArguments, command)

    @wraps(run)
    def stoppable(**given: Any) -> None:  # Any: as Typer calls `run`
        try:
            with signals_interrupt():
                run(**given)
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return stoppable
