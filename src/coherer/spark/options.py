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

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from coherer._client.engine.options import parse_url
from coherer._common.masking import masked_url
from coherer.errors import UsageError
from coherer.spark.offsets import EARLIEST, LATEST, Offsets, from_json

if TYPE_CHECKING:
    from coherer._net import TlsOptions

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "name"})
"""Options that Spark itself adds."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the cluster; the same for reading and writing.

    Equal values share a client in a worker process.

    Args:
        url: `tubemq://host:port,host:port`, the masters; or `rocketmq://host:port;host:port`, the
            name servers.
        user: the account; RocketMQ's access key.
        password_file: the file with the password; every worker must be able to read it.
        password: the password, RocketMQ's secret key; `repr` omits it.
        tls: encrypt connections.
        tls_trust: file with trusted certificates.
        tls_certificate: file with the client's certificate.
        tls_key: file with its key.
        admin: `http://host:port`, the HTTP interface of TubeMQ's master; None to ask the master.
        admin_token: for changes over HTTP; `repr` omits it.
        timeout_ms: of a request.
    """

    url: str
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_trust: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    admin: str | None = None
    admin_token: str | None = None
    timeout_ms: int = 10_000

    @property
    def protocol(self) -> str:
        """`tubemq` or `rocketmq`."""
        return self.url.partition("://")[0].removesuffix("s")

    def secret(self) -> str | None:
        """The password, from the option or the file."""
        if self.password_file is None:
            return self.password
        return Path(self.password_file).read_text(encoding="utf-8").strip()

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
    starting_offsets: str | Offsets | None = None
    ending_offsets: str | Offsets | None = None
    starting_time: datetime | None = None
    ending_time: datetime | None = None
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    include_headers: bool = False
    group: str | None = None
    commit_offsets: bool = False


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a sink. `WRITE_TABLE` documents each field."""

    access: Access
    topic: str | None = None
    window: int = 5_000
    include_origin: bool = True


class Option(msgspec.Struct, frozen=True):
    """A row of the tables.

    Args:
        name: as users write it; case does not matter.
        field: of the options struct.
        read: converts text to the value; raises a ValueError with the reason.
        meaning: one line for the documentation.
        protocol: the only one that has it; None for both.
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


def _duration(value: str) -> int:
    match = re.fullmatch(r"([0-9]+) *(ms|s|m|h|d)", value.strip().lower())
    if match is None:
        raise ValueError(f"{value!r} is not a duration such as 500ms, 30s or 15m")
    return int(match[1]) * _UNITS_MS[match[2]]


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


def _offsets(option: str) -> Callable[[str], str | Offsets]:
    def read(value: str) -> str | Offsets:
        if value.strip().lower() in {EARLIEST, LATEST}:
            return value.strip().lower()
        return from_json(value, option)

    return read


ACCESS_TABLE: Final = (
    Option("url", "url", _url,
           "The masters, `tubemq://host:port,host:port`, or the name servers, "
           "`rocketmq://host:port,host:port`. Required."),
    Option("user", "user", _text, "The account (RocketMQ: access key)."),
    Option("password", "password", _text, "The password (RocketMQ: secret key)."),
    Option("passwordFile", "password_file", _text, "A file with it; every worker reads the file."),
    Option("tls", "tls", _boolean, "Encrypt connections (default false)."),
    Option("tlsTrust", "tls_trust", _text, "The file with trusted certificates."),
    Option("tlsCertificate", "tls_certificate", _text, "The file with the client's certificate."),
    Option("tlsKey", "tls_key", _text, "The file with its key."),
    Option("admin", "admin", _text,
           "TubeMQ only, for reading: the master's HTTP interface, `http://host:port`.", "tubemq"),
    Option("adminToken", "admin_token", _text,
           "TubeMQ only, for reading: the token of that interface, which `commitOffsets` needs "
           "if it is not the default and there are no accounts.", "tubemq"),
    Option("timeout", "timeout_ms", _duration, "Timeout of a request (default 10s)."),
)  # fmt: skip
"""Options of both reading and writing."""

