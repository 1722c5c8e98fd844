"""Sends the rows of a task: groups them by topic and place, and encodes them as batches.

Rows become batches without an object per row (`coherer._record.packing`); a row that is too large
for one is alone, in its turn. Rows with a delay are sent one by one, as `Message`s.

A batch is stored as a whole or not at all. If it fails:

* A busy broker refused it, or the connection broke: it is sent again after a pause. The second case
  may store rows twice; delivery is at least once.
* The broker refused its contents: its halves are sent, until a single row is refused. That error
  names the row.
* Otherwise the task fails, and Spark runs it again.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coherer._client.rocketmq.producing.queue_selection import hash_of
from coherer._record.batches import PackedMessages
from coherer._record.ids import UniqueIdGenerator
from coherer._record.packing import (
    Origin,
    PackingRules,
    RowColumns,
    UnpackableRowError,
    pack,
    property_texts,
)
from coherer._record.properties import MILLISECOND_CHARS, MINUTE_CHARS
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import HIDDEN, encode_message
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.payload import encode_attributes
from coherer.errors import (
    CohererError,
    ConnectError,
    DisconnectedError,
    RefusedError,
    UsageError,
)
from coherer.limits import PROPERTIES_BYTES_MAX
from coherer.spark.options import WriteOptions, duration_ms
from coherer.spark.rows import Place, SingleRow, messages, no_keys, row_columns

BATCH_BYTES: Final = 1024 * 1024
"""The largest batch: large enough to make the cost of a request negligible, small enough for nearly
all brokers with a limit of 1 MiB."""

PAUSES_S: Final = (0.1, 0.2, 0.5, 1, 2, 5)
"""Pauses before rows are sent again; then the task fails."""

RULES: Final = {
    "tubemq": PackingRules(
        ids=False,
        bad_text=r"[,=\x01\x02]|\$msgType\$|\$msgTime\$",
        reserved=HIDDEN,
        time_chars=MINUTE_CHARS,
    ),
    "rocketmq": PackingRules(
        ids=True, bad_text=r"[\x01\x02]", reserved=HIDDEN, time_chars=MILLISECOND_CHARS
    ),
}
"""The rules of each protocol."""

_FIRST_TIME, _LAST_TIME = (
    pa.scalar(edge.replace(tzinfo=UTC), pa.timestamp("us", "UTC"))
    for edge in (datetime.min, datetime.max)  # noqa: DTZ901 - their zone is set above
)
_SEPARATORS: Final = re.compile("[\x01\x02]")

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_DIVISIBLE: Final = frozenset(
    (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR, ResultCode.BAD_REQUEST)
)
"""Codes of both protocols for batches that are too large or malformed."""


class _Rows(NamedTuple):
    """Rows of one topic for one place."""

    rows: pa.RecordBatch
    numbers: pa.Array
    topic: str
    place: Place | None

    def only(self, mask: pa.Array) -> _Rows:
        """The marked rows."""
        return self._replace(rows=self.rows.filter(mask), numbers=self.numbers.filter(mask))


class RowQueue(Protocol):
    """Where the rows of a task go."""

    def places(self, topic: str) -> Sequence[Place]:
        """See `Queue`."""
        ...

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[object | CohererError]:
        """Sends batches; returns the error of each that is not stored, or something else."""
        ...


class DelayingQueue(RowQueue, Protocol):
    """A `RowQueue` whose brokers delay messages: RocketMQ's, without transactions."""

    def send_singles(
        self, rows: Sequence[SingleRow], window: int
    ) -> Sequence[tuple[SingleRow, CohererError]]:
        """Send rows one by one and wait for all receipts; returns the rows that failed."""
        ...


