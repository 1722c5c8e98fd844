"""The decisions of a transactional sink: files that outlive the driver.

A decision says: this micro-batch consists of these half messages. It exists or not; nobody changes
it. The files are in a folder beside the checkpoint of the query:

| file | |
|---|---|
| `query` | the id of the query that the folder belongs to; Spark keeps this id in the checkpoint |
| `12.decision` | the half messages of micro-batch 12, its plan, and the ends of its queues before |
| `12.owner` | the process that finishes it instead of the one that decided, and the latter |

Invariants:

1. A folder belongs to one query. Another query gets an error (`check_query`).
2. A decision is about one plan of one micro-batch: the file `offsets/12` that Spark writes to the
   checkpoint. If somebody restores an older checkpoint, Spark plans micro-batch 12 again, and gets
   an error (`Decisions.check_plan`). So an old decision is never applied to new rows.
3. A decision with a lower number than the last one is over, and may be forgotten. Nobody can make
   it again (`Decisions.record`) or go on with it (`Decisions.owner`): not even a driver that hung
   in the middle of it, while another one took its place.
4. Before a decision is written, its plan in the checkpoint is durable, which Spark does not sync
   (`Folder.read_durable`), and so is every parent of the folder.

A folder on a local disk, or on one that is mounted on every driver (NFS), is written with `fsync`
and hard links: of two processes that decide about one micro-batch, one succeeds. Other URIs
(`s3://`, `gs://`, `abfss://`, `hdfs://`) go through `pyarrow.fs`, with the credentials of the
Python process and not of Spark; there Spark has to ensure that only one driver runs.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from pyarrow import fs

from coherer.errors import DamagedStoreError, UnavailableError, UsageError
from coherer.rocketmq import HalfMessages, Queue

P = ParamSpec("P")
R = TypeVar("R")

FOLDER: Final = "coherer-transactions"
"""The name of the folder in a checkpoint."""

_DECISION: Final = ".decision"
_OWNER: Final = ".owner"
_QUERY: Final = "query"
_RENAMED: Final = {"s3a": "s3", "s3n": "s3"}
"""Arrow's names for schemes of Hadoop."""


class Decision(msgspec.Struct, frozen=True):
    """The half messages that make a micro-batch.

    Args:
        owner: a random word of the process that decided.
        halves: the half messages.
        starts: for each queue of `halves`, its end before the first commit.
        plan: the plan of the micro-batch; empty if Python cannot read the checkpoint.
    """

    owner: str
    halves: HalfMessages
    starts: tuple[int, ...]
    plan: str = ""


class _File(msgspec.Struct, frozen=True):
    """A decision as a file: MessagePack, with columns in the byte order of the machine."""

    owner: str
    group: str
    queues: list[tuple[str, str, int]]
    starts: tuple[int, ...]
    queue: bytes
    half_offsets: bytes
    log_offsets: bytes
    plan: str = ""
    counts: bytes = b""


def encode(decision: Decision) -> bytes:
    """The contents of a file."""
    halves = decision.halves
    columns = (halves.queue, halves.half_offsets, halves.log_offsets, halves.counts)
    queue, half_offsets, log_offsets, counts = (
        array(kind, values).tobytes() for kind, values in zip("Hqqq", columns, strict=True)
    )
    queues = [(queue.topic, queue.broker, queue.id) for queue in halves.queues]
    file = _File(
        decision.owner,
        halves.group,
        queues,
        decision.starts,
        queue,
        half_offsets,
        log_offsets,
        decision.plan,
        counts,
    )
    return msgspec.msgpack.encode(file)


def decode(data: bytes) -> Decision:
    """The decision in a file.

    >>> queue = Queue("t", "broker-a", 0)
    >>> made = Decision("me", HalfMessages("g", (queue,), [0, 0], [5, 6], [700, 900]), (3,))
    >>> read = decode(encode(made))
    >>> read.owner, read.halves.queues == (queue,), list(read.halves.log_offsets), read.starts
    ('me', True, [700, 900], (3,))
    """
    file = msgspec.msgpack.decode(data, type=_File)
    halves = HalfMessages(
        file.group,
        tuple(Queue(*queue) for queue in file.queues),
        array("H", file.queue),
        array("q", file.half_offsets),
        array("q", file.log_offsets),
        array("q", file.counts),
    )
    return Decision(file.owner, halves, file.starts, file.plan)


class Folder(Protocol):
    """Small files, each written as a whole."""

    def names(self) -> list[str]:
        """The names of all files."""
        ...

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        ...

    def read_durable(self, name: str) -> bytes | None:
        """`read`; the returned contents survive a power cut."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; returns False if there is one already."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, new or not."""
        ...

    def remove(self, *names: str) -> None:
        """Delete files, in this order."""
        ...


