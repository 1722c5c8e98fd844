"""Dead letters as files: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from coherer._administration.access import Cluster, rocketmq_only
from coherer._administration.dead_letters import (
    EVERYTHING,
    DeadLetter,
    DeadLetterQueue,
    Filter,
    check_complete,
    queue,
    scan_queue,
)
from coherer._common.moments import moment
from coherer.errors import UsageError

Format = Literal["json", "parquet"]

ROWS: Final = 1_000
"""The number of dead letters in a row group of Parquet."""


class LetterLine(msgspec.Struct, omit_defaults=True):
    """A dead letter as a line of JSON. `coherer produce --format json` takes such a line.

    Args:
        body: the body as text; or
        base64: the body, if it is not UTF-8.
        tag: the tag.
        time: the time of sending.
        keys: the keys.
        properties: the application's properties.
        topic: the topic it was sent to.
        group: the group that has given up on it.
        attempts: the number of deliveries.
        reason: the reason that the consumer gave.
        dead_since: the time at which it became a dead letter.
        broker: the broker that has it.
        partition: the number of the queue.
        offset: the offset in the queue.
        id: its offset message id.
        unique_id: the id that its sender generated.
        replay_of: the id of the dead letter that it was a replay of.
    """

    body: str | None = None
    base64: str | None = None
    tag: str | None = None
    time: datetime | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    topic: str = ""
    group: str = ""
    attempts: int | None = None
    reason: str | None = None
    dead_since: datetime | None = None
    broker: str = ""
    partition: int | None = None
    offset: int | None = None
    id: str = ""
    unique_id: str = ""
    replay_of: str | None = None

    @classmethod
    def of(cls, letter: DeadLetter) -> LetterLine:
        """The line of a dead letter."""
        try:
            plain, coded = letter.body.decode(), None
        except UnicodeDecodeError:
            plain, coded = None, base64.b64encode(letter.body).decode()
        return cls(
            body=plain,
            base64=coded,
            tag=letter.tag,
            time=moment(letter.born_ms),
            keys=letter.keys,
            properties=letter.properties,
            topic=letter.topic,
            group=letter.group,
            attempts=letter.attempts,
            reason=letter.reason,
            dead_since=moment(letter.stored_ms),
            broker=letter.broker,
            partition=letter.partition,
            offset=letter.offset,
            id=letter.id,
            unique_id=letter.unique_id,
            replay_of=letter.replay_of,
        )


Write = Callable[[Sequence[DeadLetter]], None]
"""Writes dead letters to an open file."""


async def export(
    cluster: Cluster,
    group: str,
    path: Path,
    *,
    form: Format = "json",
    where: Filter = EVERYTHING,
    show: Callable[[int], object] = lambda _: None,
) -> int:
    """Write dead letters of a group to a file; returns their number.

    The file gets its name when it is complete and on the disk, so the dead letters can be purged.

    Args:
        cluster: the cluster.
        group: the group.
        path: the file; an existing one is replaced.
        form: `json`: an object on each line (`LetterLine`); `parquet`: a table with the same
            columns, where `body` is binary.
        where: the filter.
        show: called with the number of dead letters that were examined.

    Raises:
        UsageError: it is a TubeMQ cluster, the path is not that of a file, or pyarrow is not
            installed.
        UnavailableError: a broker does not answer, or has no master.
        OSError: the file cannot be written.
    """
    rocket, path = rocketmq_only(cluster, "dead letters"), _target(path)
    found = await queue(cluster, group)
    if found is None:
        found = DeadLetterQueue(group, "", ())
    check_complete(found)
    written = seen = 0
    with _new_file(path) as partial, _FILES[form](partial) as write:
        some: list[DeadLetter] = []
        async for letter in scan_queue(rocket, found):
            seen += 1
            if where.matches(letter):
                some.append(letter)
            if len(some) == ROWS:
                write(some)
                written += len(some)
                some = []
            show(seen)
        write(some)
        written += len(some)
    return written


def _target(path: Path) -> Path:
    """The file to replace; of a link, the file that it names.

    Raises:
        UsageError: it is something else, such as a device; replacing /dev/null would destroy it.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{path} is not a regular file.", hint="Name a file.")
    return target


@contextmanager
def _new_file(path: Path) -> Generator[Path]:
    """A file that takes the place of `path` when it is complete and on the disk."""
    # Another export to this path has a file of its own.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # Windows cannot open folders, and needs no sync of them
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_lines(letters: Iterable[DeadLetter], to: BinaryIO) -> None:
    """Write dead letters as lines of JSON."""
    to.writelines(msgspec.json.encode(LetterLine.of(letter)) + b"\n" for letter in letters)


@contextmanager
def _json_file(path: Path) -> Generator[Write]:
    with path.open("wb") as file:
        yield lambda letters: write_lines(letters, file)


@contextmanager
def _parquet_file(path: Path) -> Generator[Write]:
    try:
        # An extra.
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(
            "Parquet needs pyarrow.", hint="Install coherer[arrow], or export JSON lines."
        ) from error
    instant = pa.timestamp("ms", tz="UTC")
    schema = pa.schema(
        [
            ("body", pa.binary()),
            ("tag", pa.string()),
            ("time", instant),
            ("keys", pa.list_(pa.string())),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("topic", pa.string()),
            ("group", pa.string()),
            ("attempts", pa.int32()),
            ("reason", pa.string()),
            ("dead_since", instant),
            ("broker", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("id", pa.string()),
            ("unique_id", pa.string()),
            ("replay_of", pa.string()),
        ]
    )
    with closing(pq.ParquetWriter(path, schema)) as writer:

        def write(letters: Sequence[DeadLetter]) -> None:
            if letters:
                rows = [_row(letter) for letter in letters]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

        yield write


_FILES: Final[dict[Format, Callable[[Path], AbstractContextManager[Write]]]] = {
    "json": _json_file,
    "parquet": _parquet_file,
}


def _row(letter: DeadLetter) -> dict[str, object]:
    line = LetterLine.of(letter)
    row = {name: getattr(line, name) for name in line.__struct_fields__ if name != "base64"}
    return {**row, "body": letter.body, "properties": list(letter.properties.items())}


__all__ = ["Format", "LetterLine", "export", "write_lines"]
