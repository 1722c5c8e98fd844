"""Sends the lines of a file as messages, again and again: all at once, or at a steady rate."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import coherer
from coherer.blocking import connect

STEP_S = 0.01


def send(
    url: str, topic: str, lines: list[bytes], count: int, rate: int, *, numbered: bool
) -> None:
    """Sends `count` messages, each with its number if `numbered`; at `rate` per second if not 0."""
    with connect(url) as client, client.producer(topic) as producer:
        bodies = enumerate(itertools.cycle(lines))
        for size in [count] if not rate else steps(count, rate):
            some = itertools.islice(bodies, size)
            producer.send_many(
                coherer.Message(topic, body, properties={"number": str(number)} if numbered else {})
                for number, body in some
            ).check()


def steps(count: int, rate: int) -> Iterator[int]:
    """Numbers of messages to send now, until it is `count`."""
    begin, sent = time.monotonic(), 0
    while sent < count:
        due = min(int((time.monotonic() - begin) * rate), count)
        if due > sent:
            yield due - sent
            sent = due
        time.sleep(STEP_S)


if __name__ == "__main__":
    url, topic, file, count, rate, *numbered = sys.argv[1:]
    lines = Path(file).read_bytes().splitlines()
    send(url, topic, lines, int(count), int(rate), numbered=bool(numbered))
