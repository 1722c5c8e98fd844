"""ZooKeeper servers, from the jars of Java's TubeMQ."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from coherer.testing import FaultProxy

from .cache import JavaSystem
from .java import HOST
from .process import Child, free_ports, listens

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""It runs a single server, too."""
START_TIMEOUT_S = 120.0
TICK_MS = 500


class ZooKeeper:
    """One server; restarted on the same folder and port by `start` after `stop`.

    Args:
        tube: the Java system that has its jars.
        folder: where it keeps everything.
        more: lines of its configuration.
        max_session_ms: the longest timeout of a session that it grants.
    """

    def __init__(
        self, tube: JavaSystem, folder: Path, more: str = "", max_session_ms: int = 20_000
    ) -> None:
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        self.address = f"{HOST}:{self.port}"
        self._tube, self._folder = tube, folder
        self._config = folder / "zoo.cfg"
        self._config.write_text(f"""tickTime={TICK_MS}
dataDir={folder}/data
clientPort={self.port}
clientPortAddress={HOST}
admin.enableServer=false
maxSessionTimeout={max_session_ms}
{more}""")
        self.child: Child | None = None

    def start(self, mode: str = "") -> None:
        """Starts it, and waits until it answers, and is in this mode."""
        command = self._tube.command("Leash", MAIN, str(self._config), heap_mb=128, log="warn")
        self.child = Child("zookeeper", command, self._folder)
        self.child.wait_for(lambda: listens(self.port, HOST), START_TIMEOUT_S, "listening port")
        if mode:
            self.child.wait_for(lambda: self.mode() == mode, START_TIMEOUT_S, mode)

    def mode(self) -> str:
        """Whether it is the leader or a follower; empty without a quorum."""
        with socket.create_connection((HOST, self.port), timeout=START_TIMEOUT_S) as sock:
            sock.sendall(b"srvr")
            answer = b"".join(iter(lambda: sock.recv(4096), b"")).decode()
        return answer.partition("Mode: ")[2].partition("\n")[0]

    def stop(self) -> None:
        """Ends it."""
        if self.child is not None:
            self.child.stop(grace_s=0)
            self.child = None


class ZooKeepers:
    """Three servers. The third one is the leader; the first one reaches it through a proxy.

    Args:
        max_session_ms: the longest timeout of a session that they grant.

    Attributes:
        servers: the first, the second and the third.
        proxy: between the first and the third.
    """

    def __init__(self, tube: JavaSystem, folder: Path, max_session_ms: int) -> None:
        ports = free_ports(6)
        self._max_session_ms = max_session_ms
        self.proxy = FaultProxy(HOST, ports[2])
        self._tube, self._folder = tube, folder
        self._ports = list(zip(ports[:3], ports[3:], strict=True))
        self.servers: list[ZooKeeper] = []

    async def start(self) -> None:
        """Starts them, the leader first."""
        await self.proxy.start()
        for number in (1, 2, 3):
            folder = self._folder / f"zookeeper-{number}"
            lines = self._lines(number)
            self.servers.append(ZooKeeper(self._tube, folder, lines, self._max_session_ms))
            (folder / "data").mkdir()
            (folder / "data" / "myid").write_text(str(number))
        for number, mode in ((3, ""), (2, "follower"), (1, "follower")):
            await asyncio.to_thread(self.servers[number - 1].start, mode)

    def _lines(self, number: int) -> str:
        seen = [list(ports) for ports in self._ports]
        if number == 1:
            seen[2][0] = self.proxy.port
        servers = (f"server.{n}={HOST}:{a}:{b}" for n, (a, b) in enumerate(seen, 1))
        # A server serves for 120 ticks, a minute, before it notices that it has lost the leader.
        return "\n".join(
            ["initLimit=20", "syncLimit=120", "4lw.commands.whitelist=srvr", *servers, ""]
        )

    async def stop(self) -> None:
        """Ends all of it."""
        for server in self.servers:
            server.stop()
        await self.proxy.close()
