"""A ZooKeeper in memory: the part of kazoo's client that an election uses."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")


class KeeperError(Exception):
    """ZooKeeper does not answer, or refuses."""


class NoNodeError(KeeperError):
    """There is no such node."""


class BadVersionError(KeeperError):
    """The version of a node is another one."""


@dataclass
class Node:
    """What a path holds.

    Attributes:
        owner: the session with which it vanishes; 0 for none.
    """

    data: bytes = b""
    version: int = 0
    owner: int = 0


class Nodes(dict[str, Node]):
    """The nodes by path. A missing one is an error."""

    def __missing__(self, path: str) -> Node:
        raise NoNodeError(path)


class Keeper:
    """The nodes, and who watches them.

    Attributes:
        nodes: by path.
        away: sessions that get no answers.
        behind: sessions whose server has lost the others, and what it remembers: it answers reads
            from it, and takes no writes.
        longest_s: the longest timeout of a session that it grants.
    """

    def __init__(self) -> None:
        self.nodes = Nodes({"/": Node()})
        self.away: set[int] = set()
        self.behind: dict[int, Nodes] = {}
        self.longest_s = 40.0
        self.lock = threading.RLock()
        self.watches: list[Callable[[object], None]] = []
        self.sessions = itertools.count(1)
        self.numbers = itertools.count(0)

    def connect(self, **options: Any) -> Session:
        """As `kazoo.client.KazooClient`."""
        return Session(self, **options)

    def expire(self, session: int) -> None:
        """End a session: its ephemeral nodes vanish, and all who watch learn of it."""
        with self.lock:
            for path in [path for path, node in self.nodes.items() if node.owner == session]:
                del self.nodes[path]
            watches, self.watches = self.watches, []
        for watch in watches:
            watch(None)

    def cut_off(self, session: int) -> None:
        """Let the server of a session lose the others."""
        self.behind[session] = copy.deepcopy(self.nodes)

    def kazoo(self) -> Any:
        """The module, with this server behind it."""
        return SimpleNamespace(
            client=SimpleNamespace(KazooClient=self.connect),
            exceptions=SimpleNamespace(NoNodeError=NoNodeError, BadVersionError=BadVersionError),
        )


class Session:
    """A client, with kazoo's names."""

    def __init__(self, keeper: Keeper, *, timeout: float = 10.0, **_: object) -> None:
        self.keeper = keeper
        self.number = next(keeper.sessions)
        self.timeout_s = min(timeout, keeper.longest_s)
        self._connection = SimpleNamespace(_connect=self._connect)

    def _connect(self, *_: object) -> tuple[float, float]:
        return self.timeout_s * 1000 * 2 / 3, self.timeout_s * 1000

    def ask(self, work: Callable[[Nodes], T], *, changes: bool = False) -> T:
        """Have the server do something.

        Raises:
            KeeperError: it does not answer, or refuses.
        """
        if not self.connected:
            raise KeeperError("connection lost")
        with self.keeper.lock:
            return self.serve(work, changes=changes)

    def serve(self, work: Callable[[Nodes], T], *, changes: bool) -> T:
        """What the server does."""
        remembered = self.keeper.behind.get(self.number)
        if remembered is not None and changes:
            raise KeeperError("no quorum")
        return work(self.keeper.nodes if remembered is None else remembered)

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.number, b""

    @property
    def connected(self) -> bool:
        return self.number not in self.keeper.away

    def add_listener(self, changed: Callable[[object], object]) -> None:
        pass

    def start(self, timeout: float) -> None:
        del timeout
        self._connection._connect()
        self.ask(len)

    def stop(self) -> None:
        if self.connected:
            self.keeper.expire(self.number)

    def close(self) -> None:
        pass

    def ensure_path(self, path: str) -> None:
        parts = path.strip("/").split("/")
        paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
        self.ask(lambda nodes: [nodes.setdefault(one, Node()) for one in paths], changes=True)

    def get_children(self, path: str, watch: Callable[[object], None] | None = None) -> list[str]:
        begin = f"{path}/"

        def children(nodes: Nodes) -> list[str]:
            if watch is not None:
                self.keeper.watches.append(watch)
            names = [one.removeprefix(begin) for one in nodes if one.startswith(begin)]
            return [name for name in names if "/" not in name]

        return self.ask(children)

    def get(self, path: str) -> tuple[bytes, Any]:
        node = self.ask(lambda nodes: copy.copy(nodes[path]))
        return node.data, SimpleNamespace(ephemeralOwner=node.owner, version=node.version)

    def get_async(self, path: str) -> Any:
        return SimpleNamespace(get=lambda timeout: self.get(path))

    def exists(self, path: str) -> bool:
        return self.ask(lambda nodes: path in nodes)

    def set(self, path: str, data: bytes) -> Any:
        version = self.ask(lambda nodes: change(nodes, path, data), changes=True)
        return SimpleNamespace(version=version)

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        def created(nodes: Nodes) -> str:
            full = f"{path}{next(self.keeper.numbers):010}" if sequence else path
            nodes[full] = Node(data, owner=self.number if ephemeral else 0)
            return full

        return self.ask(created, changes=True)

    def delete(self, path: str) -> None:
        self.ask(lambda nodes: remove(nodes, path), changes=True)

    def transaction(self) -> Transaction:
        return Transaction(self)


def change(nodes: Nodes, path: str, data: bytes) -> int:
    """Write a node, and return its version."""
    node = nodes[path]
    node.data, node.version = data, node.version + 1
    return node.version


def remove(nodes: Nodes, path: str) -> None:
    """Delete a node."""
    if path not in nodes:
        raise NoNodeError(path)
    del nodes[path]


class Transaction:
    """All changes, or none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checks: list[tuple[str, int]] = []
        self._changes: list[Callable[[Nodes], object]] = []

    def check(self, path: str, version: int) -> None:
        self._checks.append((path, version))

    def create(self, path: str, data: bytes) -> None:
        self._changes.append(lambda nodes: nodes.update({path: Node(data)}))

    def set_data(self, path: str, data: bytes) -> None:
        self._changes.append(lambda nodes: change(nodes, path, data))

    def delete(self, path: str) -> None:
        self._changes.append(lambda nodes: remove(nodes, path))

    def commit(self) -> list[object]:
        return self._session.ask(self._commit, changes=True)

    def _commit(self, nodes: Nodes) -> list[object]:
        for path, version in self._checks:
            if nodes[path].version != version:
                return [BadVersionError(path), *(KeeperError("rolled back") for _ in self._changes)]
        return [True, *(change(nodes) for change in self._changes)]
