"""What handlers have received, and assertions about it."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from coherer._common import clock
from coherer._views import AnyMessage

B = TypeVar("B", bound="Iterable[AnyMessage]")


class Reception(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group has received.

    Args:
        group: the group.
        topic: the message's topic.
        body: its body.
        place: its broker, partition and offset.
        time_ms: when it was received, ms since 1970.
    """

    group: str
    topic: str
    body: bytes
    place: str
    time_ms: int


class Received:
    """Records what groups receive: `coherer_simulated.received`, or one of your own.

    Pass a handler through `by`, or call `add` in a loop of your own:

    ```python
    working = asyncio.create_task(consumer.run(received.by("shop", handle)))
    await received.wait(3, group="shop")
    received.assert_exactly([b"1", b"2", b"3"], group="shop")
    ```
    """

    def __init__(self) -> None:
        self._all: list[Reception] = []
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._changes = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Received {len(self)} messages>"

    def clear(self) -> None:
        """Forget all messages."""
        self._all.clear()

    def add(self, group: str, message: AnyMessage) -> None:
        """Record one message."""
        offset = "" if message.offset is None else f" offset {message.offset}"
        place = f"broker {message.broker} partition {message.partition}{offset}"
        one = Reception(
            group=group,
            topic=message.topic,
            body=bytes(message.body),
            place=place,
            time_ms=clock.wall_ms(),
        )
        with self._changes:
            self._all.append(one)
            waiting = tuple(self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    def by(
        self, group: str, handler: Callable[[B], Awaitable[None] | None] | None = None
    ) -> Callable[[B], Awaitable[None] | None]:
        """Return a handler that records the messages of a batch, and calls `handler` with it.

        A message is recorded although `handler` fails then.

        Args:
            group: the group of the consumer.
            handler: for `consumer.run`; None to do nothing.
        """

        def record(batch: B) -> Awaitable[None] | None:
            for message in batch:
                self.add(group, message)
            return None if handler is None else handler(batch)

        async def record_here(batch: B) -> None:
            if (returned := record(batch)) is not None:
                await returned

        # A consumer runs a plain function in a thread.
        in_thread = handler is not None and not inspect.iscoroutinefunction(handler)
        return record if in_thread else record_here

    def messages(self, *, group: str | None = None, topic: str | None = None) -> list[Reception]:
        """The messages of a group and a topic, or of all, in the order in which they came."""
        return [
            one for one in self._all if group in (None, one.group) and topic in (None, one.topic)
        ]

    async def wait(self, count: int, *, group: str | None = None, topic: str | None = None) -> None:
        """Wait until so many messages have come. Bound it with `asyncio.timeout`."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._changes:
            self._waiting.append(waiter)
        try:
            while len(self.messages(group=group, topic=topic)) < count:
                waiter[1].clear()
                if len(self.messages(group=group, topic=topic)) < count:
                    await waiter[1].wait()
        finally:
            with self._changes:
                self._waiting.remove(waiter)

    def assert_exactly(
        self,
        bodies: Sequence[bytes],
        *,
        group: str | None = None,
        topic: str | None = None,
        in_order: bool = True,
    ) -> None:
        """Check that exactly these messages were received, each of them once.

        Args:
            bodies: their bodies.
            group: by this group.
            topic: from this topic.
            in_order: in this order.

        Raises:
            AssertionError: these were not the messages; its text shows the difference.
        """
        found = self.messages(group=group, topic=topic)
        actual, expected = [one.body for one in found], list(bodies)
        if not in_order:
            actual, expected = sorted(actual), sorted(expected)
        if actual != expected:
            raise AssertionError(_difference(found, expected, group, in_order=in_order))

    def assert_once(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Check that no group has received a message twice.

        Messages of one topic with equal bodies count as one: what a producer sends again is stored
        again. So give the messages of a test different bodies.

        Raises:
            AssertionError: one has; its text names them.
        """
        twice = self.repeated(group=group, topic=topic)
        if twice:
            raise AssertionError("\n".join(_repeated(times) for times in twice))

    def repeated(
        self, *, group: str | None = None, topic: str | None = None
    ) -> list[list[Reception]]:
        """The messages that a group has received several times, with all their receptions.

        As in `assert_once`, messages of one topic with equal bodies count as one.
        """
        by_body: dict[tuple[str, str, bytes], list[Reception]] = defaultdict(list)
        for one in self.messages(group=group, topic=topic):
            by_body[one.group, one.topic, one.body].append(one)
        return [times for times in by_body.values() if len(times) > 1]


def counted(times: int) -> str:
    """How often, in words.

    >>> counted(2), counted(3)
    ('twice', '3 times')
    """
    return "twice" if times == 2 else f"{times} times"


def shortened(body: bytes) -> str:
    """A body for people."""
    return repr(body) if len(body) <= 60 else f"{body[:60]!r}... {len(body):,} bytes"


def _texts(bodies: Iterable[bytes]) -> dict[bytes, str]:
    """Bodies for people: those that begin alike differ in what is shown of them."""
    found: dict[bytes, str] = {}
    alike: dict[str, list[bytes]] = defaultdict(list)
    for body in dict.fromkeys(bodies):
        alike[shortened(body)].append(body)
    for text, group in alike.items():
        pairs = enumerate(zip(min(group), max(group), strict=True))  # they have the same size
        at = next((at for at, (one, other) in pairs if one != other), None)
        for body in group:
            found[body] = text if at is None else f"{text}, from {at:,}: {shortened(body[at:])}"
    return found


def _repeated(times: Sequence[Reception]) -> str:
    first = times[0]
    count = counted(len(times))
    places = " and ".join(dict.fromkeys(one.place for one in times))
    return (
        f"Message {shortened(first.body)} was delivered {count} to group {first.group} ({places})."
    )


def _difference(
    found: Sequence[Reception], expected: Sequence[bytes], group: str | None, *, in_order: bool
) -> str:
    if not in_order:
        found = sorted(found, key=lambda one: one.body)
    bodies = [one.body for one in found]
    shown = _texts([*expected, *bodies])
    texts, wanted = [shown[body] for body in bodies], [shown[body] for body in expected]
    whose = "All groups" if group is None else f"Group {group}"
    order = " in this order" if in_order else ""
    head = f"{whose} received {len(found)} messages, expected {len(expected)}{order}"
    lines = [f"{head} (- missing, + unexpected):"]
    matcher = difflib.SequenceMatcher(None, expected, bodies, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal" and b - a > 4:
            lines += [
                f"    {wanted[a]}",
                f"    ... {b - a - 2} more as expected",
                f"    {wanted[b - 1]}",
            ]
        elif kind == "equal":
            lines += [f"    {text}" for text in wanted[a:b]]
        else:
            lines += [f"  - {text}" for text in wanted[a:b]]
            lines += [f"  + {texts[n]}  {found[n].place}" for n in range(c, d)]
    by_message: dict[tuple[str, bytes], list[Reception]] = defaultdict(list)
    for one in found:
        by_message[one.group, one.body].append(one)
    lines += [_repeated(times) for times in by_message.values() if len(times) > 1]
    return "\n".join(lines)
