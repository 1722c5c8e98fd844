"""The routes of a name server: registered brokers and their topics.

See docs/protocol/rocketmq.md, section 9.

* Only brokers register their topics. A registration contains all topics. It is applied only if its
  version differs from the known one, or the broker is new. Topics that are missing in it stay until
  they are deleted or the broker is removed (section 9.2).
* Only the master of a broker name (id 0) registers topics.
* An address is alive while it registers or asks whether it has to. After two minutes of silence, or
  when its connection ends, the address is removed. A name without addresses is removed with its
  topics; a name that still has a slave keeps them, so that they can be read (section 9.4).
* If an administrator restricts a topic's permission, that lasts until its broker registers with
  another version (section 9.5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from coherer._common.decoding import decoder
from coherer._common.logs import Log
from coherer._rules.common.java_json import DataVersion

_log = Log(logging.getLogger(__name__))

MASTER_ID: Final = 0
EXPIRE_MS: Final = 120_000
"""A broker that is silent for longer is removed."""

WRITABLE: Final = 2
READ_WRITE: Final = 6
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2


class QueueData(msgspec.Struct, frozen=True):
    """A topic's queues on one broker.

    Args:
        broker: the broker's name.
        read_queues: the number of queues for consumers.
        write_queues: the number of queues for producers.
        perm: 4 readable, 2 writable, 1 inherited by topics created from it.
        sys_flag: 1 unit, 2 unit subscription.
        managed: whether the broker has the topic from its TubeMQ master.
    """

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0
    managed: bool = False


class BrokerAddresses(msgspec.Struct):
    """The addresses of a broker name by id: its master (0) and slaves."""

    cluster: str
    name: str
    addresses: dict[int, str]


class Route(msgspec.Struct, frozen=True):
    """The route of a topic.

    Args:
        queues: per broker.
        brokers: their addresses.
        filter_servers: by address, as announced by brokers.
    """

    queues: list[QueueData]
    brokers: list[BrokerAddresses]
    filter_servers: dict[str, list[str]]


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's registration.

    Args:
        cluster: its cluster's name.
        broker: its name, shared with its slaves.
        broker_id: 0 for the master.
        address: host:port for clients.
        ha_address: host:port for slaves.
        version: of the topics.
        topics: its queues by topic; None leaves them unchanged.
        filter_servers: None leaves them unchanged.
        link: the connection of the registration.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] | None = None
    filter_servers: list[str] | None = None
    link: Hashable = None


class MasterAddress(msgspec.Struct, frozen=True):
    """The addresses of a slave's master."""

    address: str = ""
    ha_address: str = ""


class _Live(msgspec.Struct):
    seen_ms: int
    version: DataVersion
    link: Hashable
    ha_address: str


