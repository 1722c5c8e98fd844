"""The replication of a broker in either role, master or slave."""

from __future__ import annotations

from typing import Final

from coherer import _net as net
from coherer._common.upkeep import Upkeep
from coherer._rules.rocketmq.routes import MasterAddress
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._server.rocketmq.ha.master import HaMaster
from coherer._server.rocketmq.ha.signing import Door
from coherer._server.rocketmq.ha.slave import HaSlave, MetadataSync
from coherer._server.rocketmq.remoting_client import RemotingClient

SYNC_MASTER: Final = "SYNC_MASTER"


class Replicator:
    """The replication of a broker.

    A master serves slaves on its replication port (`make`); the sends of a SYNC_MASTER wait for
    one. A slave follows the master that the name servers report (`found`).

    Args:
        outgoing: connections to other servers; the caller closes it.
        account: name and secret with which a slave signs; None for none.
        access: the accounts of a master whose slaves must sign; None without.
        tls: how a slave's connection for the log is encrypted; None for a plain one.

    Attributes:
        master: the master's side; None for a slave.
        slave: the slave's side; None for a master.
        metadata: copies topics, groups and offsets to a slave; None for a master.
    """

    def __init__(
        self,
        broker: RocketBroker,
        outgoing: RemotingClient,
        *,
        account: tuple[str, str] | None = None,
        access: Access | None = None,
        tls: net.TlsOptions | None = None,
    ) -> None:
        self._access = access
        self._now_ms = broker.core.lease_ms
        self._doors: set[Door] = set()
        self.master: HaMaster | None = None
        self.slave: HaSlave | None = None
        self.metadata: MetadataSync | None = None
        if broker.state.is_slave:
            self.metadata = MetadataSync(broker.core, outgoing, broker.delays.follow)
            self.slave = HaSlave(
                broker.core,
                account=account,
                tls=tls,
                log_of_master=self.metadata.log_of_master,
            )
            return
        self.master = HaMaster(broker.core)
        if broker.state.options.role == SYNC_MASTER:
            broker.state.replicated_to = self.master.safe

    def start(self) -> None:
        """Start to follow the master, as a slave; tell slaves what they must know, as a master."""
        if self.master is not None:
            self.master.tell_gap()
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
        access = self._access
        if access is None or access.trusts(connection.peer_host):
            return self.master.make(connection)
        door = Door(connection, access.passwords.get, self.master.make, self._now_ms())
        self._doors.add(door)
        return door

    def found(self, master: MasterAddress) -> None:
        """Take the master's addresses from a name server; a master ignores them."""
        if self.slave is not None and self.metadata is not None:
            self.metadata.found(master.address)
            self.slave.found(master.ha_address)

    def tick(self) -> None:
        """Check timeouts; call it every second or more often."""
        if self.master is not None:
            self.master.tick()
        if self.slave is not None:
            self.slave.tick()
        now_ms = self._now_ms()
        self._doors = {door for door in self._doors if door.is_waiting(now_ms)}

    def upkeeps(self) -> list[Upkeep]:
        """The steps of a slave, which run by themselves."""
        if self.slave is None or self.metadata is None:
            return []
        return [self.slave.upkeep, self.metadata.upkeep]

    async def close(self) -> None:
        """Close all connections."""
        for door in self._doors:
            door.connection.close()
        if self.master is not None:
            self.master.close()
        if self.metadata is not None:
            await self.metadata.close()
        if self.slave is not None:
            await self.slave.close()