class RowSender:
    """Sends the rows of one task, with the properties of their origin."""

    def __init__(self, queue: RowQueue, options: WriteOptions, origin: Origin) -> None:
        self._queue = queue
        self._options = options
        self._origin = origin
        self._rules = RULES[options.access.protocol]
        self._ids = UniqueIdGenerator(b"\x7f\0\0\1", loader=secrets.randbits(32))
        self._places: dict[str, Sequence[Place]] = {}
        self._sent = 0

    def send(self, batch: pa.RecordBatch) -> int:
        """Send rows and wait for all receipts; returns their number.

        Raises:
            UsageError: a row cannot be sent; the error names it.
            CohererError: rows may not be stored.
        """
        rows = row_columns(batch, headers=self._options.include_headers, first=self._sent)
        self._check_values(rows)
        self._check_times(rows)
        packs: list[PackedMessages] = []
        singles: list[SingleRow] = []
        for group in self._groups(rows):
            self._encode(group, packs, singles)
        self._send_packs(packs)
        if singles:
            self._send_singles(singles)
        count = batch.num_rows
        self._sent += count
        return count

    # -- grouping

    def _check_values(self, rows: pa.RecordBatch) -> None:
        sizes = pc.fill_null(pc.binary_length(rows.column("value")), 0)
        index = cast("int", pc.index(sizes, pa.scalar(0, sizes.type)).as_py())
        if index >= 0:
            raise UsageError(
                f"Row {self._sent + index} of the task has no value.",
                hint="Neither protocol has messages without a body, so there are no tombstones. "
                "Filter such rows out, or send a body that means deletion, for example with a tag.",
            )

    def _check_times(self, rows: pa.RecordBatch) -> None:
        if "timestamp" not in rows.schema.names:
            return
        times = rows.column("timestamp").cast(_FIRST_TIME.type)
        wrong = pc.less(times, _FIRST_TIME), pc.greater(times, _LAST_TIME)
        found = [cast("int", pc.index(marks, pa.scalar(True)).as_py()) for marks in wrong]
        if found != [-1, -1]:
            index = min(one for one in found if one >= 0)
            raise UsageError(
                f"Row {self._sent + index} of the task has a timestamp before the year 1 or after "
                "9999.",
                hint="Neither protocol has such times. Set them to null, or send them in the body.",
            )

    def _groups(self, rows: pa.RecordBatch) -> Iterator[_Rows]:
        """The rows by topic and place, in order."""
        count = rows.num_rows
        numbers = pa.array(np.arange(self._sent, self._sent + count, dtype=np.int64))
        for topic, chosen in self._by_topic(rows):
            group = _Rows(rows, numbers, topic, None)
            yield from self._by_place(group if chosen is None else group.only(chosen))

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array | None]]:
        if self._options.topic is not None:
            yield self._options.topic, None
            return
        topics = rows.column("topic")
        if topics.null_count:
            index = cast("int", pc.index(pc.is_null(topics), pa.scalar(True)).as_py())
            raise UsageError(
                f"Row {self._sent + index} of the task has no topic.",
                hint="Give option topic, or fill the column.",
            )
        distinct = cast("list[str]", pc.unique(topics).to_pylist())
        for topic in distinct:
            yield topic, None if len(distinct) == 1 else pc.equal(topics, topic)

    def _by_place(self, group: _Rows) -> Iterator[_Rows]:
        """The rows of a topic by place; None for rows that may go to any."""
        place_of: Callable[[str, str], Place]
        if "partition" in group.rows.schema.names:
            texts, place_of = _partition_texts(group.rows), self._named_place
        elif self._options.order_by_key:
            texts, place_of = _key_texts(group.rows.column("key")), self._place_of_key
        else:
            yield group
            return
        # Python sees each different text once, whatever the number of rows.
        encoded = texts.dictionary_encode()
        known = cast("list[str]", encoded.dictionary.to_pylist())
        places = [place_of(group.topic, text) for text in known]
        distinct = [None, *dict.fromkeys(places)]
        codes = pa.array([distinct.index(place) for place in places], pa.int32())
        chosen = pc.fill_null(codes.take(encoded.indices), 0)
        for code, place in enumerate(distinct):
            some = group.only(pc.equal(chosen, code))
            if some.rows.num_rows:
                yield some._replace(place=place)

    def _named_place(self, topic: str, text: str) -> Place:
        broker, _, number = text.rpartition(":")
        return self._place(topic, broker or None, int(number))

    def _place_of_key(self, topic: str, key: str) -> Place:
        places = self._topic_places(topic)
        return places[hash_of(key) % len(places)]

    def _place(self, topic: str, broker: str | None, number: int) -> Place:
        places = self._topic_places(topic)
        if broker is not None:
            if (broker, number) in places:
                return broker, number
        elif 0 <= number < len(places):
            return places[number]
        have = ", ".join(f"{name}:{one}" for name, one in places)
        raise UsageError(
            f"Column partition is {number if broker is None else f'{broker}:{number}'}, "
            "which the topic does not have.",
            topic=topic,
            hint=f"It has {have}. Without a column broker, partition counts these from 0. "
            '.drop("partition") leaves the choice to Coherer.',
        )

    def _topic_places(self, topic: str) -> Sequence[Place]:
        if topic not in self._places:
            self._places[topic] = self._queue.places(topic)
        return self._places[topic]

    # -- encoding

    def _encode(self, group: _Rows, packs: list[PackedMessages], singles: list[SingleRow]) -> None:
        rows, numbers = group.rows, group.numbers
        if self._delayed(rows):
            delays = self._delays(group)
            wait = pa.array([any(delay) for delay in delays], pa.bool_())
            for index, delay in enumerate(delays):
                if any(delay):
                    singles.append(self._single(group, index, *delay))
            group = group.only(pc.invert(wait))
            rows, numbers = group.rows, group.numbers
        if not rows.num_rows:
            return
        columns = _packable(rows, numbers)
        if columns.keys is not None and not self._rules.ids:
            raise no_keys()
        ids = self._ids.take(rows.num_rows) if self._rules.ids else ()
        try:
            texts = property_texts(columns, self._origin, self._rules, ids)
        except UnpackableRowError as error:
            raise self._unpackable(group, error.index) from error
        batches = pack(group.topic, columns, texts, BATCH_BYTES)
        if group.place is not None:
            broker, partition = group.place
            batches = [
                msgspec.structs.replace(one, broker=broker, partition=partition) for one in batches
            ]
        packs += batches

    def _delayed(self, rows: pa.RecordBatch) -> bool:
        if self._options.delay_ms:
            return True
        names = rows.schema.names
        return "delay" in names and rows.column("delay").null_count < rows.num_rows

    def _delays(self, group: _Rows) -> list[tuple[int, timedelta | None]]:
        """Level and delay of each row."""
        given: Sequence[object] = [None] * group.rows.num_rows
        if "delay" in group.rows.schema.names:
            given = group.rows.column("delay").to_pylist()
        usual = timedelta(milliseconds=self._options.delay_ms or 0) or None
        found: list[tuple[int, timedelta | None]] = []
        for index, one in enumerate(given):
            try:
                found.append((0, usual) if one is None else _delay(one))
            except UsageError as error:
                where = f"Row {cast('int', group.numbers[index].as_py())} of the task"
                raise UsageError(f"{where}: {error.text}", topic=group.topic) from error
        return found

    def _single(self, group: _Rows, index: int, level: int, delay: timedelta | None) -> SingleRow:
        number = cast("int", group.numbers[index].as_py())
        keys = self._rules.ids
        row = group.rows.slice(index, 1)
        (message,) = messages(row, group.topic, self._origin, number, keys=keys)
        return SingleRow(number, message, group.place, level, delay)

    def _unpackable(self, group: _Rows, index: int) -> UsageError:
        """The error of a row that cannot be encoded, found by encoding it as a single message."""
        where = f"Row {cast('int', group.numbers[index].as_py())} of the task"
        try:
            message = self._single(group, index, 0, None).message
            if self._rules.ids:
                encode_message(message)
            else:
                encode_attributes(message.tag, message.time, message.properties)
        except UsageError as error:
            return UsageError(f"{where}: {error.text}", topic=group.topic, hint=error.hint)
        names = sorted(self._rules.reserved & set(message.properties))
        texts = [message.tag or "", *message.properties, *message.properties.values()]
        if names:
            reason = f"properties named {', '.join(names)} are reserved"
        elif any(map(_SEPARATORS.search, texts)):
            reason = "its tag or a property contains U+0001 or U+0002, which separate properties"
        else:
            reason = f"its properties have more than {PROPERTIES_BYTES_MAX} bytes"
        return UsageError(f"{where} cannot be encoded: {reason}.", topic=group.topic)

    # -- sending

    def _send_packs(self, packs: Sequence[PackedMessages]) -> None:
        pauses = iter(PAUSES_S)
        while packs:
            again: list[PackedMessages] = []
            handled: list[CohererError] = []
            outcomes = self._queue.send_packed(packs, self._options.window)
            wait: CohererError | None = None
            for one, outcome in zip(packs, outcomes, strict=True):
                if not isinstance(outcome, CohererError):
                    continue
                if any(outcome is error for error in handled):  # it was not sent
                    again.append(one)
                    continue
                handled.append(outcome)
                if _is_temporary(outcome):
                    again.append(one)
                    wait = outcome
                elif one.count > 1 and _is_divisible(outcome):
                    again += one.halves()
                else:
                    raise _about(outcome, one.rows)
            if wait is not None:
                _pause(pauses, wait)
            packs = again

    def _send_singles(self, singles: Sequence[SingleRow]) -> None:
        # The columns and options of the other queues have no delay.
        queue = cast("DelayingQueue", self._queue)
        pauses = iter(PAUSES_S)
        while singles:
            failed = queue.send_singles(singles, self._options.window)
            for single, error in failed:
                if not _is_temporary(error):
                    raise _about(error, [single.number])
            if failed:
                _pause(pauses, failed[0][1])
            singles = [single for single, _ in failed]


