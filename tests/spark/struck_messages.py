"""Numbered messages of mixed sizes and tags, sent until enough are acknowledged.

    python -m tests.spark.struck_messages URL TOPIC COUNT FILE RATE

Each send has a number of its own: a message whose receipt is lost may be stored or not, and is not
sent again. Ends when COUNT are acknowledged, with a byte for each number in FILE: 1 if it is.
Prints how many are acknowledged, once a second or so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from coherer import Message
from coherer.blocking.tubemq import connect
from coherer.errors import CohererError

DIGITS = 9
TAGS = (None, "gold", "silver", "lead")
FILLER = bytes(range(256)) * 800
CHUNK = 4_000
WINDOW = 2_000


def size_of(number: int) -> int:
    """Mostly tens of bytes; one of a thousand 20 kB, one of ten thousand 200 KB."""
    mixed = number * 2_654_435_761 % 2**32
    if number % 10_000 == 9_999:
        return 200_000
    if number % 1_000 == 499:
        return 20_000
    return DIGITS + 1 + (mixed % 1_500 if number % 10 == 3 else mixed % 70)


def tag_of(number: int) -> str | None:
    return TAGS[number * 7 % 11 % len(TAGS)]


def message(topic: str, number: int) -> Message:
    body = b"%0*d" % (DIGITS, number) + FILLER[: size_of(number) - DIGITS]
    return Message(topic, body, tag=tag_of(number))


def send(url: str, topic: str, wanted: int, rate: int) -> bytearray:
    """Sends until `wanted` are acknowledged; returns a byte for each number.

    Sends no more than `rate` messages a second.
    """
    stored = bytearray()
    numbers = count()
    done, said = 0, 0.0
    with connect(url) as client, client.producer(topic, window=WINDOW) as producer:
        while done < wanted:
            begun = time.monotonic()
            chunk = list(islice(numbers, CHUNK))
            outcomes = [producer.submit(message(topic, number)) for number in chunk]
            for future in outcomes:
                error = future.exception()
                if error is not None and not isinstance(error, CohererError):
                    raise error
                stored.append(error is None)
                done += error is None
            time.sleep(max(0.0, begun + CHUNK / rate - time.monotonic()))
            if time.monotonic() > said + 1:
                said = time.monotonic()
                print(done, flush=True)
    return stored


def acknowledged(file: Path) -> Iterator[int]:
    return (number for number, one in enumerate(file.read_bytes()) if one)


if __name__ == "__main__":
    Path(sys.argv[4]).write_bytes(
        send(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[5]))
    )
