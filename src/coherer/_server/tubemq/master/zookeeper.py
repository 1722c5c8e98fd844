"""Several TubeMQ masters: their election, and their metadata, in ZooKeeper.

See docs/protocol/tubemq.md, sections 7.1 and 7.2.

**Election**, by Java's rule: each master has an ephemeral sequential node `masterHA/nodeId:NUMBER`
below the root; the lowest number is active. Its data is `host:port:coherer:ADMIN_PORT`. That of
Java's masters is `host:port`, so they are recognized, and refused.

**A master acts only while no other can.** A session cannot expire before its timeout has passed
since the beginning of the last write that ZooKeeper has accepted. The active master writes its node
several times within that period, and acts only for two thirds of it (`Election.may_act`, which is
checked at every request). So it stops before ZooKeeper removes its node, even if it loses its
network, or its process is paused. A read would prove nothing: a server that has lost the others
answers it from its memory, for some seconds, while they have removed the node. And the timeout is
the one that ZooKeeper has granted, which is shorter than the one asked for if its
`maxSessionTimeout` is.

**Metadata** is at Java's paths, one node per record: `metaData/topicDeployConfig/1:flights`. The
records are Coherer's own JSON. `metaData/coherer` holds the members of groups, which Java does
not keep. Each write is a transaction that checks the version of `metaData/coherer/epoch`, which
each new active master increases. So a write of a formerly active master fails, whatever its clock
says.

kazoo's calls block, so they run in threads: the election has its own, writes use that of
the `DeferredSaver`.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec

from coherer._common import machine
from coherer._common.logs import Log
from coherer.errors import CohererError, DamagedStoreError, StoreError, UsageError

_log = Log(logging.getLogger(__name__))

DEFAULT_ROOT: Final = "/coherer"
MARK: Final = "coherer"
NODE: Final = "nodeId:"
ACT_SHARE: Final = 2 / 3
"""The share of the session's timeout for which a master may act after it has written its node.

A follower of ZooKeeper reports every half tick who is alive, and a timeout has at least two ticks.
So the leader may count from a quarter of the timeout earlier, and clocks may differ by a tenth.
"""
CHECKS: Final = 6
"""The least number of checks within a session's timeout."""

_TERM_BYTES: Final = 8
_TRANSACTION_BYTES: Final = 512 * 1024
"""The size of a transaction; ZooKeeper accepts up to 1 MiB."""
_TRANSACTION_NODES: Final = 500

_KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "brokers": ("brokerConfig", ("id",)),
    "topics": ("topicDeployConfig", ("broker", "topic")),
    "topic_controls": ("topicCtrlConfig", ("topic",)),
    "group_controls": ("groupCtrlConfig", ("group",)),
    "consume_controls": ("consumeCtrlConfig", ("topic", "group")),
}
"""The lists of the catalog: the path of their records, and the fields of their key.

Brokers come first: a topic is on a broker.
"""
_CLUSTER: Final = "clusterConfig/default_cluster_config"
_OTHER: Final = "coherer/members"
_EPOCH: Final = "coherer/epoch"


def records(content: bytes) -> dict[str, bytes]:
    """The nodes below `metaData` for the content of a master's file.

    >>> found = records(b'{"catalog":{"cluster":{},"brokers":[{"id":1}],"topics":[]},"roll":{}}')
    >>> list(found)
    ['clusterConfig/default_cluster_config', 'brokerConfig/1', 'coherer/members']
    >>> content_of(found)
    b'{"roll":{},"catalog":{"cluster":{},"brokers":[{"id":1}],"topics":[],"topic_controls":[],\
"group_controls":[],"consume_controls":[]}}'
    """
    saved: dict[str, Any] = msgspec.json.decode(content)
    catalog: dict[str, Any] = saved.pop("catalog")
    found = {_CLUSTER: msgspec.json.encode(catalog["cluster"])}
    for name, (path, keys) in _KINDS.items():
        for record in catalog.get(name, ()):
            key = ":".join(str(record[part]) for part in keys)
            found[f"{path}/{key}"] = msgspec.json.encode(record)
    found[_OTHER] = zlib.compress(msgspec.json.encode(saved), 1)
    return found


def in_term(term: int, content: bytes) -> bytes:
    """The content of a master's file, marked with the term in which it was made."""
    return term.to_bytes(_TERM_BYTES) + content


