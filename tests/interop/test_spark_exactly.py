"""Each message of Java's TubeMQ broker is in exactly one range, wherever ranges are cut.

Partitions share the index whose positions are the offsets, reads return packages of any size, and a
message is first in one of two memory caches, then in files.

`python -m tests.spark.struck_tube 2000000` kills Spark and the broker while two million land.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise

from coherer.spark.options import FAILFAST, Access
from coherer.spark.planning import Range
from coherer.spark.reading import ReadSettings, rows
from coherer.spark.tubemq import TubeMQQueue
from tests.interop.peers.clients import closing
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS
from tests.spark.struck_messages import message
from tests.spark.struck_tube import until_flushed

JAVA = [pair for pair in PAIRS if pair.name == "java/java"]
CUTS = 25
MESSAGES = 3_000


def never(lost: Range, reason: str = "") -> None:
    raise AssertionError(lost, reason)


READING = ReadSettings(("value",), True, FAILFAST, on_loss=never, on_bad=never)


def values(queue: TubeMQQueue, ranges: list[Range]) -> list[bytes]:
    return [
        value
        for batch in rows(queue, ranges, READING)
        for value in batch.column("value").to_pylist()
    ]


def cut(queue: TubeMQQueue, topic: str, chances: random.Random) -> Counter[bytes]:
    """Cuts the partitions at random offsets, and reads the pieces in a random order."""
    ranges: list[Range] = []
    for (broker, partition), (low, high) in queue.bounds(topic).items():
        # Most offsets are no beginning of an entry, and some pieces are shorter than one.
        edges = [low, *chances.choices(range(low, high + 1), k=CUTS), high]
        edges += [min(edge + chances.randrange(60), high) for edge in edges[:5]]
        ranges += [Range(topic, broker, partition, *pair) for pair in pairwise(sorted({*edges}))]
    chances.shuffle(ranges)
    return Counter(values(queue, ranges))


@scenario(JAVA, partitions=4, clients=["ours"])
async def test_ranges_cut_anywhere_hold_each_message_once(at: At) -> None:
    producer = await at.clients.producer(at.master, [at.topic])
    sent: Counter[bytes] = Counter()
    url = f"tubemq://{at.master}"
    queue = TubeMQQueue(Access(url=url))
    chances = random.Random(10)
    try:
        async with closing(producer):
            # Partly in files, in either cache, and only in memory.
            for begin in range(0, MESSAGES, MESSAGES // 3):
                for number in range(begin, begin + MESSAGES // 3):
                    one = message(at.topic, number + 9_000)
                    await producer.send(one)
                    sent[one.body] += 1
                assert await asyncio.to_thread(cut, queue, at.topic, chances) == sent
        await asyncio.to_thread(until_flushed, url, at.topic)
        assert await asyncio.to_thread(cut, queue, at.topic, chances) == sent
    finally:
        await asyncio.to_thread(queue.close)
