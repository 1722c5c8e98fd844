"""A master and its slave, of our kind or Java's, with Java's clients."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Self

from tests.private import write_private

from .process import free_ports
from .rocket_site import Broker, Client, Cluster, OurRocket, RocketSite
from .rocketmq import JavaRocketBroker, home_of

SEGMENT_BYTES = 1024 * 1024
QUEUES = 2
PAIRS = [("java", "ours"), ("ours", "java"), ("ours", "ours")]

ACCOUNT = {"access_key": "operator", "secret_key": "operator-secret"}
TOOLS = "accessKey: operator\nsecretKey: operator-secret\n"
ACCOUNTS = """\
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""

_NUMBERS = itertools.count(1)


class Pair:
    """A name server, a master, and a slave that may come later.

    Args:
        site: the peers.
        kinds: the master's, the slave's.
        folder: for their files.
        sync: the master's sends wait for the slave.
        accounts: both serve accounts only, and the slave has one of them.
    """

    def __init__(
        self,
        site: RocketSite,
        kinds: tuple[str, str],
        folder: Path,
        *,
        sync: bool = False,
        accounts: bool = False,
    ) -> None:
        self.site = site
        self._kinds = kinds
        self._folder = folder
        self._accounts = accounts
        self.name = f"pair{next(_NUMBERS)}"
        self.topic = f"{self.name}-topic"
        self.namesrv = site.names("java" if kinds[0] == "java" else "ours")
        self.master = self._broker(kinds[0], "SYNC_MASTER" if sync else "ASYNC_MASTER")
        self.slave: Broker | None = None
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop()

    def _start(self) -> None:
        """Start the master, and make the topic."""
        self.master.start()
        self.master.wait()
        tools = self.client("admin")
        queues = ["-r", str(QUEUES), "-w", str(QUEUES)]
        where = ["-b", self.master.address]
        tools("run", arguments=["updateTopic", *where, "-t", self.topic, *queues])

    def follow(self) -> Broker:
        """Start the slave."""
        self.slave = self._broker(self._kinds[1], "SLAVE")
        self.slave.start()
        self.slave.wait()
        return self.slave

    def client(self, kind: str, **parameters: object) -> Client:
        """A Java client of both."""
        cluster = Cluster(self.name, self.namesrv, self.master)
        account = ACCOUNT if self._accounts else {}
        self._clients.append(self.site.client(cluster, kind, "java", **parameters, **account))
        return self._clients[-1]

    def _stop(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for broker in (self.slave, self.master):
            if broker is not None:
                broker.kill()

    def _broker(self, kind: str, role: str) -> Broker:
        folder, number = self._folder / role, int(role == "SLAVE")
        if kind == "java":
            java = JavaRocketBroker(
                self.site.java,
                folder,
                self.namesrv,
                name=self.name,
                broker_id=number,
                settings={
                    "mappedFileSizeCommitLog": SEGMENT_BYTES,
                    "brokerRole": role,
                    "aclEnable": str(self._accounts).lower(),
                },
            )
            self._write_accounts(home_of(folder) / "conf")
            return java
        self._write_accounts(folder / "data" / "conf")
        (ha_port,) = free_ports(1)  # the same when it is started again
        broker = OurRocket(
            folder,
            namesrv=self.namesrv,
            broker_name=self.name,
            role=role,
            rocketmq_broker_id=number,
            ha_port=None if number else ha_port,
            segment_bytes=SEGMENT_BYTES,
            rocketmq_access=self._accounts,
        )
        broker.name = self.name
        return broker

    def _write_accounts(self, conf: Path) -> None:
        if self._accounts:
            conf.mkdir(parents=True, exist_ok=True)
            write_private(conf / "plain_acl.yml", ACCOUNTS)
            write_private(conf / "tools.yml", TOOLS)

    def slave_has(self, offset: int) -> bool:
        """Whether the slave's log goes at least so far."""
        return self.slave is not None and log_end(self.slave) >= offset


def directory_of(broker: Broker) -> Path:
    """Where a broker's files are."""
    return broker.store if isinstance(broker, JavaRocketBroker) else broker.folder / "data"


def log_end(broker: Broker) -> int:
    """Where a log ends: behind the last byte of its files that is not zero, about."""
    files = (directory_of(broker) / "commitlog").glob("[0-9]*")
    held: dict[int, int] = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a slave that begins again deletes its files
            held[int(file.name)] = len(file.read_bytes().rstrip(b"\0"))
    return max([begin + size for begin, size in held.items() if size], default=0)