READ_TABLE: Final = (
    Option("topic", "topics", _names, "The topic, or several: `a,b`. `.load('a')` does the same."),
    Option("topicsPattern", "topics_pattern", _pattern, "All topics whose whole name matches."),
    Option("startingOffsets", "starting_offsets", _offsets("startingOffsets"),
           "`earliest` (default of a batch), `latest` (default of a stream), or JSON "
           '`{"topic": {"broker:partition": n}}`; -2 is the earliest, -1 the latest.'),
    Option("endingOffsets", "ending_offsets", _offsets("endingOffsets"),
           "Batch only: `latest` (default) or JSON."),
    Option("startingTimestamp", "starting_time", _moment,
           "RocketMQ only: start with the first message that was stored at this time or later; "
           "milliseconds since 1970, or ISO 8601 with a time zone.", "rocketmq"),
    Option("endingTimestamp", "ending_time", _moment,
           "RocketMQ only, batch only: end before that message.", "rocketmq"),
    Option("failOnDataLoss", "fail_on_data_loss", _boolean,
           "Fail if messages are lost before they were read (default true)."),
    Option("minPartitions", "min_partitions", _count, "Minimum number of tasks."),
    Option("maxPartitions", "max_partitions", _count, "Maximum number of tasks."),
    Option("maxRecordsPerPartition", "max_records_per_partition", _count,
           "Maximum rows of a task; `maxPartitions` takes precedence."),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _count,
           "Maximum rows of a micro-batch, shared by partitions in proportion to their backlog."),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", _count,
           "Wait until there are this many rows."),
    Option("maxTriggerDelay", "max_trigger_delay_ms", _duration,
           "Limit of the wait for `minOffsetsPerTrigger` (default 15m)."),
    Option("includeHeaders", "include_headers", _boolean,
           "Add the column `properties` (default false: Spark reads all columns, even unused "
           "ones)."),
    Option("group", "group", _text, "The group whose offsets show the progress on the broker."),
    Option("commitOffsets", "commit_offsets", _boolean,
           "Set the offsets of `group` after each micro-batch; with TubeMQ over HTTP (default "
           "false)."),
)  # fmt: skip
"""Options of `spark.read` and `spark.readStream`."""

WRITE_TABLE: Final = (
    Option("topic", "topic", _text,
           "The topic of all rows, if they have no column `topic`. `.save('a')` does the same."),
    Option("window", "window", _count, "Messages in flight per task (default 5000)."),
    Option("includeOrigin", "include_origin", _boolean,
           "Add `spark.query`, `spark.batch`, `spark.part` and `spark.seq` to the properties "
           "(default true)."),
)  # fmt: skip
"""Options of `df.write` and `df.writeStream`."""

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
    for name in given.keys() - known.keys() - _SPARK_OPTIONS:
        close = [known[match] for match in get_close_matches(name, known, n=1)]
        meant = f"Did you mean {close[0]}?" if close else f"Options: {', '.join(known.values())}."
        raise UsageError(f"Unknown option {name!r}.", hint=meant)
    access = _read_table(given, ACCESS_TABLE)
    if "url" not in access:
        raise UsageError("Option url is missing.", hint=f"Write {protocol}://host:port.")
    if "password" in access and "password_file" in access:
        raise UsageError("Give password or passwordFile, not both.")
    if ("user" in access) != bool({"password", "password_file"} & access.keys()):
        raise UsageError("Options user and password (or passwordFile) go together.")
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
    """Converts the option `path`, of `.load("flights")` and `.save("flights")`, to the topic."""
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
    read = _parsed(ReadOptions, _with_path(options), READ_TABLE, protocol)
    if bool(read.topics) == (read.topics_pattern is not None):
        raise UsageError("Give either topic or topicsPattern.")
    if read.starting_offsets is not None and read.starting_time is not None:
        raise UsageError("Give startingOffsets or startingTimestamp, not both.")
    if read.ending_offsets is not None and read.ending_time is not None:
        raise UsageError("Give endingOffsets or endingTimestamp, not both.")
    if read.ending_offsets == EARLIEST:
        raise UsageError("Option endingOffsets cannot be earliest.", hint="Give latest or JSON.")
    if read.commit_offsets != (read.group is not None):
        raise UsageError("Options group and commitOffsets go together.")
    limit = read.max_offsets_per_trigger
    if limit is not None and read.min_offsets_per_trigger > limit:
        raise UsageError("minOffsetsPerTrigger is larger than maxOffsetsPerTrigger.")
    if read.max_partitions is not None and read.min_partitions > read.max_partitions:
        raise UsageError("minPartitions is larger than maxPartitions.")
    return read


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
    if write.access.admin is not None:
        raise UsageError("Option admin is for reading only.")
    return write