def content_of(nodes: Mapping[str, bytes]) -> bytes:
    """The content of a master's file, from the nodes below `metaData`.

    Raises:
        DamagedStoreError: a node is invalid.
    """
    try:
        other = zlib.decompress(nodes[_OTHER]) if _OTHER in nodes else b"{}"
        saved = msgspec.json.decode(other, type=dict[str, object])
        catalog: dict[str, object] = {"cluster": msgspec.Raw(nodes.get(_CLUSTER, b"{}"))}
        for name, (path, _) in _KINDS.items():
            catalog[name] = [
                msgspec.Raw(value)
                for key, value in sorted(nodes.items())
                if key.startswith(f"{path}/")
            ]
        return msgspec.json.encode({**saved, "catalog": catalog})
    except (zlib.error, msgspec.DecodeError) as error:
        raise DamagedStoreError(f"The metadata in ZooKeeper cannot be read: {error}.") from error


def now_s() -> float:
    """A monotonic clock that goes on while the machine sleeps, where the system has one."""
    return machine.ticks_ns() / 1e9


class ElectionListener(Protocol):
    """Receives the events of an election, in the thread of the election."""

    def check(self, content: bytes) -> None:
        """Raise DamagedStoreError if the saved content is invalid."""

    def elected(self, content: bytes | None, term: int) -> None:
        """This master is active from now on; the content is None if nothing was saved before."""

    def demoted(self) -> None:
        """This master is a standby from now on."""

    def leader_changed(self, admin_address: str | None) -> None:
        """Another master is active; None if the port of its administration is unknown."""