class LocalFolder:
    """A folder on a disk, created by its first file. Files survive a power cut."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """The names of all files."""
        return [path.name for path in self._path.iterdir()] if self._path.is_dir() else []

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def read_durable(self, name: str) -> bytes | None:
        """`read`; the returned contents survive a power cut."""
        try:
            with (self._path / name).open("rb") as file:
                if os.name != "nt":  # Windows syncs only what is open for writing
                    os.fsync(file.fileno())
                data = file.read()
        except FileNotFoundError:
            return None
        sync_folder(self._path)
        return data

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self._path / name).exists()

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; returns False if there is one already."""
        written = self._written(name, data)
        try:
            os.link(written, self._path / name)
        except FileExistsError:
            return False
        finally:
            written.unlink()
        sync_folder(self._path)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, new or not."""
        self._written(name, data).replace(self._path / name)
        sync_folder(self._path)

    def remove(self, *names: str) -> None:
        """Delete files in this order, and the incomplete files of processes that died."""
        for name in names:
            for path in (self._path / name, *self._path.glob(f".{name}.*")):
                path.unlink(missing_ok=True)
        if self._path.is_dir():
            sync_folder(self._path)

    def _written(self, name: str, data: bytes) -> Path:
        if not any(self._path.glob("[!.]*")):
            self._path.mkdir(parents=True, exist_ok=True)
            # Sync the parents before the first file, also if the folder exists: the process that
            # created it may have died. Parents may be new, too: Spark has just made the checkpoint.
            for parent in self._path.absolute().parents:
                sync_folder(parent)
        path = self._path / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        return path


def sync_folder(path: Path) -> None:
    """Sync a folder: the names of its files survive a power cut."""
    # Windows cannot open folders, and needs no sync of them.
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class ArrowFolder:
    """A folder in an object store or in HDFS."""

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        """The names of all files."""
        found = self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [one.base_name for one in found]

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        try:
            with self._files.open_input_stream(f"{self._path}/{name}") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def read_durable(self, name: str) -> bytes | None:
        """`read`: in object stores and HDFS, visible files survive a power cut."""
        return self.read(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._files.get_file_info(f"{self._path}/{name}").type != fs.FileType.NotFound

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; returns False if there is one already."""
        if self.read(name) is not None:
            return False
        self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, new or not."""
        # An object store shows a file when its stream is closed. HDFS renames as a whole.
        self._files.create_dir(self._path, recursive=True)
        stored = self._files.type_name != "hdfs"
        path = f"{self._path}/{name}" if stored else f"{self._path}/.{name}.{os.urandom(4).hex()}"
        with self._files.open_output_stream(path) as file:
            file.write(data)
        if not stored:
            self._files.move(path, f"{self._path}/{name}")

    def remove(self, *names: str) -> None:
        """Delete files, in this order."""
        for name in names:
            with suppress(FileNotFoundError):
                self._files.delete_file(f"{self._path}/{name}")


def open_folder(location: str) -> Folder:
    """The folder at a path or a URI.

    Raises:
        UsageError: Python cannot open such a URI.

    >>> open_folder("file:///tmp/a%20b")._path
    PosixPath('/tmp/a b')
    >>> open_folder("memory://x")
    Traceback (most recent call last):
    coherer.errors.UsageError: Python cannot open memory://x: ... transactionLocation ...
    """
    scheme = re.match(r"([a-z][a-z0-9+.-]+):", location)
    if scheme is None:
        return LocalFolder(Path(location))
    if scheme[1] == "file":
        return LocalFolder(Path(unquote(urlsplit(location).path)))
    uri = _RENAMED.get(scheme[1], scheme[1]) + location[scheme.end(1) :]
    try:
        return ArrowFolder(*fs.FileSystem.from_uri(uri))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"Python cannot open {location}: {error}",
            hint="Set transactionLocation to a folder that Python on the driver can write to.",
        ) from error


def check_query(location: str, owner: str | None, query: str) -> None:
    """Check that a query may use a folder; `owner` is the result of `Decisions.query`.

    Raises:
        UsageError: the folder belongs to another query.
    """
    if owner not in (None, query):
        raise UsageError(
            f"The decisions in {location} are those of query {owner}, and this is query {query}.",
            hint="Each query needs a transactionLocation of its own. If the checkpoint of the "
            "other query was deleted, delete this folder too.",
        )


def check_order(location: str, latest: int, batch: int) -> None:
    """Check that Spark runs no micro-batch before that of the last decision, `latest`.

    Raises:
        UsageError: it does.
    """
    if batch < latest:
        raise _turned_back(location, batch, f"sent micro-batch {latest}")


def _turned_back(location: str, batch: int, reason: str) -> UsageError:
    return UsageError(
        f"The checkpoint was turned back: Spark runs micro-batch {batch}, but the query has "
        f"already {reason}, according to {location}.",
        hint="Bring back the newer checkpoint. Or delete the folder: then all rows since "
        f"micro-batch {batch} are sent again, also those that the topic has.",
    )


def _named(
    method: Callable[Concatenate[Decisions, P], R],
) -> Callable[Concatenate[Decisions, P], R]:
    """Name the folder in an error of the file system."""

    @wraps(method)
    def named(self: Decisions, /, *given: P.args, **named: P.kwargs) -> R:
        try:
            return method(self, *given, **named)
        except OSError as error:
            raise UnavailableError(
                f"The decisions in {self.location} cannot be read or written: "
                f"{error.strerror or error}.",
                hint="Does the disk have space, and the user of the driver the permission?",
            ) from error

    return named


class Decisions:
    """The decisions of a query, in a folder; its location is for errors.

    >>> from tempfile import mkdtemp
    >>> decisions = Decisions(LocalFolder(Path(mkdtemp())))
    >>> decision = Decision("me", HalfMessages("g"), ())
    >>> decisions.record("12", decision), decisions.record("12", decision)
    (True, False)
    >>> decisions.latest(), decisions.owner("12", decision)
    (12, 'me')
    """

    def __init__(self, folder: Folder, location: str = "the folder") -> None:
        self.location = location
        self._folder = folder

    @property
    def way_out(self) -> str:
        """What to do about a decision that cannot be carried out any more."""
        return (
            f"Delete {self.location} and start the query again to send all rows of this "
            "micro-batch again. Those that are in the topic already will be there twice; "
            "coherer.spark.deduplicate removes them."
        )

    @_named
    def query(self) -> str | None:
        """The id of the query that the folder belongs to; None if it is new."""
        found = self._folder.read(_QUERY)
        return None if found is None else found.decode()

    @_named
    def belong_to(self, query: str) -> None:
        """Make the folder that of a query.

        Raises:
            UsageError: it belongs to another query.
        """
        if self.query() is None:
            self._folder.create(_QUERY, query.encode())
        check_query(self.location, self.query(), query)

    def check_plan(self, batch: int, plan: str) -> None:
        """Check that a decision about a micro-batch is about the plan that Spark runs.

        The plan is empty if it is unknown.

        Raises:
            UsageError: it is about another plan.
        """
        check_order(self.location, self.latest(), batch)
        decision = self.find(str(batch))
        if decision is not None and plan and decision.plan and plan != decision.plan:
            raise _turned_back(self.location, batch, f"sent other rows as micro-batch {batch}")

    @_named
    def names(self) -> list[str]:
        """The names of all decisions, sorted."""
        found = sorted(self._folder.names())
        shown = [one for one in found if one.endswith(_DECISION) and not one.startswith(".")]
        return [one.removesuffix(_DECISION) for one in shown]

    def latest(self) -> int:
        """The number of the last micro-batch with a decision, or -1."""
        return max((int(name) for name in self.names() if name.isdecimal()), default=-1)

    @_named
    def find(self, name: str) -> Decision | None:
        """A decision, or None if the micro-batch has none.

        Raises:
            DamagedStoreError: its file does not hold what was written.
        """
        data = self._folder.read(name + _DECISION)
        try:
            return None if data is None else decode(data)
        except (TypeError, ValueError) as error:
            raise DamagedStoreError(
                f"The decision about micro-batch {name} in {self.location} is damaged: {error}.",
                hint=self.way_out,
            ) from error

    @_named
    def record(self, name: str, decision: Decision) -> bool:
        """Decide; returns False if this micro-batch or a later one has a decision already."""
        if not self._folder.create(name + _DECISION, encode(decision)):
            return False
        if name.isdecimal() and int(name) < self.latest():
            # This process hung after it had looked for a decision. Another one has decided, carried
            # the decision out, and forgotten it.
            self._folder.remove(name + _DECISION)
            return False
        return True

    @_named
    def owner(self, name: str, decision: Decision) -> str:
        """The process that finishes a decision; empty if it is finished and forgotten."""
        found = self._folder.read(name + _OWNER)
        owner, _, decided = ("" if found is None else found.decode()).partition(" ")
        if owner and decided in ("", decision.owner):  # older versions wrote one word
            return owner
        # `forget` deletes this file first. So it is gone if `forget` has deleted the other one.
        return decision.owner if self._folder.exists(name + _DECISION) else ""

    @_named
    def claim(self, name: str, decision: Decision, owner: str) -> None:
        """Become the process that finishes a decision; the previous one stops."""
        # The second word ties the file to this decision.
        self._folder.replace(name + _OWNER, f"{owner} {decision.owner}".encode())

    @_named
    def forget(self, name: str) -> None:
        """Delete a decision that was carried out, and that Spark does not need again."""
        # The decision first: its first owner would go on if only the other file were gone.
        self._folder.remove(name + _DECISION, name + _OWNER)

    @_named
    def forget_older(self) -> None:
        """Forget all decisions before the last one."""
        latest = self.latest()
        names = (name.partition(".")[0] for name in self._folder.names())
        for name in sorted({one for one in names if one.isdecimal() and int(one) < latest}):
            self.forget(name)
