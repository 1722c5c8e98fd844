"""The options of both formats: a table for reading and one for writing.

Spark passes options as text with lower-case names. `schema()` checks them, so that `load()` raises
a clear error.

>>> url = "tubemq://127.0.0.1:8715"
>>> options = read_options({"url": url, "topic": "a, b", "minpartitions": "4"})
>>> options.topics, options.min_partitions, options.fail_on_data_loss
(('a', 'b'), 4, True)
>>> read_options({"url": url, "topic": "a", "startingofsets": "latest"})
Traceback (most recent call last):
coherer.errors.UsageError: Unknown option 'startingofsets'. Did you mean startingOffsets?
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec.structs import fields, replace

from coherer._client.engine.options import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, parse_url
from coherer._common.masking import masked_url
from coherer.errors import UsageError
from coherer.spark import kafka
from coherer.spark.columns import BY_NAME, DEFAULT
from coherer.spark.offsets import (
    EARLIEST,
    LATEST,
    Assigned,
    Offsets,
    Times,
    assigned_from_json,
    from_json,
    times_from_json,
)

# Drivers and workers without TLS load no sockets here.
if TYPE_CHECKING:
    from coherer._net import TlsOptions

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
DROP: Final = "DROP"
"""The modes for bad records, with the names of Spark's readers of files."""

ERROR: Final = "error"
"""The strategy, besides `latest`, for partitions without a message after a starting time."""

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "name"})
"""Options that Spark itself adds."""

_OF_QUERIES: Final = ("checkpointLocation", "queryName", "outputMode")
"""Options of a query, which have no effect where it reads."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The access to the cluster; the same for reading and writing.

    Equal values share a client in a worker process.

    Args:
        url: `tubemq://host:port,host:port`, the masters; or `rocketmq://host:port;host:port`, the
            name servers.
        user: the account; RocketMQ's access key.
        password_file: the file with the password; every worker must be able to read it.
        password_env: the environment variable with the password, of the driver and every worker.
        password: the password, RocketMQ's secret key; `repr` omits it.
        tls: encrypt connections.
        tls_trust: file with trusted certificates.
        tls_certificate: file with the client's certificate.
        tls_key: file with its key.
        admin: `http://host:port`, the HTTP interface of TubeMQ's master; None to ask the master.
        admin_token: for changes over HTTP; `repr` omits it.
        on_disk: read from TubeMQ only what the broker has on disk.
        timeout_ms: the timeout of a request.
    """

    url: str
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    tls: bool = False
    tls_trust: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    admin: str | None = None
    admin_token: str | None = None
    on_disk: bool = False
    timeout_ms: int = 10_000

    @property
    def protocol(self) -> str:
        """`tubemq` or `rocketmq`."""
        return self.url.partition("://")[0].removesuffix("s")

    def secret(self) -> str | None:
        """The password, from the option, the file, or the environment.

        Raises:
            UsageError: this process has no such file or variable.
        """
        where = f"{sys.executable} on {platform.node()}"
        if self.password_env is not None:
            if self.password_env not in os.environ:
                raise UsageError(
                    f"Option passwordEnv: {where} has no variable {self.password_env}.",
                    hint="Set it for the driver and, by spark.executorEnv or the cluster's "
                    "secrets, for the workers.",
                )
            return os.environ[self.password_env]
        if self.password_file is None:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(
                f"Option passwordFile: {where} cannot read {self.password_file}: {error.strerror}.",
                hint="The driver and every worker read it.",
            ) from error
        except UnicodeDecodeError:  # not as the cause: it shows what is in the file
            raise UsageError(
                f"Option passwordFile: {self.password_file}, read by {where}, is not UTF-8.",
                hint="Save the password as UTF-8 text.",
            ) from None

    def tls_options(self) -> TlsOptions | None:
        """TLS for the client; None for plain connections."""
        if not self.tls and not self.url.startswith(f"{self.protocol}s:"):
            return None
        from coherer._net import TlsOptions

        return TlsOptions(
            trust=_path(self.tls_trust),
            certificate=_path(self.tls_certificate),
            key=_path(self.tls_key),
        )

    def __repr__(self) -> str:
        return f"Access({masked_url(self.url)!r}, user={self.user!r})"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a batch or stream that reads. `READ_TABLE` documents each field."""

    access: Access
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    assigned: Assigned | None = None
    starting_offsets: str | Offsets | None = None
    ending_offsets: str | Offsets | None = None
    starting_time: datetime | None = None
    ending_time: datetime | None = None
    starting_times: Times | None = None
    ending_times: Times | None = None
    unmatched: str | None = None
    fail_on_data_loss: bool = True
    mode: str = FAILFAST
    min_partitions: int = 1
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    include_headers: bool = False
    columns: tuple[str, ...] = DEFAULT
    pushdown: bool = False
    group: str | None = None
    commit_offsets: bool = False


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a sink. `WRITE_TABLE` documents each field."""

    access: Access
    topic: str | None = None
    window: int = 5_000
    include_origin: bool = True
    include_headers: bool = True
    order_by_key: bool = False
    delay_ms: int | None = None
    transactional: bool = False
    checkpoint: str | None = None
    transaction_location: str | None = None
    producer_group: str | None = None


