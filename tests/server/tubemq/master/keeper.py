"""A ZooKeeper in memory: the part of kazoo's client that an election uses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


class KeeperError(Exception):
    """ZooKeeper does not answer, or refuses."""


class NoNodeError(KeeperError):
    """There is no such node."""


class BadVersionError(KeeperError):
    """The version of a node is another one."""


@dataclass
class Node:
    data: bytes = b""
    version: int = 0
    owner: int = 0


class Keeper:
    """The nodes, and who watches them. `away` sessions get no answers."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node()}
        self.away: set[int] = set()
        self.lock = threading.RLock()
        self.watches: list[Callable[[object], None]] = []
        self._sessions = itertools.count(1)
        self._numbers = itertools.count(0)

    def connect(self, **options: object) -> Session:
        """As `kazoo.client.KazooClient`."""
        return Session(self, next(self._sessions))

    def expire(self, session: int) -> None:
        """End a session: its ephemeral nodes vanish, and all who watch learn of it."""
        with self.lock:
            for path in [path for path, node in self.nodes.items() if node.owner == session]:
                del self.nodes[path]
            watches, self.watches = self.watches, []
        for watch in watches:
            watch(None)

    def number(self) -> int:
        return next(self._numbers)

    def kazoo(self) -> Any:
        """The module, with this server behind it."""
        return SimpleNamespace(
            client=SimpleNamespace(KazooClient=self.connect),
            exceptions=SimpleNamespace(NoNodeError=NoNodeError, BadVersionError=BadVersionError),
        )


class Session:
    """A client, with kazoo's names."""

    def __init__(self, keeper: Keeper, number: int) -> None:
        self._keeper = keeper
        self.number = number

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.number, b""

    @property
    def connected(self) -> bool:
        return self.number not in self._keeper.away

    def _nodes(self) -> dict[str, Node]:
        if not self.connected:
            raise KeeperError("connection lost")
        return self._keeper.nodes

    def add_listener(self, changed: object) -> None:
        pass

    def start(self, timeout: float) -> None:
        self._nodes()

    def stop(self) -> None:
        if self.connected:
            self._keeper.expire(self.number)

    def close(self) -> None:
        pass

    def ensure_path(self, path: str) -> None:
        with self._keeper.lock:
            parts = path.strip("/").split("/")
            for count in range(len(parts)):
                self._nodes().setdefault("/" + "/".join(parts[: count + 1]), Node())

    def get_children(self, path: str, watch: Callable[[object], None] | None = None) -> list[str]:
        with self._keeper.lock:
            nodes = self._nodes()
            if watch is not None:
                self._keeper.watches.append(watch)
            begin = f"{path}/"
            return [
                one.removeprefix(begin)
                for one in nodes
                if one.startswith(begin) and "/" not in one.removeprefix(begin)
            ]

    def get(self, path: str) -> tuple[bytes, Any]:
        with self._keeper.lock:
            node = self._nodes().get(path)
            if node is None:
                raise NoNodeError(path)
            return node.data, SimpleNamespace(ephemeralOwner=node.owner, version=node.version)

    def get_async(self, path: str) -> Any:
        found = self.get(path)
        return SimpleNamespace(get=lambda timeout: found)

    def exists(self, path: str) -> bool:
        return path in self._nodes()

    def set(self, path: str, data: bytes) -> Any:
        with self._keeper.lock:
            node = self._nodes()[path]
            node.data, node.version = data, node.version + 1
            return SimpleNamespace(version=node.version)

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        with self._keeper.lock:
            if sequence:
                path += f"{self._keeper.number():010}"
            self._nodes()[path] = Node(data, owner=self.number if ephemeral else 0)
            return path

    def delete(self, path: str) -> None:
        with self._keeper.lock:
            del self._nodes()[path]

    def transaction(self) -> Transaction:
        return Transaction(self)


class Transaction:
    """All changes, or none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._checks: list[tuple[str, int]] = []
        self._changes: list[Callable[[], object]] = []

    def check(self, path: str, version: int) -> None:
        self._checks.append((path, version))

    def create(self, path: str, data: bytes) -> None:
        self._changes.append(lambda: self._session.create(path, data))

    def set_data(self, path: str, data: bytes) -> None:
        self._changes.append(lambda: self._session.set(path, data))

    def delete(self, path: str) -> None:
        self._changes.append(lambda: self._session.delete(path))

    def commit(self) -> list[object]:
        for path, version in self._checks:
            if self._session.get(path)[1].version != version:
                return [BadVersionError(path), *(KeeperError("rolled back") for _ in self._changes)]
        return [True, *(change() for change in self._changes)]
