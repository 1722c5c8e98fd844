"""Draining a node: no new sends, consumers finish, then the node stops.

1. *Leaving.* The master removes the broker from producers' routes, and name servers learn that it
   is read-only. `/health/ready` answers 503, so that a load balancer or Kubernetes sends no new
   clients. Sends are still accepted, because TubeMQ's producers do not retry a message that a
   broker refuses. This lasts until no message has arrived for a second; at most the grace period.
2. *Draining.* Sends are refused with the codes that make a client use another broker: 503 of
   TubeMQ, SERVICE_NOT_AVAILABLE (14) of RocketMQ, whose producers retry the message there.
   Consumers may still send messages back to be retried. The node is *drained* when each group that
   is connected has acknowledged every message of the topics that it reads, and when no send was
   refused for 2 s. (RocketMQ's producers look at the routes every 30 s. A send that arrives while
   its connection is being closed would leave a producer in doubt; so the node waits up to 35 s.)
3. The node stops, after the timeout in any case. Nothing is lost: unread messages stay in the log.

The node does not wait for groups without connected members, or for groups whose progress is known
to their members only (RocketMQ's broadcasting, readers that never commit). It does wait for a group
that has not committed yet, whose lag is unknown.

Delayed messages and open transactions stay, too, and continue after the restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from coherer._common.drain_status import PATH, Behind, DrainStatus, State
from coherer._common.logs import Log
from coherer._server.core.core import Core
from coherer._server.http.app import Action, Page, Reply
from coherer._server.node.parts import NodeParts
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))

TIMEOUT_S: Final = 300.0
GRACE_S: Final = 15.0
"""Java's TubeMQ producers ask their master for routes every 13 s."""

_LOOK_EVERY_S: Final = 0.2
_LINGER_S: Final = 2.0
"""How long a drained node waits for the clients to read the result."""

_QUIET_MS: Final = 2_000
_QUIET_S: Final = 1.0
_ROUTES_S: Final = 35.0
_FOREVER_S: Final = 1e9
_BROADCASTING: Final = "BROADCASTING"
_GROUPS_SHOWN: Final = 100


