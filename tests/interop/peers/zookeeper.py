"""A ZooKeeper server, from the jars of Java's TubeMQ."""

from __future__ import annotations

from pathlib import Path

from .cache import JavaSystem
from .java import HOST
from .process import Child, free_ports, listens

MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
START_TIMEOUT_S = 120.0
TICK_MS = 500


class ZooKeeper:
    """One server; restarted on the same folder and port by `start` after `stop`.

    Args:
        tube: the Java system that has its jars.
        folder: where it keeps everything.
    """

    def __init__(self, tube: JavaSystem, folder: Path) -> None:
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
maxSessionTimeout=20000
""")
        self.child: Child | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = self._tube.command("Leash", MAIN, str(self._config), heap_mb=128, log="warn")
        self.child = Child("zookeeper", command, self._folder)
        self.child.wait_for(lambda: listens(self.port, HOST), START_TIMEOUT_S, "listening port")

    def stop(self) -> None:
        """Ends it."""
        if self.child is not None:
            self.child.stop(grace_s=0)
            self.child = None
