"""The sockets that are open in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")


def sockets() -> set[str]:
    """The sockets of this process, as Linux names them; elsewhere none."""
    found: set[str] = set()
    with suppress(OSError):
        for one in _DESCRIPTORS.iterdir():
            with suppress(OSError):  # that of the directory itself is closed
                if (name := str(one.readlink())).startswith("socket:"):
                    found.add(f"{one.name} {name}")
    return found


def connections_to_itself(before: set[str]) -> Iterator[str]:
    """The new connections to ports on which this process listens: those of nodes."""
    listening: set[int] = set()
    connected: dict[str, int] = {}
    for name in sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(int(name.split()[0]))) as one:
            if one.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.add(one.getsockname()[1])
            elif name not in before:
                here, there = one.getsockname()[:2], one.getpeername()[:2]
                connected[f"socket {here[0]}:{here[1]}, connected to {there[0]}:{there[1]}"] = (
                    there[1]
                )
    for text, port in connected.items():
        if port in listening:
            yield text
