"""Notifies a service manager: systemd's protocol for `Type=notify`.

systemd passes the path of a datagram socket in `NOTIFY_SOCKET`, and expects lines such as `READY=1`
there. If it also sets `WATCHDOG_USEC`, it expects a keep-alive message within this time, and
restarts a process that sends none. Without `NOTIFY_SOCKET` nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from coherer._common.logs import Log

_log = Log(logging.getLogger(__name__))

_FAMILY: Final = getattr(socket, "AF_UNIX", None)


class ServiceManager:
    """Notifies the service manager that started the process.

    Args:
        environment: the environment variables.

    >>> ServiceManager({}).watchdog_s is None
    True
    >>> ServiceManager({"WATCHDOG_USEC": "10000000", "NOTIFY_SOCKET": "@x"}).watchdog_s
    5.0
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_us = environment.get("WATCHDOG_USEC", "")
        self._pid = environment.get("WATCHDOG_PID", "")
        self._status: str | None = None

    @property
    def watchdog_s(self) -> float | None:
        """The interval of keep-alive messages, half of the watchdog's timeout; None without one."""
        wanted = self._pid in {"", str(os.getpid())}
        if not self._address or not self._watchdog_us.isdecimal() or not wanted:
            return None
        return int(self._watchdog_us) / 2_000_000 or None

    def ready(self, status: str) -> None:
        """Notify that the process is ready, after its start."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Notify that the process reloads its configuration, and is ready again after the block.

        A process that is still starting sends neither: the manager would take it for ready.
        """
        if self._status is not None:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            if self._status is not None:
                self.ready(self._status)

    def stopping(self) -> None:
        """Notify that the process is stopping."""
        self._send("STOPPING=1")

    async def stay_alive(self) -> None:
        """Send keep-alive messages while the event loop runs, until cancelled."""
        every_s = self.watchdog_s
        while every_s is not None:
            self._send("WATCHDOG=1")
            await asyncio.sleep(every_s)

    def _send(self, *lines: str) -> None:
        if not self._address or _FAMILY is None:
            return
        address = self._address
        if address.startswith("@"):  # an abstract name, without a file
            address = "\0" + address[1:]
        try:
            with socket.socket(
                _FAMILY, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)
            ) as s:
                s.setblocking(False)
                s.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            _log.warning(
                "The service manager at %s cannot be notified: %s",
                self._address,
                error,
                about=lines[0],
            )
