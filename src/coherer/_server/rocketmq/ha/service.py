"""Replication of a broker, in whichever role it has."""

from __future__ import annotations

from typing import Final

from coherer import _net as net
from coherer._rules.rocketmq.routes import Master
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._server.rocketmq.ha.master import HaMaster
from coherer._server.rocketmq.ha.metadata import MetadataSync
from coherer._server.rocketmq.ha.slave import RETRY_S, HaSlave
from coherer._server.rocketmq.remoting_client import RemotingClient

SYNC_MASTER: Final = "SYNC_MASTER"


class Replicator:
    """The replication of a broker.

    A master of either kind serves slaves on its replication port (`make`); a SYNC_MASTER's sends
    wait for one. A slave follows the master that the name servers know (`found`).

    Args:
        broker: the broker; its options say which role it has.
        outgoing: connections to other servers; the caller closes it.
        tls: how a slave fetches the log secretly; None for plainly.
        retry_s: how long a slave waits before it connects again.

    Attributes:
        master: the master's side; None for a slave.
        slave: the slave's side; None for a master.
        metadata: what a slave knows besides the log; None for a master.
    """

    def __init__(
        self,
        broker: RocketBroker,
        outgoing: RemotingClient,
        *,
        tls: net.TlsOptions | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.master: HaMaster | None = None
        self.slave: HaSlave | None = None
        self.metadata: MetadataSync | None = None
        if broker.state.is_slave:
            self.slave = HaSlave(broker.core, tls=tls, retry_s=retry_s)
            self.metadata = MetadataSync(broker.core, outgoing, broker.delays.follow)
            return
        self.master = HaMaster(broker.core)
        if broker.state.options.role == SYNC_MASTER:
            broker.state.replication = self.master

    def start(self) -> None:
        """Begin to follow, as a slave."""
        if self.slave is not None and self.metadata is not None:
            self.slave.start()
            self.metadata.start()

    def make(self, connection: net.Connection) -> net.Receiver:
        """Serve a connection to the replication port: `net.listen(host, port, replicator.make)`.

        Raises:
            RuntimeError: this is a slave.
        """
        if self.master is None:
            raise RuntimeError("A slave has no replication port.")
        return self.master.make(connection)

    def found(self, master: Master) -> None:
        """A name server says where the master is; for a slave only."""
        if self.slave is not None and self.metadata is not None:
            self.slave.found(master.ha_address)
            if master.address:
                self.metadata.master = master.address

    def tick(self) -> None:
        """See to the time: call it every second or more often."""
        if self.master is not None:
            self.master.tick()
        if self.slave is not None:
            self.slave.tick()

    async def close(self) -> None:
        """End all connections."""
        if self.master is not None:
            self.master.close()
        if self.metadata is not None:
            await self.metadata.close()
        if self.slave is not None:
            await self.slave.close()