class Lease:
    """How long a master may act.

    Args:
        timeout_s: the session's timeout.
        now_s: a monotonic clock.

    Attributes:
        timeout_s: the session's timeout, which may change. A longer one counts from the next
            renewal on: it may be that of another session.

    >>> times_s = [0.0]
    >>> lease = Lease(3.0, lambda: times_s[-1])
    >>> lease.renew(0.0)
    >>> times_s.append(1.75)
    >>> lease.holds
    True
    >>> times_s.append(2.25)
    >>> lease.holds
    False
    >>> lease.timeout_s = 30.0
    >>> lease.holds
    False
    """

    def __init__(self, timeout_s: float, now_s: Callable[[], float] = now_s) -> None:
        self.timeout_s = timeout_s
        self._now_s = now_s
        self._asked_s, self._renewed_for_s = float("-inf"), timeout_s

    def renew(self, asked_s: float) -> None:
        """Extend the lease: ZooKeeper has accepted a write that began at this time."""
        self._asked_s, self._renewed_for_s = asked_s, self.timeout_s

    def end(self) -> None:
        """End the lease: the master may no longer act."""
        self._asked_s = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether the master may act now."""
        for_s = min(self._renewed_for_s, self.timeout_s) * ACT_SHARE
        return self._now_s() < self._asked_s + for_s


class Election:
    """Takes part in the election of the active master, and keeps its metadata.

    Args:
        servers: host:port of ZooKeeper's servers, separated by commas; a path after them is the
            root of the ensemble of masters.
        address: host:port of this master for clients.
        admin_port: the port of its HTTP administration; 0 without one.
        session_ms: the session's timeout; ZooKeeper may grant another one.
        listener: receives the events of the election.

    Raises:
        UsageError: kazoo is not installed.
    """

    def __init__(
        self,
        servers: str,
        address: str,
        admin_port: int,
        session_ms: int,
        listener: ElectionListener,
    ) -> None:
        self._kazoo = _kazoo()
        hosts, slash, path = servers.partition("/")
        self._root = f"/{path.strip('/')}" if slash and path.strip("/") else DEFAULT_ROOT
        self._hosts = hosts
        self._address = address
        self._data = f"{address}:{MARK}:{admin_port}".encode()
        self._wanted_s = session_ms / 1000
        self._listener = listener
        self._lease = Lease(self._wanted_s)
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._stopped = self._active = self._failed = False
        self._own = self._leader = ""
        self._term = 0
        self._epoch_version = -1
        self._written: dict[str, bytes] = {}
        self._client: Any = None
        self._thread = threading.Thread(target=self._run, name="coherer-zookeeper", daemon=True)

    def __repr__(self) -> str:
        return f"<Election {self._address} at {self._hosts}{self._root}>"

    @property
    def may_act(self) -> bool:
        """Whether this master is active, and no other can be."""
        return self._active and self._lease.holds

    @property
    def session_s(self) -> float:
        """The session's timeout that counts: the wanted one, or a shorter one that was granted."""
        return self._lease.timeout_s

    @property
    def epoch(self) -> int:
        """The number of this master's last election, among those of all masters; -1 before."""
        return self._epoch_version

    def start(self) -> None:
        """Connect to ZooKeeper, and join the election.

        Raises:
            UsageError: Java's masters use the same root.
            CohererError: ZooKeeper does not answer.
        """
        client = self._kazoo.client.KazooClient(
            hosts=self._hosts,
            timeout=self._wanted_s,
            connection_retry={"max_tries": -1, "max_delay": self._wanted_s / 4, "delay": 0.05},
            command_retry={"max_tries": 0},
        )
        client.add_listener(self._changed)
        _tell_timeout(client, self._granted)
        try:
            client.start(timeout=max(self._wanted_s, 10.0))
            for path in (self._ha, f"{self._meta}/{_EPOCH}"):
                client.ensure_path(path)
            self._refuse_java(client)
        except UsageError:
            _close(client)
            raise
        except Exception as error:
            _close(client)
            raise CohererError(
                f"ZooKeeper at {self._hosts} does not answer: {error!r}.",
                hint="Start it, or correct the addresses in `zookeeper`.",
            ) from error
        self._client = client
        self._thread.start()

    def close(self) -> None:
        """Leave the election; the next master becomes active at once."""
        self._stopped = True
        self._wake.set()
        if self._client is not None:
            self._thread.join()
            _close(self._client)
            self._client = None

    # -- metadata

    def save(self, name: str, content: bytes) -> None:
        """Write the changes since the last write; the `write` of a `DeferredSaver`.

        Args:
            name: the name of the file that a single master has.
            content: the content of that file, marked with the term (`in_term`).

        Raises:
            StoreError: ZooKeeper does not answer, or another master has become active.
        """
        del name
        with self._guard:
            if int.from_bytes(content[:_TERM_BYTES]) != self._term or not self._active:
                raise StoreError("This master is not active, and must not change the metadata.")
            new = records(content[_TERM_BYTES:])
            changed = {path: data for path, data in new.items() if self._written.get(path) != data}
            gone = [path for path in self._written if path not in new]
            for some, without in _parts(changed, gone):
                self._commit(some, without)
                self._written.update(some)
                for path in without:
                    del self._written[path]

    def _commit(self, changed: Mapping[str, bytes], gone: Iterable[str]) -> None:
        transaction = self._client.transaction()
        transaction.check(f"{self._meta}/{_EPOCH}", self._epoch_version)
        for path, data in changed.items():
            if path in self._written:
                transaction.set_data(f"{self._meta}/{path}", data)
            else:
                transaction.create(f"{self._meta}/{path}", data)
        for path in gone:
            transaction.delete(f"{self._meta}/{path}")
        try:
            results = transaction.commit()
        except Exception as error:
            self._require_reload()
            raise StoreError(f"ZooKeeper has not stored the metadata: {error!r}.") from error
        failed = [one for one in results if isinstance(one, Exception)]
        if failed:
            self._require_reload()
            if isinstance(results[0], self._kazoo.exceptions.BadVersionError):
                raise StoreError("Another master has become active.")
            raise StoreError(f"ZooKeeper has refused the metadata: {failed[0]!r}.")

    def _require_reload(self) -> None:
        """Read the metadata again: after a failed write the content of ZooKeeper is unknown."""
        self._lease.end()
        self._failed = True
        self._wake.set()

    def _load(self) -> bytes | None:
        """Increase the epoch, so that later writes of other masters fail, then read all records."""
        client = self._client
        stat = client.set(f"{self._meta}/{_EPOCH}", self._address.encode())
        self._epoch_version = stat.version
        nodes = dict(self._nodes())
        self._written = nodes
        return content_of(nodes) if nodes else None

    def _nodes(self) -> Iterator[tuple[str, bytes]]:
        for folder in {*(path for path, _ in _KINDS.values()), "clusterConfig"}:
            self._client.ensure_path(f"{self._meta}/{folder}")
            names = [f"{folder}/{name}" for name in self._client.get_children(self._at(folder))]
            waiting = [(name, self._client.get_async(self._at(name))) for name in names]
            for name, answer in waiting:
                yield name, answer.get(timeout=self._wanted_s)[0]
        if self._client.exists(self._at(_OTHER)):
            yield _OTHER, self._client.get(self._at(_OTHER))[0]

    def _at(self, path: str) -> str:
        return f"{self._meta}/{path}"

    @property
    def _ha(self) -> str:
        return f"{self._root}/masterHA"

    @property
    def _meta(self) -> str:
        return f"{self._root}/metaData"

    # -- election

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                self._check()
            except Exception as error:  # noqa: BLE001 - any failure means that it may not act
                _log.warning("ZooKeeper at %s: %r", self._hosts, error, about=self._hosts)
                if not self._lease.holds:
                    self._become_standby("ZooKeeper does not answer")
            self._wake.wait(self.session_s / CHECKS)
        self._become_standby("this master is stopping")

    def _check(self) -> None:
        """Check whether the node of this master exists, and has the lowest number."""
        client = self._client
        if self._failed:
            self._failed = False
            self._become_standby("the metadata could not be written")
        if not client.connected:
            if not self._lease.holds:
                self._become_standby("there is no connection to ZooKeeper")
            return
        asked_s = now_s()
        children = client.get_children(self._ha, watch=self._watch)
        if self._own not in children:
            self._become_standby("the session with ZooKeeper has ended")
            self._join()
            asked_s = now_s()
            children = client.get_children(self._ha, watch=self._watch)
        leader = min(children, key=_number)
        if leader != self._own:
            self._become_standby("another master has a lower number")
            self._follow(leader)
        elif self._active:
            client.set(f"{self._ha}/{self._own}", self._data)
            self._lease.renew(asked_s)
        else:
            self._refuse_java(client)
            self._become_active(asked_s)

    def _join(self) -> None:
        client = self._client
        stale = [
            f"{self._ha}/{name}"
            for name in client.get_children(self._ha)
            if client.get(f"{self._ha}/{name}")[1].ephemeralOwner == client.client_id[0]
        ]
        for path in stale:  # created by a request whose answer was lost
            client.delete(path)
        path = client.create(f"{self._ha}/{NODE}", self._data, ephemeral=True, sequence=True)
        self._own = path.rpartition("/")[2]

    def _follow(self, leader: str) -> None:
        if leader != self._leader:
            data = self._client.get(f"{self._ha}/{leader}")[0].decode()
            host, admin_port = data.partition(":")[0], data.rpartition(":")[2]
            known = admin_port.isdecimal() and admin_port != "0"
            self._listener.leader_changed(f"{host}:{admin_port}" if known else None)
            self._leader = leader

    def _become_active(self, asked_s: float) -> None:
        with self._guard:
            content = self._load()
            if content is not None:
                self._listener.check(content)
            self._term += 1
            self._active = True
        self._leader = self._own
        self._lease.renew(asked_s)
        _log.plain.warning("%s is the active master now", self._address)
        self._listener.elected(content, self._term)

    def _become_standby(self, reason: str) -> None:
        self._lease.end()
        if self._active:
            self._active = False
            _log.plain.warning("%s is a standby now: %s", self._address, reason)
            self._listener.demoted()

    def _refuse_java(self, client: Any) -> None:
        for name in client.get_children(self._ha):
            try:
                data = client.get(f"{self._ha}/{name}")[0].decode()
            except self._kazoo.exceptions.NoNodeError:
                continue
            if f":{MARK}:" not in data:
                raise UsageError(
                    f"{data} at {self._hosts}{self._root} is not a Coherer master: Java's masters "
                    "keep other records, so that both cannot form one ensemble.",
                    hint="Give Coherer's masters a path of their own in `zookeeper`, such as "
                    f"{self._hosts}{DEFAULT_ROOT}.",
                )

    def _watch(self, event: object) -> None:
        del event
        self._wake.set()

    def _changed(self, state: object) -> None:
        del state
        self._wake.set()

    def _granted(self, timeout_s: float) -> None:
        if timeout_s < self._wanted_s:
            _log.warning(
                "ZooKeeper at %s grants a session of %g s, not of %g s: see its maxSessionTimeout",
                self._hosts,
                timeout_s,
                self._wanted_s,
                about=self._hosts,
            )
        self._lease.timeout_s = min(timeout_s, self._wanted_s)