class Option(msgspec.Struct, frozen=True):
    """A row of the tables.

    Args:
        name: as users write it; case does not matter.
        field: the field of the options struct.
        read: converts text to the value; raises a ValueError with the reason.
        meaning: one line for the documentation.
        protocol: the protocol that has it; None for both.
    """

    name: str
    field: str
    read: Callable[[str], object]
    meaning: str
    protocol: str | None = None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value.strip()


def _boolean(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError(f"{value!r} is neither true nor false")
    return known[value.strip().lower()]


def _count(value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value.strip()) or int(value) < 1:
        raise ValueError(f"{value!r} is not a number above 0")
    return int(value)


_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_DIGITS_MAX: Final = 20
_LONGEST_MS: Final = timedelta.max // timedelta(milliseconds=1)
"""Python has no longer duration, and reads no number of 5,000 digits."""


def duration_ms(value: str) -> int:
    """A duration such as `500ms`, `30s` or `15m`.

    Raises:
        ValueError: the text is not a duration.
    """
    match = re.fullmatch(r"([0-9]+) *(ms|s|m|h|d)", value.strip().lower())
    if match is None:
        raise ValueError(f"{value!r} is not a duration such as 500ms, 30s or 15m")
    ms = int(match[1][:_DIGITS_MAX]) * _UNITS_MS[match[2]]
    if len(match[1]) >= _DIGITS_MAX or ms > _LONGEST_MS:
        raise ValueError(f"{value[:40]!r} is longer than {timedelta.max.days:,} days")
    return ms


def _timeout(value: str) -> int:
    ms = duration_ms(value)
    if not TIMEOUT_MS_MIN <= ms <= TIMEOUT_MS_MAX:
        raise ValueError(f"{value!r} is not {TIMEOUT_MS_MIN} ms to {TIMEOUT_MS_MAX // 60_000} min")
    return ms


def _admin(value: str) -> str:
    # Few reads need an administration.
    from coherer._client.tubemq.administration.webapi import Endpoint

    Endpoint.parse(value)
    return value.strip()


def _names(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("it names no topic")
    return names


def _pattern(value: str) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from error
    return value


def _url(value: str) -> str:
    parse_url(value.strip())
    return value.strip()


def _moment(value: str) -> datetime:
    text = value.strip()
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{value!r} is not a time") from error
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; write it like 2026-11-21T06:00:00Z")
    return moment


_UNITS_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _size(value: str) -> int:
    match = re.fullmatch(r"([0-9]+) *([kmgt]?)b?", value.strip().lower())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{value!r} is not a size such as 500000, 64m or 1g")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        for word in words:
            if value.strip().lower() == word.lower():
                return word
        raise ValueError(f"{value!r} is not one of {', '.join(words)}")

    return read


def _columns(value: str) -> tuple[str, ...]:
    known = {name.lower(): name for name in BY_NAME}
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name.lower() not in known:
            close = get_close_matches(name.lower(), known, n=1)
            meant = f"did you mean {known[close[0]]}?" if close else f"it has {', '.join(BY_NAME)}"
            raise ValueError(f"the source has no column {name!r}; {meant}")
    chosen = tuple(known[name.lower()] for name in names)
    if not chosen:
        raise ValueError("it names no column")
    if len(set(chosen)) < len(chosen):
        raise ValueError("it names a column twice")
    return chosen


def _offsets(option: str) -> Callable[[str], str | Offsets]:
    def read(value: str) -> str | Offsets:
        if value.strip().lower() in {EARLIEST, LATEST}:
            return value.strip().lower()
        return from_json(value, option)

    return read


def _times(option: str) -> Callable[[str], Times]:
    return lambda value: times_from_json(value, option)


ACCESS_TABLE: Final = (
    Option("url", "url", _url,
           "The masters, `tubemq://host:port,host:port`, or the name servers, "
           "`rocketmq://host:port,host:port`. Required."),
    Option("user", "user", _text, "The account (RocketMQ: access key)."),
    Option("password", "password", _text, "The password (RocketMQ: secret key)."),
    Option("passwordFile", "password_file", _text, "A file with it; every worker reads the file."),
    Option("passwordEnv", "password_env", _text,
           "An environment variable with it, of the driver and every worker."),
    Option("tls", "tls", _boolean, "Encrypt connections (default false)."),
    Option("tlsTrust", "tls_trust", _text, "The file with trusted certificates."),
    Option("tlsCertificate", "tls_certificate", _text, "The file with the client's certificate."),
    Option("tlsKey", "tls_key", _text, "The file with its key."),
    Option("admin", "admin", _admin,
           "TubeMQ only, for reading: the master's HTTP interface, `http://host:port`.", "tubemq"),
    Option("adminToken", "admin_token", _text,
           "TubeMQ only, for reading: the token of that interface, which `commitOffsets` needs "
           "if it is not the default and there are no accounts.", "tubemq"),
    Option("onDisk", "on_disk", _boolean,
           "TubeMQ only, for reading: read only what Java's broker has on disk, so that its death "
           "takes back nothing that was read (default false).", "tubemq"),
    Option("timeout", "timeout_ms", _timeout, "Timeout of a request (default 10s)."),
)  # fmt: skip
"""Options of both reading and writing."""

READ_TABLE: Final = (
    Option("topic", "topics", _names, "The topic, or several: `a,b`. `.load('a')` does the same."),
    Option("topicsPattern", "topics_pattern", _pattern, "All topics whose whole name matches."),
    Option("assign", "assigned", assigned_from_json,
           'These partitions only: JSON `{"topic": ["broker:partition", 1]}`; a number is that '
           "partition of every broker."),
    Option("startingOffsets", "starting_offsets", _offsets("startingOffsets"),
           "`earliest` (default of a batch), `latest` (default of a stream), or JSON "
           '`{"topic": {"broker:partition": n}}`; -2 is the earliest, -1 the latest.'),
    Option("endingOffsets", "ending_offsets", _offsets("endingOffsets"),
           "Batch only: `latest` (default), `earliest`, or JSON."),
    Option("startingTimestamp", "starting_time", _moment,
           "Start with the first message that was stored at this time or later; milliseconds "
           "since 1970, or ISO 8601 with a time zone."),
    Option("endingTimestamp", "ending_time", _moment, "Batch only: end before that message."),
    Option("startingOffsetsByTimestamp", "starting_times", _times("startingOffsetsByTimestamp"),
           'As `startingTimestamp`, but a time for each partition: JSON `{"topic": '
           '{"broker:partition": ms}}`, or `{"topic": ms}`.'),
    Option("endingOffsetsByTimestamp", "ending_times", _times("endingOffsetsByTimestamp"),
           "Batch only: the same for `endingTimestamp`."),
    Option("startingOffsetsByTimestampStrategy", "unmatched", _one_of(ERROR, LATEST),
           "If a partition has no message at its starting time or later: `error` (default of "
           "`startingOffsetsByTimestamp`), or start at its end, `latest` (default of "
           "`startingTimestamp`)."),
    Option("failOnDataLoss", "fail_on_data_loss", _boolean,
           "Fail if messages are gone before they were read (default true)."),
    Option("mode", "mode", _one_of(PERMISSIVE, FAILFAST, DROP),
           "What to do with a bad record, such as one with a wrong checksum. `FAILFAST`: fail. "
           "`PERMISSIVE`: a row with the raw bytes as `value`, and the reason in the column "
           "`error`. `DROP`: skip it with a warning. Default: `FAILFAST`, with "
           "`failOnDataLoss=false` `DROP`."),
    Option("minPartitions", "min_partitions", _count, "Minimum number of tasks."),
    Option("maxPartitions", "max_partitions", _count, "Maximum number of tasks."),
    Option("maxRecordsPerPartition", "max_records_per_partition", _count,
           "Maximum rows of a task; `maxPartitions` takes precedence."),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _count,
           "Maximum rows of a micro-batch, shared by partitions in proportion to their backlog."),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", _size,
           "Maximum bytes of the values of a micro-batch, such as `64m`; estimated from the first "
           "messages of each partition."),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", _count,
           "Wait until there are this many rows."),
    Option("maxTriggerDelay", "max_trigger_delay_ms", duration_ms,
           "Limit of the wait for `minOffsetsPerTrigger` (default 15m)."),
    Option("includeHeaders", "include_headers", _boolean,
           "Add the column `properties` (default false: Spark reads all columns, even unused "
           "ones)."),
    Option("columns", "columns", _columns,
           "The columns to read, in this order: `offset,value`. Others are not decoded. "
           "`includeHeaders` and `mode=PERMISSIVE` still add theirs."),
    Option("pushdown", "pushdown", _boolean,
           "Batch only: let filters decide what is read; see [Filters](#filters) (default false)."),
    Option("group", "group", _text, "The group whose offsets show the progress on the broker."),
    Option("commitOffsets", "commit_offsets", _boolean,
           "Set the offsets of `group` after each micro-batch; with TubeMQ over HTTP (default "
           "false)."),
)  # fmt: skip
"""Options of `spark.read` and `spark.readStream`."""

