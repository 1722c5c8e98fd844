"""Logging without floods: repeated lines appear once a minute, with a count.

A peer that misbehaves, or a full disk, can cause the same log call thousands of times a second.
`Log` writes the first of these lines at once and counts the others. After a minute the next line is
written with the number of suppressed ones. If no further line comes, `flush` (which a node calls)
writes the first one again with that number.

Lines are the same if they come from the same call and have the same subject. The subject is the
argument `about`: the address of a server, the name of a topic, or a constant if all lines of the
call mean the same. By default it is the text of the line. Peers can invent subjects, so a call has
at most 100 of them a minute; lines with further subjects are counted together.

A call may name the `topic`, the `group` and the `peer` that a line is about. The text names them,
too; a log in JSON also has them as separate fields.

A module that logs has `_log = Log(logging.getLogger(__name__))`. Lines that cannot repeat, such as
those of a start, go to `_log.plain`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeAlias, TypedDict, Unpack

PERIOD_S: Final = 60.0
"""The time in which a line is not repeated."""

SUBJECTS_MAX: Final = 100
"""The number of subjects of one log call in this time that have their own lines."""

Subject: TypeAlias = "Hashable | type | None"
"""The subject of a line; None for its text."""

_TEXT_CHARS_MAX = 2_000


class Fields(TypedDict, total=False):
    """What a line may be about; attributes of its `logging.LogRecord`."""

    topic: str
    group: str
    peer: str


FIELDS: Final = tuple(Fields.__annotations__)

EVENT: Final = "event"
"""The attribute of a `logging.LogRecord` that holds the text without its arguments. The
`msg` of the record differs from it when a count of suppressed lines follows the text."""


class _Line:
    """A line that was written, and how often it was suppressed since."""

    __slots__ = ("begun_s", "level", "logger", "suppressed", "text")

    def __init__(self, logger: logging.Logger, level: int, text: str, begun_s: float) -> None:
        self.logger = logger
        self.level = level
        self.text = text
        self.begun_s = begun_s
        self.suppressed = 0


class LogThrottle:
    """Counts the lines of the `Log` objects that share it. For any thread.

    Args:
        now_s: a monotonic clock, in seconds.
        period_s: the time in which a line is not repeated.
        subjects_max: the number of subjects of one call in this time that have their own lines.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
        subjects_max: int = SUBJECTS_MAX,
    ) -> None:
        self._now_s = now_s
        self._period_s = period_s
        self._subjects_max = subjects_max
        self._calls: dict[tuple[str, str], dict[Hashable, _Line]] = {}
        self._flush_s = 0.0
        self._guard = threading.Lock()

    def admit(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        args: tuple[object, ...],
        about: Subject,
    ) -> str | None:
        """Count a line.

        Returns:
            None to suppress the line; otherwise a text to append to it, mostly empty.
        """
        now_s = self._now_s()
        if now_s >= self._flush_s:
            self.flush()
        if about is None:
            about = _rendered(text, args)
        with self._guard:
            lines = self._calls.setdefault((logger.name, text), {})
            line = lines.get(about)
            if line is None and len(lines) >= self._subjects_max:
                line = lines.get(_OTHERS)
                about = _OTHERS
            if line is None:
                lines[about] = _Line(logger, level, _rendered(text, args), now_s)
                return ""
            if now_s - line.begun_s < self._period_s:
                line.suppressed += 1
                return None
            suffix = _count(line.suppressed, now_s - line.begun_s)
            line.begun_s, line.suppressed = now_s, 0
            line.level, line.text = level, _rendered(text, args)
            return suffix

    def flush(self) -> None:
        """Write the counts of lines that did not come again after their minute."""
        now_s = self._now_s()
        due: list[tuple[_Line, str, str]] = []
        with self._guard:
            self._flush_s = now_s + self._period_s / 10
            for call, lines in list(self._calls.items()):
                for about, line in list(lines.items()):
                    if now_s - line.begun_s < self._period_s:
                        continue
                    if line.suppressed:
                        count = _count(line.suppressed, now_s - line.begun_s)
                        due.append((line, call[1], count))
                        line.begun_s, line.suppressed = now_s, 0
                    else:
                        del lines[about]
                if not lines:
                    del self._calls[call]
        for line, event, suffix in due:
            line.logger.log(line.level, "%s%s", line.text, suffix, extra={EVENT: event})

    def forget(self, period_s: float = PERIOD_S) -> None:
        """Forget all lines, so that the next of each is written. For tests.

        Args:
            period_s: the time in which a line is not repeated from now on; 0 writes every line.
        """
        with self._guard:
            self._calls.clear()
            self._period_s = period_s
            self._flush_s = 0.0