def _packable(rows: pa.RecordBatch, numbers: pa.Array) -> RowColumns:
    names = rows.schema.names

    def column(name: str) -> pa.Array | None:
        if name not in names or rows.column(name).null_count == rows.num_rows:
            return None
        return rows.column(name)

    keys = column("key")
    if keys is not None and keys.type == pa.string():
        keys = _as_lists(keys)
    tags, times, properties = map(column, ("tag", "timestamp", "properties"))
    return RowColumns(rows.column("value"), tags, keys, times, properties, numbers)


def _as_lists(keys: pa.Array) -> pa.Array:
    """One key per row as lists of at most one."""
    ends = pc.cumulative_sum(pc.is_valid(keys).cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, keys.filter(pc.is_valid(keys)))


def _partition_texts(rows: pa.RecordBatch) -> pa.Array:
    """`broker:partition` of each row, without a broker `:partition`; null without a partition."""
    numbers = rows.column("partition").cast(pa.string())
    named = "broker" in rows.schema.names
    brokers = pc.fill_null(rows.column("broker"), "") if named else pa.scalar("")
    return pc.binary_join_element_wise(brokers, numbers, pa.scalar(":"))


def _key_texts(keys: pa.Array) -> pa.Array:
    """The keys of each row, joined by a space; null for a row without keys."""
    texts = keys if keys.type == pa.string() else pc.binary_join(keys, " ")
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)