class Drain:
    """Drains a node.

    Attributes:
        finished: set when the node should stop.
    """

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._state: State = "serving"
        self._began_s = 0.0
        self._timeout_s = self._grace_s = 0.0
        self._clients = 0  # which have started the drain, and have not read its result
        self._seen = asyncio.Event()
        self.finished = asyncio.Event()

    @property
    def active(self) -> bool:
        """Whether the node accepts no more sends."""
        return self._state != "serving"

    def start(self, timeout_s: float = TIMEOUT_S, grace_s: float = GRACE_S) -> None:
        """Route producers elsewhere, and wait for consumers in the background.

        A second call replaces the times.

        Args:
            timeout_s: how long to wait at most, from now on.
            grace_s: how long to accept sends at most, from now on.

        Raises:
            UsageError: the node has no broker, or other brokers of `--brokers` need it.
        """
        core = self._node.core
        if core is None:
            raise UsageError("A node without a broker cannot be drained; stop it instead.")
        if others := self._node.siblings.serving(but=self._node.options.broker_id):
            numbers = ", ".join(map(str, others))
            raise UsageError(
                f"The brokers {numbers} need this one, which has the master and the name server.",
                hint="Drain them first, each by the --admin port that `coherer serve` printed. "
                "SIGUSR1 to `coherer serve` drains all.",
            )
        now_s = asyncio.get_running_loop().time()
        if self._task is None:
            self._state, self._began_s = "leaving", now_s
            core.leave()
            self._node.tubemq.sync()
            _log.plain.warning(
                "Draining: the node stops when producers have left and consumers have finished"
            )
            self._task = asyncio.create_task(self._wait(core), name="coherer-drain")
        self._timeout_s = now_s - self._began_s + timeout_s
        self._grace_s = now_s - self._began_s + grace_s

    def cancel(self) -> None:
        """Accept sends again.

        A remote master keeps routing producers elsewhere until its operator releases the broker, or
        the broker restarts.
        """
        node = self._node
        if self._task is None or node.core is None:
            return
        self._task.cancel()
        self._task, self._state = None, "serving"
        self._clients = 0
        self._seen.clear()
        self.finished.clear()
        node.core.leave(leaving=False)
        if node.tubemq.master is not None:
            node.tubemq.sync()  # the master learns first that the broker is healthy
            registry = node.tubemq.master.state.broker_registry
            registry.release(node.options.broker_id, node.now_ms())
            node.tubemq.sync()  # and then the broker learns that it may write again
        _log.plain.warning("The drain was cancelled: sends are accepted again")

    async def close(self) -> None:
        """Stop waiting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def status(self) -> DrainStatus:
        """Return the progress."""
        behind = sorted(self._behind(), key=lambda one: -(one.lag or 0))
        elapsed_s = 0.0
        if self.active:
            elapsed_s = asyncio.get_running_loop().time() - self._began_s
        return DrainStatus(
            self._state,
            sum(one.lag or 0 for one in behind),
            behind[:_GROUPS_SHOWN],
            self._has_senders(elapsed_s),
            round(elapsed_s, 3),
            round(self._timeout_s, 3),
        )

    async def _leave(self, core: Core) -> None:
        """Wait until no more messages arrive, then refuse sends."""
        loop = asyncio.get_running_loop()
        end, since_s = core.store.end_offset, loop.time()
        while loop.time() - since_s < _QUIET_S:
            if loop.time() - self._began_s >= min(self._grace_s, self._timeout_s):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
            if core.store.end_offset != end:
                end, since_s = core.store.end_offset, loop.time()
        self._state = "draining"
        core.drain()

    async def _wait(self, core: Core) -> None:
        loop = asyncio.get_running_loop()
        await self._leave(core)
        while True:
            elapsed_s = loop.time() - self._began_s
            if not self._has_senders(elapsed_s) and not any(True for _ in self._behind()):
                self._state = "drained"
                break
            if elapsed_s >= self._timeout_s:
                self._state = "timed out"
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        found = self.status()
        _log.plain.warning(
            "Drain: %s after %.1f s; %d messages are unread by connected groups",
            found.state,
            found.elapsed_s,
            found.lag,
        )
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._seen.wait()
        except TimeoutError:
            pass
        self.finished.set()

    # -- progress

    def _has_senders(self, elapsed_s: float) -> bool:
        core = self._node.core
        if core is None or not self.active or elapsed_s > _ROUTES_S:
            return False
        return core.send_refused_ms > 0 and core.lease_ms() - core.send_refused_ms < _QUIET_MS

    def _behind(self) -> Iterator[Behind]:
        for topic, group in sorted(set(self._connected())):
            lag = self._lag(topic, group)
            if lag != 0:
                yield Behind(group, topic, lag)

    def _connected(self) -> Iterator[tuple[str, str]]:
        """Return the topics and groups of the connected consumers."""
        tubemq, rocketmq = self._node.tubemq.broker, self._node.rocketmq.broker
        if tubemq is not None:
            yield from ((lease.topic, lease.group) for lease in tubemq.state.leases)
        for group in [] if rocketmq is None else rocketmq.state.consumers.groups():
            if group.settings.message_model != _BROADCASTING:
                yield from ((topic, group.name) for topic in group.subscriptions)

    def _lag(self, topic: str, group: str) -> int | None:
        """Return the number of messages that a group has not acknowledged; None if unknown."""
        core = self._node.core
        known = None if core is None else core.topics.get(topic)
        if core is None or known is None:
            return 0
        lag, unknown = 0, False
        for number in known.partition_ids():
            begin, end = core.store.queue_range(topic, number)
            if begin >= end:
                continue
            position = core.offsets.find(group, topic, number)
            if position is None or position.offset < 0:
                unknown = True
            elif not position.transient:
                lag += end - min(max(position.offset, begin), end)
        return None if unknown and not lag else lag

    # -- over HTTP

    def pages(self) -> dict[str, Page]:
        """The page with the progress, as JSON."""

        async def show() -> Reply:
            status = self.status()
            if status.state in {"drained", "timed out"}:
                self._clients -= 1
                if self._clients <= 0:
                    self._seen.set()
            return 200, _JSON, msgspec.json.encode(status)

        return {PATH: show}

    def actions(self) -> dict[str, Action]:
        """Start or cancel; the form has the fields `timeout_s`, `grace_s` and `cancel`."""

        async def act(form: Mapping[str, str]) -> Reply:
            try:
                if form.get("cancel") == "true":
                    self.cancel()
                else:
                    self.start(
                        _seconds(form.get("timeout_s", str(TIMEOUT_S))),
                        _seconds(form.get("grace_s", str(GRACE_S))),
                    )
                    self._clients += 1
            except UsageError as error:
                return 409, _TEXT, f"{error}\n".encode()
            except ValueError:
                return 400, _TEXT, b"timeout_s and grace_s must be seconds, 0 or more.\n"
            return 200, _JSON, msgspec.json.encode(self.status())

        return {PATH: act}


_JSON: Final = [("Content-Type", "application/json;charset=utf-8")]
_TEXT: Final = [("Content-Type", "text/plain;charset=utf-8")]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < _FOREVER_S:
        raise ValueError(text)
    return seconds
