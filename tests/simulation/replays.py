"""Two operators who replay dead letters, and what their replays have sent."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

from coherer._administration.access import Cluster
from coherer._administration.replay import replay
from coherer._wire.rocketmq.names import REPLAY_OF, dlq_topic
from coherer.errors import RefusedError
from tests.simulation.history import Place

if TYPE_CHECKING:  # a run has operators, and they use the run
    from tests.simulation.workload import Run

GROUP: Final = "crew"
"""The group whose dead letters they replay."""
MENDED: Final = "mended"
"""The topic that they replay them to."""
OFTEN: Final = 0.2
"""The probability that an operator replays them when he could."""


async def mend(run: Run, who: str, chance: Random) -> None:
    """Replay the dead letters now and then."""
    async with run.operate() as cluster:
        async for _ in run.turns(chance):
            if chance.random() < OFTEN:
                at_once = range(chance.choice((1, 1, 2)))
                await asyncio.gather(*(_replay(run, who, cluster) for _ in at_once))


async def _replay(run: Run, who: str, cluster: Cluster) -> None:
    with run.noting(who):
        done = await replay(cluster, GROUP, to=MENDED)
        run.note(who, "replayed", note=f"{done.sent} of {done.seen}")


async def look(run: Run, client: Any) -> None:
    """Replay what is left, and note what was replayed and what could be."""
    async with run.operate() as cluster:
        await replay(cluster, GROUP, to=MENDED)
    for topic, what in ((MENDED, "mended"), (dlq_topic(GROUP), "letter")):
        try:
            offsets = await client.offsets(topic)
        except RefusedError:  # there are no dead letters
            continue
        for queue, (first, end) in offsets.items():
            async with client.reader(queue, first, end=end, masters_only=True) as reader:
                while (batch := await reader.read()) is not None:
                    for message in batch:
                        letter = message.properties[REPLAY_OF] if what == "mended" else message.id
                        place = Place(f"{topic}@{queue.broker}.{queue.id}", message.offset)
                        run.note("reader", what, message.body.decode(), place=place, note=letter)