WRITE_TABLE: Final = (
    Option("topic", "topic", _text,
           "The topic of all rows; overrides the column `topic`. `.save('a')` does the same."),
    Option("window", "window", _count,
           "Messages in flight per task, of those that are sent one by one (default 5000)."),
    Option("includeOrigin", "include_origin", _boolean,
           "Add `spark.query`, `spark.batch`, `spark.part` and `spark.seq` to the properties "
           "(default true)."),
    Option("includeHeaders", "include_headers", _boolean,
           "Send the column `properties`, if there is one (default true)."),
    Option("orderByKey", "order_by_key", _boolean,
           "RocketMQ only: rows of a task with the same key go to the same queue, in order "
           "(default false).", "rocketmq"),
    Option("delay", "delay_ms", duration_ms,
           "RocketMQ only: brokers deliver the messages after this time; column `delay` gives each "
           "row its own.", "rocketmq"),
    Option("transactional", "transactional", _boolean,
           "RocketMQ only: consumers see a micro-batch whole or not at all (default false).",
           "rocketmq"),
    Option("checkpointLocation", "checkpoint", _text,
           "Spark's checkpoint of the stream; with `transactional=true` also for `df.write`.",
           "rocketmq"),
    Option("transactionLocation", "transaction_location", _text,
           "RocketMQ only: the folder for decisions, if Python on the driver cannot write to the "
           "checkpoint.", "rocketmq"),
    Option("producerGroup", "producer_group", _text,
           "RocketMQ only: the producer group of the transactions of this query (default "
           "`spark-<id of the query>`).", "rocketmq"),
)  # fmt: skip
"""Options of `df.write` and `df.writeStream`."""