class RouteTable:
    """The brokers and topics of all clusters that register here.

    >>> table = RouteTable()
    >>> queues = QueueData("broker-a", 4, 4, READ_WRITE)
    >>> table.register(
    ...     BrokerRegistration(cluster="c", broker="broker-a", broker_id=0,
    ...                        address="10.0.0.1:10911", topics={"flights": queues}), now_ms=0)
    MasterAddress(address='', ha_address='')
    >>> table.route("flights").brokers[0].addresses
    {0: '10.0.0.1:10911'}
    >>> table.expire(now_ms=EXPIRE_MS + 1), table.route("flights")
    ([None], None)
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerAddresses] = {}
        self._clusters: dict[str, dict[str, None]] = {}  # a set that keeps its order
        self._live: dict[str, _Live] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._followed: Collection[str] = ()
        self._registered: Callable[[BrokerRegistration], None] = _ignore
        self._complete: Callable[[], None] = _nothing

    # -- registrations

    def before_queries(self, complete: Callable[[], None]) -> None:
        """Set a function that is called before topics are looked up: it may register a broker."""
        self._complete = complete

    def follow(
        self, brokers: Collection[str], registered: Callable[[BrokerRegistration], None]
    ) -> None:
        """Treat the registrations of these brokers as complete, and report their changes.

        Topics that are missing in their registrations are removed at once.

        Args:
            brokers: their names.
            registered: called with each of their registrations that changes something.
        """
        self._followed, self._registered = brokers, registered

    def register(self, registration: BrokerRegistration, now_ms: int) -> MasterAddress:
        """Register a broker. Returns, for a slave, the addresses of its master."""
        self._clusters.setdefault(registration.cluster, {})[registration.broker] = None
        first = self._take_address(registration)
        known = self._live.get(registration.address)
        news = first or known is None or known.version != registration.version
        if registration.broker_id == MASTER_ID and news:
            for topic, queues in (registration.topics or {}).items():
                self._put(topic, queues)
            if registration.broker in self._followed and registration.topics is not None:
                kept = registration.topics.keys()
                self.drop(registration.broker, self._topics_of(registration.broker) - kept)
                self._registered(registration)
        self._live[registration.address] = _Live(
            now_ms, registration.version, registration.link, registration.ha_address
        )
        if registration.filter_servers:
            self._filter_servers[registration.address] = registration.filter_servers
        elif registration.filter_servers is not None:
            self._filter_servers.pop(registration.address, None)
        return self._master_of(registration)

    def unregister(self, broker: str, broker_id: int, address: str) -> None:
        """Remove a broker."""
        self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        known = self._brokers.get(broker)
        if known is None:
            return
        known.addresses.pop(broker_id, None)
        if not known.addresses:
            self._forget(broker)

    def unchanged(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """Whether a broker's topics have this version; if so, this is a heartbeat."""
        known = self._live.get(address)
        if known is None or known.version != version:
            return False
        known.seen_ms = now_ms
        return True

    def version(self, address: str) -> DataVersion | None:
        """The known version of a broker's topics."""
        known = self._live.get(address)
        return None if known is None else known.version

    # -- expiry

    def expire(self, now_ms: int) -> list[Hashable]:
        """Remove silent brokers. Returns their connections, to be closed."""
        late = [
            address for address, live in self._live.items() if live.seen_ms + EXPIRE_MS < now_ms
        ]
        links = [self._live[address].link for address in late]
        for address in late:
            self._remove(address)
        return links

    def lost(self, link: Hashable, peer: str) -> None:
        """Remove the broker of a closed connection; `peer` is the connection's other end."""
        found = (address for address, live in self._live.items() if live.link is link)
        self._remove(next(found, peer))

    # -- queries

    def route(self, topic: str) -> Route | None:
        """The route of a topic; None if no broker has it."""
        self._complete()
        queues = list(self._topics.get(topic, {}).values())
        brokers = [
            BrokerAddresses(found.cluster, found.name, dict(found.addresses))
            for found in (self._brokers.get(data.broker) for data in queues)
            if found is not None
        ]
        if not brokers:
            return None
        servers = {
            address: self._filter_servers[address]
            for broker in brokers
            for address in broker.addresses.values()
            if address in self._filter_servers
        }
        return Route(queues, brokers, servers)

    @property
    def brokers(self) -> Mapping[str, BrokerAddresses]:
        """Addresses by broker name."""
        return self._brokers

    @property
    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def topics(self) -> list[str]:
        """All topics."""
        self._complete()
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster's brokers."""
        self._complete()
        names = self._clusters.get(cluster, {}).keys()
        return [topic for topic, queues in self._topics.items() if queues.keys() & names]

    def topics_with(self, flags: int, without: int = 0) -> list[str]:
        """The topics whose first broker set the one and not the other flags (section 9.7)."""
        self._complete()
        return [
            topic
            for topic, first in self._first_queues()
            if first.sys_flag & flags and not first.sys_flag & without
        ]

    # -- administration

    def set_writable(self, broker: str, *, writable: bool) -> int:
        """Allow or forbid sends to a broker. Returns the number of its topics."""
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker)
            if data is not None:
                # Opening does not restore the inherit bit, as in 4.9 (section 9.5).
                perm = READ_WRITE if writable else data.perm & ~WRITABLE
                queues[broker] = msgspec.structs.replace(data, perm=perm)
                count += 1
        return count

    def drop(self, broker: str, topics: Iterable[str]) -> None:
        """Remove topics that a broker of this process has deleted."""
        for topic in topics:
            queues = self._topics.get(topic, {})
            queues.pop(broker, None)
            if not queues:
                self._topics.pop(topic, None)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic; the next changed registration of its broker adds it again."""
        self._topics.pop(topic, None)

    # -- inside

    def _put(self, topic: str, data: QueueData) -> None:
        """Set a topic's queues on a broker; as in Java, what has changed goes to the end."""
        queues = self._topics.setdefault(topic, {})
        if queues.get(data.broker) != data:
            queues.pop(data.broker, None)
            queues[data.broker] = data

    def _topics_of(self, broker: str) -> set[str]:
        return {topic for topic, queues in self._topics.items() if broker in queues}

    def _first_queues(self) -> Iterator[tuple[str, QueueData]]:
        for topic, queues in self._topics.items():
            for data in queues.values():
                yield topic, data
                break

    def _take_address(self, registration: BrokerRegistration) -> bool:
        """Returns whether the broker name, or its id, is new."""
        broker = self._brokers.get(registration.broker)
        if broker is None:
            broker = self._brokers[registration.broker] = BrokerAddresses(
                registration.cluster, registration.broker, {}
            )
        for broker_id, address in list(broker.addresses.items()):
            # The address has another id now: a slave has become the master, or vice versa.
            if address == registration.address and broker_id != registration.broker_id:
                del broker.addresses[broker_id]
        self._warn_of_two_masters(broker, registration)
        first = registration.broker_id not in broker.addresses
        broker.addresses[registration.broker_id] = registration.address
        return first

    def _warn_of_two_masters(
        self, broker: BrokerAddresses, registration: BrokerRegistration
    ) -> None:
        before = broker.addresses.get(MASTER_ID)
        is_new = registration.broker_id == MASTER_ID and before != registration.address
        if is_new and before in self._live:
            _log.warning(
                "Broker %s: %s registers as the master, and %s has not left. If both run, they "
                "give out the same offsets for different messages: stop one of them",
                broker.name,
                registration.address,
                before,
                about=broker.name,
            )

    def _master_of(self, registration: BrokerRegistration) -> MasterAddress:
        address = self._brokers[registration.broker].addresses.get(MASTER_ID)
        live = self._live.get(address or "")
        if registration.broker_id == MASTER_ID or address is None or live is None:
            return MasterAddress()
        return MasterAddress(address, live.ha_address)

    def _remove(self, address: str) -> None:
        self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        for broker in list(self._brokers.values()):
            for broker_id, known in list(broker.addresses.items()):
                if known == address:
                    del broker.addresses[broker_id]
                    if not broker.addresses:
                        self._forget(broker.name)
                    return

    def _forget(self, broker: str) -> None:
        self._brokers.pop(broker, None)
        # Java leaves it in the clusters that it had before another one.
        for cluster, names in list(self._clusters.items()):
            names.pop(broker, None)
            if not names:
                del self._clusters[cluster]
        for topic, queues in list(self._topics.items()):
            queues.pop(broker, None)
            if not queues:
                del self._topics[topic]


