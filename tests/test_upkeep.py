"""Periodic work goes through `Upkeep`: loops and timers that bypass it are listed with a reason."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

from coherer._client.engine.tasks import every
from coherer._common.upkeep import Upkeep
from coherer.errors import UnavailableError

SOURCE = Path(__file__).parent.parent / "src/coherer"

RETRIES = "repeats one call until it succeeds or its time is up, then ends"
WORKS_OFF = "works off what waits, and ends; the pause lets other work run"
SHOWS = "a command that shows something until the user stops it; an error ends it and is shown"
ONCE = "a timer that runs once, for one object; asyncio logs what it raises"
HANDLES = "catches every exception in each round, and handles it in a way of its own"
LOOPS = {
    "_administration/replay.py::_wait_index": RETRIES,
    "_administration/replay_lock.py::_renew": "ends with its replay; see `RENEWAL_S`",
    "_administration/replay_lock.py::held": ONCE,
    "_client/engine/connections.py::__init__": ONCE,
    "_client/engine/connections.py::_check_idle": ONCE,
    "_client/engine/connections.py::_sweep_at": ONCE,
    "_client/engine/sender.py::_connect": RETRIES,
    "_client/engine/sender.py::_send_later": ONCE,
    "_client/engine/sender.py::_wait": ONCE,
    "_client/rocketmq/administration/topics.py::wait_usable": RETRIES,
    "_client/rocketmq/consuming/assigned_queue.py::_wake_later": ONCE,
    "_client/rocketmq/consuming/assignment.py::_acknowledged": RETRIES,
    "_client/rocketmq/consuming/fetch_loop.py::answered": ONCE,
    "_client/rocketmq/consuming/fetch_loop.py::failed": ONCE,
    "_client/rocketmq/consuming/membership.py::_rebalance": HANDLES,
    "_client/rocketmq/tracing.py::_send": WORKS_OFF,
    "_client/tubemq/administration/topics.py::wait_usable": RETRIES,
    "_client/tubemq/cluster.py::retry": RETRIES,
    "_client/tubemq/fetching.py::_run": HANDLES,
    "_client/tubemq/fetching.py::retry": ONCE,
    "_client/tubemq/publisher.py::_send_heartbeats": HANDLES,
    "_client/tubemq/reader.py::_fetch": RETRIES,
    "_client/tubemq/reader.py::_fetch_with_retries": RETRIES,
    "_net/connection.py::_watch_stall": ONCE,
    "_net/limits.py::_schedule_check": ONCE,
    "_net/listener.py::_accept": "waits for connections; pauses while no file can be opened",
    "_net/service_manager.py::stay_alive": HANDLES,
    "_server/core/deferred_saver.py::_run": WORKS_OFF,
    "_server/tubemq/master/topic_sync.py::_schedule": ONCE,
    "_server/node/drain.py::_leave": "ends with the drain",
    "_server/node/drain.py::_wait": "ends with the drain",
    "_server/node/node.py::_measure_lag": "measures how late it runs; nothing in it can fail",
    "_server/rocketmq/broker/timers.py::_wake_at": ONCE,
    "_server/tubemq/master/zookeeper.py::_run": HANDLES,
    "cli/serve/supervisor.py::_keep_running": "one task for each process, which it waits for",
    "cli/status.py::_watch": SHOWS,
    "cli/top.py::_run": SHOWS,
    "console/serving.py::served": RETRIES,
    "integrations/faststream/broker.py::ping": RETRIES,
    "integrations/faststream/subscriber.py::_join_again": RETRIES,
    "integrations/kombu/subscription.py::_await_owners": RETRIES,
    "integrations/kombu/link.py::_leave_later": ONCE,
    "integrations/kombu/link.py::_register": RETRIES,
    "integrations/kombu/subscription.py::_revoked": RETRIES,
    "integrations/kombu/subscription.py::_reach_end": RETRIES,
    "testing/proxy.py::pump": ONCE,
    "testing/explore.py::beside": ONCE,
    "testing/explore.py::_strike": "the faults of a test, whose failure is the test's",
    "testing/faults.py::delay": ONCE,
    "testing/faults.py::strike": ONCE,
    "testing/taps.py::_written": ONCE,
    "testing/simulated.py::create_topic": RETRIES,
    "testing/standalone.py::_run": "it looks whether its parent lives, which cannot fail",
    "testing/simulation/loop.py::run_in_executor": ONCE,
    "testing/simulation/network.py::_slow_down": ONCE,
    "testing/simulation/network.py::expect": ONCE,
}
"""Loops and timers that are no steps, and why."""


def waits(loop: ast.While) -> bool:
    """Whether a loop waits for time to pass."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith((".timeout", "_wake.wait")):
                return True
            if name == "asyncio.sleep" and ast.unparse(node.args[0]) != "0":
                return True
    return False


def bypasses(path: Path) -> Iterator[str]:
    """The functions of a file with a loop that waits, or a timer, and without a guard."""
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            is_loop = isinstance(node, ast.While) and waits(node)
            is_timer = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                (".call_later", ".call_at")
            )
            if (is_loop or is_timer) and ".guard(" not in ast.unparse(node):
                yield function.name


def found() -> set[str]:
    return {
        f"{path.relative_to(SOURCE).as_posix()}::{name}"
        for path in SOURCE.rglob("*.py")
        if path.name != "upkeep.py"
        for name in bypasses(path)
    }


def test_every_loop_is_a_step_or_says_why_not() -> None:
    assert found() - LOOPS.keys() == set(), "declare a `Step`, use `guard`, or give the reason here"
    assert LOOPS.keys() - found() == set(), "these do not exist any more"


async def test_a_heartbeat_that_raises_is_counted_and_sent_again() -> None:
    """An unexpected error must not end the heartbeats of a client: it would lose its partitions."""
    upkeep, sent = Upkeep(), asyncio.Event()
    errors = iter([ZeroDivisionError("bug"), UnavailableError("The broker is away.")])

    async def send() -> None:
        for error in errors:
            raise error
        sent.set()

    task = asyncio.create_task(every(upkeep, "sending heartbeats", 1, send))
    await sent.wait()
    task.cancel()
    assert upkeep.failures == {"sending heartbeats": 2}
