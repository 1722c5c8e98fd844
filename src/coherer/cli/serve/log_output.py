"""The log of `coherer serve`: text for people or JSON for programs, on stderr or in a file.

A JSON line has `time` (UTC), `level`, `logger`, `event` and `message`. The event is the message
without its arguments, so that lines about the same event can be counted. The fields that a log call
names (`topic`, `group`, `peer`) follow, and `error` with the traceback of an exception.

A message can contain what a peer has sent: names, remarks, errors. In text its control characters
are written as escapes, so that no peer can write a line of its own, or send commands to a terminal.
The lines of a traceback are indented.

With `coherer serve --brokers`, each line names the `broker` that has written it: the brokers write
to their standard error, which the supervisor copies to its own output.
"""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Final, TextIO, TypeAlias

import msgspec

from coherer._common.logs import EVENT, FIELDS
from coherer.cli.serve.node_config import LogOptions
from coherer.errors import UsageError

BROKER: Final = "broker"
"""The field with the id of a broker, and the attribute of records about one."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TEXT_OF_BROKER: Final = "%(asctime)s %(levelname)s broker {} %(name)s: %(message)s"


_Handler: TypeAlias = "logging.StreamHandler[TextIO] | logging.FileHandler"


class TextFormatter(logging.Formatter):
    r"""Formats a record as one line of text, and the lines of a traceback.

    >>> record = logging.makeLogRecord({"msg": "%s left", "args": ("b\nERROR all is lost",)})
    >>> print(TextFormatter("%(message)s").format(record))
    b\nERROR all is lost left
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        # A copy: other handlers get the record, too, which keeps the traceback as one formats it.
        own = logging.makeLogRecord({**record.__dict__, "exc_text": None})
        return super().format(own)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's
        """Format a record without its traceback."""
        record.message = _CONTROL.sub(_escape, record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's
        """Format a traceback; its lines are indented, as no other line of the log is."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {_CONTROL.sub(_escape, line)}" for line in lines)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Args:
        broker: the id of this broker, if several write to one log.

    >>> record = logging.makeLogRecord(
    ...     {"name": "x", "msg": "%s left", "args": ("b",), "levelname": "INFO", "created": 0}
    ... )
    >>> JsonFormatter().format(record)[:62]
    '{"time":"1970-01-01T00:00:00Z","level":"info","logger":"x","ev'
    """

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, without a line end."""
        event: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": str(getattr(record, EVENT, record.msg)),
            "message": record.getMessage(),
        }
        broker = getattr(record, BROKER, self._broker)
        if broker is not None:
            event[BROKER] = broker
        event |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event, enc_hook=str).decode()


class LogOutput:
    """Writes the log; `change` applies new options and reopens the file.

    Args:
        options: the options of the log.
        broker: the id of this broker if the supervisor copies its log: the lines contain the id,
            and always go to the standard error.
    """

    def __init__(self, options: LogOptions, broker: int | None = None) -> None:
        self.options = options
        self._broker = broker
        self._handler: _Handler | None = None
        self._levels: list[str] = []
        self._level_before = logging.getLogger().level
        self.change(options)

    def change(self, options: LogOptions) -> None:
        """Apply new options.

        Raises:
            UsageError: the file cannot be opened; the previous options stay in effect.
        """
        handler = _handler(options if self._broker is None else LogOptions())
        text = _TEXT if self._broker is None else _TEXT_OF_BROKER.format(self._broker)
        handler.setFormatter(
            JsonFormatter(self._broker) if options.format == "json" else TextFormatter(text)
        )
        root = logging.getLogger()
        root.addHandler(handler)
        self._remove_handler()
        self._handler, self.options = handler, options
        root.setLevel(options.level.upper())
        for package in self._levels:
            logging.getLogger(package).setLevel(logging.NOTSET)
        for package, level in options.levels.items():
            logging.getLogger(package).setLevel(level.upper())
        self._levels = list(options.levels)

    def copy(self, line: str, broker: int) -> None:
        """Write a line that a broker has written.

        With JSON, a line that is not JSON, such as one of a traceback, becomes an event. A line
        that cannot be written, because the disk is full or nobody reads a pipe, is lost.
        """
        handler = self._handler
        if handler is None:
            return
        given = {"name": __name__, "levelno": logging.ERROR, "levelname": "ERROR"}
        record = logging.makeLogRecord({**given, "msg": line, BROKER: broker})
        if self.options.format == "json" and not line.startswith("{"):
            handler.handle(record)
            return
        with handler.lock or nullcontext():
            if handler.stream is None:  # a file that is not open yet
                return
            try:
                handler.stream.write(line + handler.terminator)
                handler.flush()
            except (OSError, ValueError):  # as with the lines of this process
                handler.handleError(record)

    def close(self) -> None:
        """Stop writing, and restore the levels."""
        self._remove_handler()
        logging.getLogger().setLevel(self._level_before)
        for package in self._levels:
            logging.getLogger(package).setLevel(logging.NOTSET)

    def _remove_handler(self) -> None:
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            with suppress(OSError):  # the disk is full: its last lines are lost
                self._handler.close()
            self._handler = None


def _handler(options: LogOptions) -> _Handler:
    if options.file is None:
        return logging.StreamHandler()
    try:
        return logging.FileHandler(options.file, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write the log to {options.file}: {error.strerror}.") from error
