"""Faults on demand of a node in a test. Its taps carry them out."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from coherer.testing.requests import Protocol, ReceivedRequest, selector
from coherer.testing.taps import Frame, Tap, Taps


class Fault:
    """A fault of a node, active inside a `with` block.

    Attributes:
        hits: how often it has struck.
    """

    hits: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the fault."""


class _RequestFault(Fault):
    def __init__(
        self,
        taps: Taps,
        matches: Callable[[ReceivedRequest], bool],
        strike: Callable[[Tap, Frame], bytes | None],
        times: int | None,
        text: str = "",
    ) -> None:
        self._matches = matches
        self._taps, self._strike, self._times = taps, strike, times
        self._text = text  # what the test has written; empty for a part of another fault

    def __enter__(self) -> Self:
        self._taps.active = [*self._taps.active, self]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._taps.active = [one for one in self._taps.active if one is not self]
        if self._text and error is None and not self.hits and not self._taps.explored:
            warnings.warn(
                f"{self._text} has struck no request: the test does not show what happens then. "
                f"The node has received {self._taps.requests!r}.",
                stacklevel=2,
            )

    def applies(self, frame: Frame) -> bool:
        """Whether it strikes a request."""
        return (self._times is None or self.hits < self._times) and self._matches(frame.about)

    def strike(self, tap: Tap, frame: Frame) -> bytes | None:
        """Apply it to a request; returns what the node is to receive now, None for nothing."""
        self.hits += 1
        return self._strike(tap, frame)


class NodeFaults:
    """The faults of an embedded or simulated node: `node.faults`.

    Each fault is active inside a `with` block. Requests are selected by `request`: a kind of both
    protocols (`send`, `receive`, `commit`, `retry`, `end_transaction`, `heartbeat`, `register`,
    `route`), a protocol's own name for them, or its number; by `topic` and `group`, if the
    request names them; and by `protocol`. `times` is how many of them it strikes; None for all. A
    block that ends without an error and in which no request was struck ends with a `UserWarning`.

    ```python
    with node.faults.refuse("send", code=14, topic="orders", times=3) as refused:
        ...
    assert refused.hits == 3
    ```
    """

    def __init__(self) -> None:
        self._taps = Taps()

    def refuse(
        self,
        request: str | int,
        code: int,
        text: str = "Refused by the test.",
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Answer requests with an error code, instead of carrying them out."""

        def strike(tap: Tap, frame: Frame) -> None:
            answer = frame.refused(code, text)
            if answer is not None:
                tap.answer(answer)

        return self._striking("refuse", strike, times, request, topic, group, protocol)

    def delay(
        self,
        request: str | int,
        seconds: float,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Let requests arrive later."""

        def strike(tap: Tap, frame: Frame) -> None:
            asyncio.get_running_loop().call_later(seconds, tap.arrive, frame, tap.others)

        return self._striking("delay", strike, times, request, topic, group, protocol)

    def lose(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Lose requests: they are not carried out, and not answered."""

        def strike(*_: object) -> None:
            pass

        return self._striking("lose", strike, times, request, topic, group, protocol)

    def lose_answer(
        self,
        request: str | int,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Carry requests out, and lose the answers."""

        def strike(tap: Tap, frame: Frame) -> bytes:
            tap.fates[frame.serial] = None
            return frame.data

        return self._striking("lose_answer", strike, times, request, topic, group, protocol)

    def delay_answer(
        self,
        request: str | int,
        seconds: float,
        *,
        topic: str | None = None,
        group: str | None = None,
        protocol: Protocol | None = None,
        times: int | None = None,
    ) -> Fault:
        """Carry requests out at once, and send the answers later."""

        def strike(tap: Tap, frame: Frame) -> bytes:
            tap.fates[frame.serial] = seconds
            return frame.data

        return self._striking("delay_answer", strike, times, request, topic, group, protocol)

    def _striking(
        self,
        name: str,
        strike: Callable[[Tap, Frame], bytes | None],
        times: int | None,
        request: str | int,
        topic: str | None,
        group: str | None,
        protocol: Protocol | None,
    ) -> Fault:
        given = {"topic": topic, "group": group, "protocol": protocol}
        named = [f"{key}={one!r}" for key, one in given.items() if one is not None]
        matches = selector(request, topic, group, protocol)
        text = f"faults.{name}({', '.join([repr(request), *named])})"
        return _RequestFault(self._taps, matches, strike, times, text)

    @contextmanager
    def black_hole(self) -> Generator[None]:
        """Lose everything in both directions; connections stay open, and new ones are accepted."""
        with self._taps.lasting("black_hole", self._taps.set_silent):
            yield

    @contextmanager
    def disk_full(self) -> Generator[None]:
        """Let every write fail as on a full disk."""
        with self._taps.lasting("disk_full", self._taps.files.set_full):
            yield

    @contextmanager
    def sync_fails(self) -> Generator[None]:
        """Let every sync of the disk fail."""
        with self._taps.lasting("sync_fails", self._taps.files.set_sync_fails):
            yield

    @contextmanager
    def standby(self) -> Generator[None]:
        """Let the TubeMQ master refuse everything, as one that has lost its ZooKeeper session."""
        with self._taps.lasting("standby", self._taps.set_standby):
            yield

    def expire(self, group: str) -> None:
        """Let the node forget the members of a group, as if it had not heard of them for long.

        They lose their partitions, and join again with one of their next heartbeats.
        """
        self._taps.call(partial(self._taps.expire, group))

    @contextmanager
    def revoke(self, group: str, *, members: int | None = None) -> Generator[None]:
        """Let members of a group give up their partitions, which the other members take over.

        They stay members, and get partitions again after the block. Consumers notice both within
        one of their heartbeats. RocketMQ's consumers ask any broker who is a member, so in a
        cluster each broker needs this fault.

        Args:
            group: the group.
            members: how many of them, in the order of their ids; None for all.

        Raises:
            UsageError: the group has no members.
        """
        with _RequestFault(
            self._taps,
            selector("GET_CONSUMER_LIST_BY_GROUP", None, group, "rocketmq"),
            self._taps.list_members,
            None,
        ):
            chosen: list[str] = []
            self._taps.call(partial(self._taps.revoke, group, members, chosen))
            try:
                yield
            finally:
                self._taps.call_anywhere(partial(self._taps.end_revocation, group, chosen))
        self._taps.call_anywhere(partial(self._taps.members_changed, group))

    def reset(self) -> None:
        """Reset all connections with clients."""
        self._taps.call(self._taps.reset)

    def half_open(self) -> None:
        """Let the connections that are open now transport nothing any more.

        Neither end notices it, as if a firewall had forgotten them. New connections work.
        """
        self._taps.call(self._taps.sever)


def taps_of(faults: NodeFaults) -> Taps:
    """The taps of a node's faults."""
    return faults._taps  # pyright: ignore[reportPrivateUsage] - it shows what users call
