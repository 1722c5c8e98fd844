"""Clients in other processes, driven by JSON lines (`Driver.java`, `driver_main.py`)."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeAlias

from .cache import JavaSystem
from .process import Child

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Event: TypeAlias = "dict[str, Json]"


OUR_MAIN = Path(__file__).parent / "driver_main.py"


class DriverError(Exception):
    """What a client threw, or that its process is gone."""


class Driver:
    """A process with clients.

    Args:
        name: for the log.
        command: what to run.
        logs: folder of its log.
        env: further environment variables.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        logs: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.child = Child(name, command, logs, pipe_stdout=True, env=env)
        self._calls = itertools.count(1)
        self._names = itertools.count(1)
        self._waiting: dict[int, Future[Json]] = {}
        self._listeners: dict[str, Callable[[Event], object]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def call(self, on: str, do: str, **parameters: object) -> Future[Json]:
        """Asks client `on` to do something; the future holds what it answers, or `DriverError`."""
        number = next(self._calls)
        future: Future[Json] = Future()
        line = json.dumps({"call": number, "on": on, "do": do, **parameters}) + "\n"
        with self._lock:
            self._waiting[number] = future
            try:
                self.child.stdin.write(line.encode())
                self.child.stdin.flush()
            except OSError as gone:
                del self._waiting[number]
                raise DriverError(f"the driver is gone: {self.child.log_end()}") from gone
        return future

    def open(
        self, kind: str, on_event: Callable[[Event], object] = print, **parameters: object
    ) -> tuple[str, Future[Json]]:
        """A new client of a kind (producer, pull, push, bench): its name, and when it is there.

        `on_event` is called from the reading thread with what the client says unasked.
        """
        name = f"{kind}-{next(self._names)}"
        self._listeners[name] = on_event
        return name, self.call(name, kind, **parameters)

    def _read(self) -> None:
        for line in self.child.stdout:
            said = json.loads(line)
            if "call" in said:
                with self._lock:
                    future = self._waiting.pop(said["call"])
                if not future.set_running_or_notify_cancel():
                    continue  # nobody waits for it any more
                if "error" in said:
                    future.set_exception(DriverError(said["error"]))
                else:
                    future.set_result(said["ok"])
            elif said.get("on") in self._listeners:
                self._listeners[said["on"]](said)
        with self._lock:
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in filter(Future.set_running_or_notify_cancel, left):
            future.set_exception(DriverError(f"the driver ended: {self.child.log_end()}"))

    def kill(self) -> None:
        """SIGKILL: all of its clients die without a word."""
        self.child.kill()

    def stop(self) -> None:
        """Ends it."""
        self.child.stop()
        self._reader.join(5)


class JavaDriver(Driver):
    """A JVM with Java clients.

    Args:
        tube: the Java system.
        logs: folder of its log.
        name: for the log.
        heap_mb: its memory.
    """

    def __init__(
        self, tube: JavaSystem, logs: Path, name: str = "java-driver", heap_mb: int = 512
    ) -> None:
        super().__init__(name, tube.command("Driver", heap_mb=heap_mb, log="warn"), logs)


class OurDriver(Driver):
    """A process with our clients, for those that are to be killed.

    Args:
        logs: folder of its log.
        name: for the log.
    """

    def __init__(self, logs: Path, name: str = "our-driver") -> None:
        super().__init__(name, [sys.executable, str(OUR_MAIN)], logs)