def _delay(given: object) -> tuple[int, timedelta | None]:
    """A level and a delay; `given` is an interval, a text such as `10s`, or a level."""
    if isinstance(given, int):
        if not given >= 0:
            raise UsageError(f"Column delay is {given}: a delay level is 1 or more.")
        return given, None
    if isinstance(given, timedelta):
        if given < timedelta(0):
            raise UsageError(f"Column delay is {given}: it is negative.")
        return 0, given or None
    try:
        return 0, timedelta(milliseconds=duration_ms(cast("str", given))) or None
    except ValueError as error:
        raise UsageError(f"Column delay: {error}.") from error


def _is_temporary(error: CohererError) -> bool:
    lost = isinstance(error, DisconnectedError | ConnectError)
    return lost or (isinstance(error, RefusedError) and error.code == _BUSY)


def _is_divisible(error: CohererError) -> bool:
    return isinstance(error, RefusedError) and error.code in _DIVISIBLE


def _pause(pauses: Iterator[float], error: CohererError) -> None:
    pause_s = next(pauses, None)
    if pause_s is None:
        raise error
    time.sleep(pause_s)


def _about(error: CohererError, rows: Sequence[int]) -> CohererError:
    """The error with the numbers of its rows."""
    if not rows:
        return error
    which = f"Row {rows[0]}" if len(rows) == 1 else f"Rows {rows[0]} to {rows[-1]}"
    return type(error)(
        f"{which} of the task: {error.text}",
        server=error.server,
        topic=error.topic,
        partition=error.partition,
        code=error.code,
        hint=error.hint,
    )
