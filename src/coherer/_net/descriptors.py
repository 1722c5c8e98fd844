"""The sockets that are open in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from coherer._net.connection import dialled

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


def listening() -> set[int]:
    """The TCP ports on which this process listens."""
    return {
        one.getsockname()[1]
        for one in _opened(sockets())
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def connections(before: set[str], ports: set[int]) -> Iterator[str]:
    """The new connections to some ports, except for those that `dial` has made."""
    connected: dict[tuple[str, int], tuple[str, int]] = {}
    for one in _opened(sockets() - before):
        with suppress(OSError):  # it is not connected
            connected[one.getsockname()[:2]] = one.getpeername()[:2]
    if (ours := dialled()) is None:  # one of these may be its socket
        return
    for here, there in connected.items():
        if there[1] in ports and here not in ours:
            yield f"socket {here[0]}:{here[1]}, connected to {there[0]}:{there[1]}"


def _opened(names: set[str]) -> Iterator[socket.socket]:
    """Copies of sockets of TCP, one after the other."""
    for name in names:
        with suppress(OSError), socket.socket(fileno=os.dup(int(name.split()[0]))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield one
