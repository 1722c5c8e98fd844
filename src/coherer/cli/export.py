"""`coherer export`: writes a topic, or the dead letters of a group, to Parquet files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from coherer._store import OsFiles
from coherer._store.backup_files import is_backup
from coherer._store.snapshot import is_store
from coherer.cli import copying, jobs
from coherer.cli.java import java_errors
from coherer.cli.job_arguments import JobArguments, with_arguments
from coherer.errors import StoreError, UnavailableError, UsageError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNFINISHED: Final = "_temporary"
"""The directory in which Spark collects the files of a job until it ends."""

_FINISHED: Final = ("_SUCCESS", "_spark_metadata")
"""What Spark adds to the files of a job that has ended, and to those of a stream."""

_PARTS: Final = ("part-", ".part-")
"""How the names begin of the files that Spark moves out of `_UNFINISHED`, and of their checksums.
"""

_TIMES: Final = "spark.sql.parquet.outputTimestampType"
"""How Spark writes times to Parquet. Its default, INT96, has no time zone, and pyarrow and pandas
turn its years before 1678 and after 2262 into others."""

app = typer.Typer(help="Write a topic to Parquet files.", add_completion=False)


@app.command()
@with_arguments
def export(
    given: JobArguments,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="A new directory for the files. Required."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="The columns, in this order: offset,value. Default: those of Spark's source, and "
            "properties."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete what is in the directory, then write.")
    ] = False,
    skip_lost: jobs.SkipLost = False,
) -> None:
    """Write the messages of a topic to Parquet files, with Spark.

    They come from the brokers of --url, or from the files of --store without a broker. Exit codes:
    0 written; 1 the source, Spark or a disk failed; 2 the command line is wrong; 130 interrupted.
    """
    jobs.check_installed()
    chosen = tuple(name.strip() for name in columns.split(",")) if columns else None
    source = given.source(chosen, lenient=skip_lost)
    parts = source.preview()
    if given.dry_run:
        jobs.print_preview(parts, as_json=given.as_json)
        return
    if not to:
        raise UsageError("Option --to is missing.", hint="Name a directory for the files.")
    elsewhere = given.spark_remote is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    here = _path_here(to, elsewhere=elsewhere)
    if here is not None:
        with _looking_at(to):
            _check_replaced(here, to, source)
    with nullcontext() if here is None else _alone(here, elsewhere=elsewhere):
        with _looking_at(to):
            unfinished = here is not None and _is_unfinished(_names_here(here))
            exists = here is not None and here.exists()
        if exists and not (overwrite or unfinished):
            raise _exists(to)
        replaces = overwrite or unfinished
        copying.copy(
            source,
            parts,
            to,
            given.spark_remote,
            source.table,
            lambda rows: _write(rows, to, "overwrite" if replaces else _mode(rows, to)),
            as_json=given.as_json,
        )


def _write(rows: DataFrame, to: str, mode: Literal["overwrite", "error"]) -> None:
    """Write files whose times every reader of Parquet understands; the session may be another's."""
    settings = rows.sparkSession.conf
    before = str(settings.get(_TIMES))
    settings.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        rows.write.mode(mode).parquet(to)
    finally:
        with suppress(*java_errors()):  # it may be gone
            settings.set(_TIMES, before)


def _path_here(to: str, *, elsewhere: bool) -> Path | None:
    """The path of a directory on this machine; None for a URI of another file system.

    Args:
        to: a path or a URI.
        elsewhere: whether Spark runs on other machines, where `file:` names their disks.

    >>> _path_here("file:/a/b", elsewhere=False), _path_here("hdfs:///a", elsewhere=False)
    (PosixPath('/a/b'), None)
    """
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:", to) is None:
        return Path(to)
    local = re.fullmatch("file:(?://)?(/[^/].*)", to)
    return None if local is None or elsewhere else Path(local[1])