def _nothing() -> None:
    """Do nothing, because all brokers are registered."""


def _ignore(registration: BrokerRegistration) -> None:
    """Do nothing, because no broker is followed."""


class KeyValueTable:
    """The key-value configuration of a name server, by namespace (section 9.6).

    >>> table = KeyValueTable()
    >>> table.put("ORDER_TOPIC_CONFIG", "flights", "broker-a:4")
    >>> table.get("ORDER_TOPIC_CONFIG", "flights"), table.get("ORDER_TOPIC_CONFIG", "x")
    ('broker-a:4', None)
    >>> table.remove("ORDER_TOPIC_CONFIG", "flights")
    >>> table.namespace("ORDER_TOPIC_CONFIG"), table.namespace("other")
    ({}, None)
    """

    def __init__(self, table: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = {name: dict(values) for name, values in (table or {}).items()}

    @classmethod
    def load(cls, data: bytes) -> KeyValueTable:
        """Read kvConfig.json.

        Raises:
            msgspec.DecodeError: it is invalid.
        """
        return cls(decoder(_KeyValueFile).decode(data).table)

    def dump(self) -> bytes:
        """The content of kvConfig.json, as Java writes it."""
        return msgspec.json.encode(_KeyValueFile(self._table))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """A value, or None."""
        return self._table.get(namespace, {}).get(key)

    def remove(self, namespace: str, key: str) -> None:
        """Remove a value. Its namespace stays, even if it is empty."""
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, name: str) -> Mapping[str, str] | None:
        """All values of a namespace, or None if it does not exist."""
        return self._table.get(name)


class _KeyValueFile(msgspec.Struct, rename={"table": "configTable"}):
    table: dict[str, dict[str, str]]