STREAM_ONLY: Final = {
    "commitOffsets": "commit_offsets",
    "maxOffsetsPerTrigger": "max_offsets_per_trigger",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "minOffsetsPerTrigger": "min_offsets_per_trigger",
    "maxTriggerDelay": "max_trigger_delay_ms",
}
"""Options that have no effect on a batch, and their fields."""

BATCH_ONLY: Final = {
    "endingOffsets": "ending_offsets",
    "endingTimestamp": "ending_time",
    "endingOffsetsByTimestamp": "ending_times",
    "pushdown": "pushdown",
}
"""Options that have no effect on a stream, and their fields."""

READ_ONLY: Final = {"admin": "admin", "adminToken": "admin_token", "onDisk": "on_disk"}
"""Options of access that have no effect on a sink, and their fields."""

T = TypeVar("T", bound=msgspec.Struct)


def _read_table(options: Mapping[str, str], table: Iterable[Option]) -> dict[str, object]:
    values: dict[str, object] = {}
    for option in table:
        text = options.get(option.name.lower())
        if text is None:
            continue
        try:
            values[option.field] = option.read(text)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(
                f"Option {option.name}: {error}.", hint=f"Meaning: {option.meaning}"
            ) from error
    return values


def _parsed(
    kind: type[T], options: Mapping[str, str], table: tuple[Option, ...], protocol: str
) -> T:
    given = {name.lower(): text for name, text in options.items()}
    known = {
        option.name.lower(): option.name
        for option in (*ACCESS_TABLE, *table)
        if option.protocol in (None, protocol)
    }
    for name in sorted(given.keys() - known.keys() - _SPARK_OPTIONS):
        if name.startswith("option."):
            raise UsageError(
                "Spark's CREATE TABLE does not pass options to a Python data source.",
                hint="CREATE TEMPORARY VIEW … USING … OPTIONS (…) does.",
            )
        if instead := kafka.answer(name):
            raise UsageError(f"Unknown option {name!r}.", hint=instead)
        close = [known[match] for match in get_close_matches(name, known, n=1)]
        meant = f"Did you mean {close[0]}?" if close else f"Options: {', '.join(known.values())}."
        raise UsageError(f"Unknown option {name!r}.", hint=meant)
    access = _read_table(given, ACCESS_TABLE)
    if "url" not in access:
        raise UsageError("Option url is missing.", hint=f"Write {protocol}://host:port.")
    secrets = access.keys() & {"password", "password_file", "password_env"}
    if len(secrets) > 1:
        raise UsageError("Give one of password, passwordFile and passwordEnv.")
    if ("user" in access) != bool(secrets):
        raise UsageError("Options user and passwordFile (or passwordEnv, password) go together.")
    encrypted = access.get("tls") or given["url"].strip().lower().startswith(f"{protocol}s:")
    for option in ("tlsTrust", "tlsCertificate", "tlsKey"):
        if option.lower() in given and not encrypted:
            raise UsageError(f"Option {option} needs tls=true.", hint="Set tls, or remove it.")
    if msgspec.convert(access, Access).protocol != protocol:
        raise UsageError(
            f"format({protocol!r}) needs a url {protocol}://host:port.",
            hint=f"The url is {given['url']}.",
        )
    return msgspec.convert({"access": access, **_read_table(given, table)}, kind)