@contextmanager
def _looking_at(to: str) -> Generator[None]:
    """Explain why a directory cannot be looked at.

    Raises:
        UsageError: this user may not.
        UnavailableError: its disk failed.
    """
    try:
        yield
    except PermissionError as error:
        raise UsageError(
            f"{to} cannot be read: {error.strerror}.",
            hint="Name a directory that this user may read and write.",
        ) from error
    except OSError as error:
        raise UnavailableError(f"{to} cannot be read: {error.strerror}.") from error


def _check_replaced(here: Path, to: str, source: jobs.Source) -> None:
    """Check that an export deletes no files of a node: Spark empties a directory that it replaces.

    Raises:
        UsageError: the directory is that of a node or a backup, or holds one.
    """
    # Spark is an extra.
    from coherer.spark.files import directories, file_options

    target = here.resolve()
    if not target.is_dir():
        return
    found = [one for one in (target, *target.iterdir()) if _is_of_node(one)]
    if source.stores:
        read = directories(file_options(source.options(), source.format).paths)
        found += [one for one in read if target in (one.resolve(), *one.resolve().parents)]
    if found:
        raise UsageError(
            f"{to} exists, and an export to it would delete the files of a node in {found[0]}.",
            hint="Name a new directory.",
        )


def _is_of_node(directory: Path) -> bool:
    try:
        return is_store(directory) or is_backup(directory)
    except OSError:  # nor can Spark delete what is in there
        return False


@contextmanager
def _alone(target: Path, *, elsewhere: bool) -> Generator[None]:
    """Keep another export on this machine from taking a directory for that of a dead run.

    Raises:
        UnavailableError: another export writes the directory.
        UsageError: it is the root of a file system.
    """
    target = target.absolute()
    if not target.name:
        raise UsageError(f"{target} cannot be replaced.", hint="Name a new directory.")
    if not elsewhere:
        with suppress(OSError):  # Spark says what is wrong with it
            target.parent.mkdir(parents=True, exist_ok=True)
    with _looking_at(str(target)):
        is_lockable = target.parent.is_dir() and os.access(target.parent, os.W_OK)
    if not is_lockable:
        yield
        return
    lock, files = target.with_name(f".{target.name}.export"), OsFiles()
    try:
        handle = files.lock(lock)
    except StoreError as error:
        raise UnavailableError(
            f"Another export is writing to {target}.", hint="Wait until it has ended."
        ) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # first: the next export locks a file of its own
        files.unlock(lock, handle)


def _exists(to: str) -> UsageError:
    return UsageError(f"{to} exists.", hint="Name a new directory, or use --overwrite.")


def _mode(rows: DataFrame, to: str) -> Literal["overwrite", "error"]:
    """How to write a directory that this machine may not see, such as one in HDFS.

    Raises:
        UsageError: a table is there.
    """
    names = _names_there(rows.sparkSession, to)
    if names is not None and not _is_unfinished(names):
        raise _exists(to)
    return "error" if names is None else "overwrite"


def _is_unfinished(names: Collection[str]) -> bool:
    """Whether a run that failed or was killed left a directory: Spark makes it first.

    A table to which another job adds rows, or a killed one did, has `_UNFINISHED` too.
    """
    left = all(name == _UNFINISHED or name.startswith(_PARTS) for name in names)
    return left and (not names or _UNFINISHED in names)


def _names_here(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else {""}


def _names_there(spark: SparkSession, to: str) -> set[str] | None:
    """The names in a directory; None if it is missing, or if they are unknown."""
    # Spark is an extra.
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    if not hasattr(spark, "_jsc"):  # Spark Connect lists no hidden files, but it can open them
        found = set[str]()
        for name in (_UNFINISHED, *_FINISHED):
            with suppress(AnalysisException):
                _ = spark.read.format("binaryFile").load(f"{to.rstrip('/')}/{name}").schema
                found.add(name)
        return found or None
    context: Any = spark.sparkContext  # PySpark has no types for what Java has
    path = context._jvm.org.apache.hadoop.fs.Path(to)
    try:
        files = path.getFileSystem(context._jsc.hadoopConfiguration())
        return {one.getPath().getName() for one in files.listStatus(path)}
    except Py4JJavaError:  # it is missing, or Spark says what is wrong with it
        return None
