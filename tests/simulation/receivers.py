"""Programs that receive: the members of the groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coherer.errors import CohererError, RefusedError
from coherer.rocketmq import Sql92
from tests.simulation.history import Event, Place
from tests.simulation.plan import DESK
from tests.simulation.senders import (
    FAILURES,
    LEDGER,
    NEWS,
    ORDERS,
    QUESTIONS,
    SCRATCH,
    WORK,
    answer_to,
    body_of,
    place_of,
)

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

ATTEMPTS: Final = 4
"""How often the group `crew` gets a message before it becomes a dead letter."""


HELD_S: Final = 2.0
"""How long a member that is to leave works on its last messages, at most."""


class Group(NamedTuple):
    """A group of receivers.

    Args:
        topic: what it reads.
        filter: of its subscription.
        accepts: whether a message that was sent passes the filter.
        options: of its members.
        commits: whether it commits each batch; otherwise it acknowledges.
        slow: whether it lags behind while there is trouble.
        answers: whether it answers requests.
    """

    topic: str
    filter: Any = None
    accepts: Callable[[Event], bool] = lambda _: True
    options: Mapping[str, Any] = {}
    commits: bool = False
    slow: bool = False
    answers: bool = False

    @property
    def broadcast(self) -> bool:
        """Whether each member gets every message."""
        return self.options.get("model") == "broadcast"

    @property
    def orderly(self) -> bool:
        """Whether one member at a time reads a queue."""
        return bool(self.options.get("orderly"))


GROUPS: Final = {
    "shop": Group(ORDERS),
    "books": Group(ORDERS, commits=True),
    "blue": Group(ORDERS, "blue", lambda sent: sent.tag == "blue"),
    "sloth": Group(ORDERS, slow=True),
    "large": Group(
        ORDERS,
        Sql92("size BETWEEN 3 AND 6 AND TAGS = 'red'"),
        lambda sent: 3 <= sent.size <= 6 and sent.tag == "red",
    ),
    "radio": Group(ORDERS, options={"model": "broadcast"}),
    "ledger": Group(LEDGER, options={"orderly": True, "batch_messages": 1}),
    "crew": Group(WORK, options={"batch_messages": 1, "max_attempts": ATTEMPTS}),
    "press": Group(NEWS),
    "scraps": Group(SCRATCH),
    DESK: Group(QUESTIONS, answers=True),
}


def group_of(label: str) -> Group:
    """The group of an event's `group`."""
    return GROUPS[label.partition("/")[0]]


def failures_of(message: str) -> int:
    """How often handlers refuse a message."""
    _, mark, number = message.rpartition(FAILURES)
    return int(number) if mark else 0


async def receive(run: Run, who: str, name: str, chance: Random) -> None:
    """Receive until it is time to leave."""
    group = GROUPS[name]
    label = f"{name}/{who}" if group.broadcast else name
    options: dict[str, Any] = {"start": "earliest", **group.options}
    client_options: dict[str, Any] = {}
    if group.broadcast:
        options["offsets"] = run.directory / who
        client_options["instance"] = who  # its offsets belong to this name
    async with (
        run.connect(**client_options) as client,
        client.consumer(name, {group.topic: group.filter}, **options) as consumer,
        client.producer() if group.answers else nullcontext() as answering,
    ):
        while not run.leaves(who).is_set():
            batch = await consumer.receive(run.patience_ms())
            if batch is not None:
                if answering is not None:
                    await _answer(run, who, answering, batch)
                await _handle(run, who, label, chance, consumer, batch)
                if group.slow and not run.recovering.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(run.recovering.wait(), chance.random() * 40)
    run.note(who, "left", group=label)


async def _answer(run: Run, who: str, answering: Any, batch: Any) -> None:
    for message in batch:
        try:
            await answering.reply(message, answer_to(body_of(message)).encode())
        except RefusedError as error:  # who has asked is gone
            run.note(who, "unheard", body_of(message), note=str(error))
        except CohererError as error:
            run.note(who, "failed", body_of(message), note=str(error))


async def _handle(
    run: Run, who: str, label: str, chance: Random, consumer: Any, batch: Any
) -> None:
    group, got = group_of(label), list(batch)
    retried: list[Any] = []
    for message in got:
        body = body_of(message)
        attempt = getattr(message, "attempt", 0)
        where = _place(message, attempt)
        run.note(who, "received", body, place=where, group=label, attempt=attempt)
        if attempt < failures_of(body):
            retried.append(message)
    await _work(run, who, chance, consumer, group)
    for message in got:
        body, attempt = body_of(message), getattr(message, "attempt", 0)
        what = "refused" if message in retried else "handled"
        place = _place(message, attempt)
        run.note(who, what, body, place=place, group=label, attempt=attempt)
    if retried:
        await batch.retry()
    elif group.commits:
        await consumer.commit(batch)
        for message in got:
            run.note(who, "kept", body_of(message), place=_place(message, 0), group=label)
    else:
        batch.ack()


async def _work(run: Run, who: str, chance: Random, consumer: Any, group: Group) -> None:
    """What a handler does. Members that are to leave do so while they work on their last messages,
    and no request follows that could acknowledge these."""
    if not run.calm.is_set():
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 3)
    elif who.endswith("0") and not group.broadcast and chance.random() < 0.5:
        with suppress(TimeoutError):
            await asyncio.wait_for(run.leaves(who).wait(), HELD_S)
            consumer.pause()


def _place(message: Any, attempt: int) -> Place | None:
    if message.offset is None:
        return None
    place = place_of(message)
    if attempt and "RETRY_TOPIC" in message.stored_properties:  # where it lies is the retry topic
        queue = place.queue.replace(message.topic, f"%RETRY%{message.topic}", 1)
        return Place(queue, place.offset)
    return place