def _with_path(options: Mapping[str, str]) -> dict[str, str]:
    """Convert the option `path`, of `.load("flights")` and `.save("flights")`, to the topic."""
    given = {name.lower(): text for name, text in options.items()}
    if "path" in given:
        if "topic" in given:
            raise UsageError("The topic is given twice.", hint="Remove option topic, or the path.")
        given["topic"] = given.pop("path")
    return given


def read_options(options: Mapping[str, str], protocol: str = "tubemq") -> ReadOptions:
    """The options of a batch or a stream that reads.

    Args:
        options: as Spark passes them.
        protocol: `tubemq` or `rocketmq`: the format.

    Raises:
        UsageError: an option is unknown, malformed, missing, or contradicts another.
    """
    given = _with_path(options)
    for name in _OF_QUERIES:
        if name.lower() in given:
            raise UsageError(
                f"Option {name} has no effect on a read.",
                hint="Give it to writeStream, or remove it.",
            )
    read = _parsed(ReadOptions, given, READ_TABLE, protocol)
    named = [read.topics, read.topics_pattern, read.assigned]
    if sum(bool(one) for one in named) != 1:
        raise UsageError("Give one of topic, topicsPattern and assign.")
    if read.assigned is not None:
        read = replace(read, topics=tuple(read.assigned))
    _check_edges(read)
    if read.commit_offsets != (read.group is not None):
        raise UsageError("Options group and commitOffsets go together.")
    limit = read.max_offsets_per_trigger
    if limit is not None and read.min_offsets_per_trigger > limit:
        raise UsageError("minOffsetsPerTrigger is larger than maxOffsetsPerTrigger.")
    if read.max_partitions is not None and read.min_partitions > read.max_partitions:
        raise UsageError("minPartitions is larger than maxPartitions.")
    if "mode" not in given and not read.fail_on_data_loss:
        read = replace(read, mode=DROP)
    return _with_columns(read)