LOG_THROTTLE: Final = LogThrottle()
"""Shared by all logs of this process."""

_OTHERS: Final = object()


class Log:
    """A logger that suppresses repeated lines.

    Args:
        throttle: counts the lines.

    Attributes:
        plain: the logger itself, for lines that must always appear.

    >>> import sys
    >>> logger = logging.getLogger("an example")
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> logger.addHandler(handler)
    >>> times_s = [0]
    >>> log = Log(logger, LogThrottle(now_s=lambda: times_s[-1]))
    >>> for number in range(4):
    ...     log.warning("%s does not answer, attempt %d", "10.0.0.9", number, about="10.0.0.9")
    ...     times_s.append(times_s[-1] + 25)
    10.0.0.9 does not answer, attempt 0
    10.0.0.9 does not answer, attempt 0 (2 more in the last 75 s)
    >>> logger.removeHandler(handler)
    """

    def __init__(self, plain: logging.Logger, throttle: LogThrottle = LOG_THROTTLE) -> None:
        self.plain = plain
        self._throttle = throttle

    def debug(
        self, text: str, *args: object, about: Subject = None, **fields: Unpack[Fields]
    ) -> None:
        """Log at DEBUG; see `log`."""
        self.log(logging.DEBUG, text, *args, about=about, frames_up=1, **fields)

    def info(
        self, text: str, *args: object, about: Subject = None, **fields: Unpack[Fields]
    ) -> None:
        """Log at INFO; see `log`."""
        self.log(logging.INFO, text, *args, about=about, frames_up=1, **fields)

    def warning(
        self, text: str, *args: object, about: Subject = None, **fields: Unpack[Fields]
    ) -> None:
        """Log at WARNING; see `log`."""
        self.log(logging.WARNING, text, *args, about=about, frames_up=1, **fields)

    def error(
        self,
        text: str,
        *args: object,
        about: Subject = None,
        exc_info: BaseException | None = None,
        **fields: Unpack[Fields],
    ) -> None:
        """Log at ERROR; see `log`."""
        self.log(logging.ERROR, text, *args, about=about, exc_info=exc_info, frames_up=1, **fields)

    def exception(
        self, text: str, *args: object, about: Subject = None, **fields: Unpack[Fields]
    ) -> None:
        """Log at ERROR with the current exception; see `log`."""
        self.log(logging.ERROR, text, *args, about=about, exc_info=True, frames_up=1, **fields)

    def log(
        self,
        level: int,
        text: str,
        *args: object,
        about: Subject = None,
        exc_info: BaseException | bool | None = None,
        frames_up: int = 0,
        **fields: Unpack[Fields],
    ) -> None:
        """Log a line, or count it if the same line was written less than a minute ago.

        Args:
            level: as in `logging`.
            text: as in `logging`; lines with the same `text` and `about` are the same.
            args: the arguments of `text`.
            about: the subject of the line; None for its whole text.
            exc_info: the exception to show, or whether to show the current one.
            frames_up: how many frames above the caller to report as the origin of the line.
            fields: what the line is about, for logs in JSON.
        """
        if not self.plain.isEnabledFor(level):
            return
        suffix = self._throttle.admit(self.plain, level, text, args, about)
        if suffix is None:
            return
        up = frames_up + 2
        extra: dict[str, object] = {**fields, EVENT: text}
        if suffix:
            line = _rendered(text, args)
            text, args = "%s%s", (line, suffix)
        self.plain.log(level, text, *args, exc_info=exc_info, stacklevel=up, extra=extra)


def _rendered(text: str, args: tuple[object, ...]) -> str:
    return (text % args if args else text)[:_TEXT_CHARS_MAX]


def _count(suppressed: int, seconds: float) -> str:
    return f" ({suppressed} more in the last {seconds:.0f} s)" if suppressed else ""
