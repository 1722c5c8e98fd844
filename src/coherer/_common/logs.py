"""Log lines that repeat themselves appear once a minute, with a count.

A peer that misbehaves, or a disk that is full, can cause the same log call thousands of times a
second. `Log` writes the first of these lines at once and counts the others. After a minute the next
one is written with the count of those that were left out; where no further one comes, `flush` (a
node calls it) writes the first one again with that count.

Lines are the same when they come from the same call and are about the same subject. The subject is
`about` where the call names one: the address of a server, the name of a topic, or a constant where
every line of this call means the same. Otherwise it is the text of the line. Subjects can be
invented by peers, so a call has at most 100 of them a minute; what comes beyond them is counted
together.

The module that logs has `_log = Log(logging.getLogger(__name__))`. What cannot repeat itself, such
as the lines of a start, goes to `_log.plain`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeAlias

PERIOD_S: Final = 60.0
"""How long a line is not repeated."""

SUBJECTS_MAX: Final = 100
"""Subjects of one log call in this time that have lines of their own."""

Subject: TypeAlias = "Hashable | type | None"
"""What a line is about; None for its text."""

_TEXT_CHARS_MAX = 2_000


class _Line:
    """One line that was written, and how often it has come since."""

    __slots__ = ("begun_s", "left_out", "level", "logger", "text")

    def __init__(self, logger: logging.Logger, level: int, text: str, begun_s: float) -> None:
        self.logger = logger
        self.level = level
        self.text = text
        self.begun_s = begun_s
        self.left_out = 0


class LogThrottle:
    """Counts the lines of all `Log` objects that it is given to. For any thread.

    Args:
        now_s: a clock that does not go back, seconds.
        period_s: how long a line is not repeated.
        subjects_max: subjects of one call in this time that have lines of their own.
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

    def take(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        args: tuple[object, ...],
        about: Subject,
    ) -> str | None:
        """Book a line.

        Returns:
            None where it is only counted; otherwise what to write behind it, "" mostly.
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
                line.left_out += 1
                return None
            behind = _count(line.left_out, now_s - line.begun_s)
            line.begun_s, line.left_out = now_s, 0
            line.level, line.text = level, _rendered(text, args)
            return behind

    def flush(self) -> None:
        """Write the counts of lines that have not come again since their minute was over."""
        now_s = self._now_s()
        due: list[tuple[_Line, str]] = []
        with self._guard:
            self._flush_s = now_s + self._period_s / 10
            for call, lines in list(self._calls.items()):
                for about, line in list(lines.items()):
                    if now_s - line.begun_s < self._period_s:
                        continue
                    if line.left_out:
                        due.append((line, _count(line.left_out, now_s - line.begun_s)))
                        line.begun_s, line.left_out = now_s, 0
                    else:
                        del lines[about]
                if not lines:
                    del self._calls[call]
        for line, behind in due:
            line.logger.log(line.level, "%s%s", line.text, behind)

    def forget(self) -> None:
        """Forget all lines: the next of each is written. For tests."""
        with self._guard:
            self._calls.clear()


LOG_THROTTLE: Final = LogThrottle()
"""What all logs of this process share."""

_OTHERS: Final = object()


class Log:
    """A logger whose lines do not repeat themselves.

    Args:
        plain: the logger.
        repeats: counts the lines.

    Attributes:
        plain: the logger itself, for what must appear each time.

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

    def __init__(self, plain: logging.Logger, repeats: LogThrottle = LOG_THROTTLE) -> None:
        self.plain = plain
        self._repeats = repeats

    def debug(self, text: str, *args: object, about: Subject = None) -> None:
        """Log at DEBUG; see `log`."""
        self.log(logging.DEBUG, text, *args, about=about, frames_up=1)

    def info(self, text: str, *args: object, about: Subject = None) -> None:
        """Log at INFO; see `log`."""
        self.log(logging.INFO, text, *args, about=about, frames_up=1)

    def warning(self, text: str, *args: object, about: Subject = None) -> None:
        """Log at WARNING; see `log`."""
        self.log(logging.WARNING, text, *args, about=about, frames_up=1)

    def error(
        self,
        text: str,
        *args: object,
        about: Subject = None,
        exc_info: BaseException | None = None,
    ) -> None:
        """Log at ERROR; see `log`."""
        self.log(logging.ERROR, text, *args, about=about, exc_info=exc_info, frames_up=1)

    def exception(self, text: str, *args: object, about: Subject = None) -> None:
        """Log at ERROR with the exception that is being handled; see `log`."""
        self.log(logging.ERROR, text, *args, about=about, exc_info=True, frames_up=1)

    def log(
        self,
        level: int,
        text: str,
        *args: object,
        about: Subject = None,
        exc_info: BaseException | bool | None = None,
        frames_up: int = 0,
    ) -> None:
        """Log a line, or count it where the same one was written less than a minute ago.

        Args:
            level: as of `logging`.
            text: as of `logging`; with `about` it says which lines are the same.
            args: what is put into `text`.
            about: the subject of the line; None for its whole text.
            exc_info: the exception to show, or whether to show the one that is being handled.
            frames_up: how many frames above the caller the line comes from.
        """
        if not self.plain.isEnabledFor(level):
            return
        behind = self._repeats.take(self.plain, level, text, args, about)
        if behind is None:
            return
        up = frames_up + 2
        if behind:
            line = _rendered(text, args)
            self.plain.log(level, "%s%s", line, behind, exc_info=exc_info, stacklevel=up)
        else:
            self.plain.log(level, text, *args, exc_info=exc_info, stacklevel=up)


def _rendered(text: str, args: tuple[object, ...]) -> str:
    return (text % args if args else text)[:_TEXT_CHARS_MAX]


def _count(left_out: int, seconds: float) -> str:
    return f" ({left_out} more in the last {seconds:.0f} s)" if left_out else ""