def check_batch(read: ReadOptions) -> None:
    """Check that a batch has no option of streams.

    Raises:
        UsageError: it has one.
    """
    for name in _given_of(STREAM_ONLY, read):
        raise UsageError(f"Option {name} is for streams only.")


def check_stream(read: ReadOptions) -> None:
    """Check that a stream has no option of batches.

    Raises:
        UsageError: it has one.
    """
    for name in _given_of(BATCH_ONLY, read):
        raise UsageError(f"Option {name} is for batches only.")


def _given_of(names: Mapping[str, str], read: ReadOptions) -> list[str]:
    """The options, of a table of names and fields, that do not have their default."""
    defaults = {field.name: field.default for field in fields(ReadOptions)}
    return [name for name, field in names.items() if getattr(read, field) != defaults[field]]


def _check_edges(read: ReadOptions) -> None:
    """Check that a read has one start and one end."""
    starts = [read.starting_offsets, read.starting_time, read.starting_times]
    ends = [read.ending_offsets, read.ending_time, read.ending_times]
    for edge, wanted in (("starting", starts), ("ending", ends)):
        if sum(one is not None for one in wanted) > 1:
            raise UsageError(
                f"Give one of {edge}Offsets, {edge}Timestamp and {edge}OffsetsByTimestamp."
            )
    if read.unmatched is not None and not (read.starting_time or read.starting_times):
        raise UsageError(
            "startingOffsetsByTimestampStrategy needs startingOffsetsByTimestamp or "
            "startingTimestamp."
        )


def _with_columns(read: ReadOptions) -> ReadOptions:
    """The options with the columns that other options add."""
    permissive = read.mode == PERMISSIVE
    if "error" in read.columns and not permissive:
        raise UsageError("Column error needs mode=PERMISSIVE.", hint="Without it, it is null.")
    wanted = [("properties", read.include_headers), ("error", permissive)]
    added = [name for name, is_wanted in wanted if is_wanted and name not in read.columns]
    return replace(read, columns=(*read.columns, *added))


def write_options(options: Mapping[str, str], protocol: str = "tubemq") -> WriteOptions:
    """The options of a batch or a stream that writes.

    Args:
        options: as Spark passes them.
        protocol: `tubemq` or `rocketmq`: the format.

    Raises:
        UsageError: an option is unknown, malformed, missing, or has no effect.

    >>> write_options({"url": "tubemq://127.0.0.1:8715", "path": "copies"}).topic
    'copies'
    """
    write = _parsed(WriteOptions, _with_path(options), WRITE_TABLE, protocol)
    for name, field in READ_ONLY.items():
        if getattr(write.access, field):
            raise UsageError(f"Option {name} is for reading only.")
    if not write.transactional and (write.transaction_location or write.producer_group):
        raise UsageError("transactionLocation and producerGroup need transactional=true.")
    return write