def _number(name: str) -> int:
    """The number of a node: the ten digits after the last colon, as in Java's."""
    return int(name.rpartition(":")[2])


def _parts(
    changed: Mapping[str, bytes], gone: Iterable[str]
) -> Iterator[tuple[dict[str, bytes], list[str]]]:
    """Split a change into parts that fit into a transaction."""
    some: dict[str, bytes] = {}
    size = 0
    for path, data in changed.items():
        if some and (size + len(data) > _TRANSACTION_BYTES or len(some) >= _TRANSACTION_NODES):
            yield some, []
            some, size = {}, 0
        some[path] = data
        size += len(data) + len(path)
    left = list(gone)
    if some:
        yield some, []
    for begin in range(0, len(left), _TRANSACTION_NODES):
        yield {}, left[begin : begin + _TRANSACTION_NODES]


def _tell_timeout(client: Any, granted: Callable[[float], None]) -> None:
    """Call `granted` with the timeout of the session, after each connect."""
    handler = client._connection
    connect = handler._connect

    def connected(*server: Any) -> Any:
        read_timeout_ms, connect_timeout_ms = connect(*server)
        granted(read_timeout_ms * 3 / 2 / 1000)  # kazoo waits for two thirds of the timeout
        return read_timeout_ms, connect_timeout_ms

    handler._connect = connected


def _close(client: Any) -> None:
    client.stop()
    client.close()


def _kazoo() -> Any:
    """Import kazoo, which few nodes need."""
    try:
        import_module("kazoo.client")
        return import_module("kazoo")
    except ImportError as error:
        raise UsageError(
            "`zookeeper` needs the package kazoo.", hint='pip install "coherer[zookeeper]"'
        ) from error
