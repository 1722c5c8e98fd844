"""Our master and our brokers as processes of their own, like Java's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .java import HOST, TOKEN, WebApi, broker_host
from .process import Child, free_ports, listens

NODE_MAIN = Path(__file__).parent / "node_main.py"
START_TIMEOUT_S = 120.0
LEASE_MS = 20_000  # as the Java brokers here


def start_node(name: str, folder: Path, host: str, **options: object) -> Child:
    """A process with a node of ours; the options are those of `NodeOptions`, and `topics`."""
    folder.mkdir(parents=True, exist_ok=True)
    given = json.dumps({"directory": str(folder / "data"), "host": host, **options})
    return Child(name, [sys.executable, str(NODE_MAIN), given], folder)


class OurMaster:
    """Our master.

    Args:
        folder: where it keeps everything.
        balance_ms: how often groups are balanced.
        consumer_timeout_ms: after how much silence a consumer is taken for dead.
    """

    def __init__(
        self, folder: Path, *, balance_ms: int = 500, consumer_timeout_ms: int = 30_000
    ) -> None:
        self.port, self.web_port = free_ports(2)
        self.address = f"{HOST}:{self.port}"
        self.web = WebApi(self.web_port, TOKEN)
        self.child = start_node(
            "our-master",
            folder,
            HOST,
            roles=["master"],
            master_port=self.port,
            admin_port=self.web_port,
            balance_period_ms=balance_ms,
            client_timeout_ms=consumer_timeout_ms,
            auto_create_topics=False,
            admin_token=TOKEN,
        )

    def wait(self) -> None:
        """Until it takes configuration."""
        self.child.wait_for(self.web.answers, START_TIMEOUT_S, "answer on HTTP")

    def stop(self) -> None:
        """Ends it."""
        self.child.stop(grace_s=0)


class OurBroker:
    """Our broker; restarted on the same folder and ports by `start` after `crash`.

    Args:
        folder: where it keeps everything.
        broker_id: its number at the master.
        master: the master's host:port, Java's or ours.
    """

    def __init__(self, folder: Path, broker_id: int, master: str, **options: object) -> None:
        self.folder = folder
        self.broker_id = broker_id
        self.host = broker_host(broker_id)
        self.port, self.web_port = free_ports(2)
        self._master = master
        self._options = options
        self.child: Child | None = None

    def add_to(self, web: WebApi) -> None:
        """Makes it known to its master, before its first start."""
        web.add_broker(self.broker_id, self.host, self.port, self.web_port)

    def start(self) -> None:
        """Starts the process; `wait` waits for it."""
        self.child = start_node(
            f"our-broker-{self.broker_id}",
            self.folder,
            self.host,
            roles=["broker"],
            broker_id=self.broker_id,
            broker_port=self.port,
            admin_port=self.web_port,
            master=f"tubemq://{self._master}",
            lease_timeout_ms=LEASE_MS,
            admin_token=TOKEN,
            **self._options,
        )

    def wait(self) -> None:
        """Until its port is open."""
        assert self.child is not None
        self.child.wait_for(
            lambda: listens(self.port, self.host), START_TIMEOUT_S, "listening port"
        )

    def crash(self) -> None:
        """SIGKILL: what it acknowledged is in the kernel's hands."""
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        if self.child is not None:
            self.child.stop(grace_s=0)
