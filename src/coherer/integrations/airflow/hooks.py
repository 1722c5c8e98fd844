"""From an Airflow connection to clients of the cluster that it names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, cast

import msgspec
from airflow.sdk import BaseHook, Connection

import coherer
from coherer import TlsOptions, blocking
from coherer.errors import CohererError, UsageError

__all__ = ["CohererHook", "RocketMQHook", "TubeMQHook", "shared_client"]

DEFAULT_CONN_ID: Final = "coherer_default"


class CohererHook(BaseHook):
    """Makes clients of the cluster that a connection names.

    The type of the connection is `rocketmq` or `tubemq`. Its host is a name server or a master, or
    several, separated by commas: `ns1:9876,ns2:9876`. Login and password are the account. The extra
    field is a JSON object with options of the client (`timeout_ms`, `namespace`, ...); `tls` is
    true, or an object with the fields of `coherer.TlsOptions`.

    Args:
        conn_id: the id of the connection.

    ```python
    with CohererHook("coherer_default").get_conn() as client:
        print(client.offsets("orders"))
    ```
    """

    conn_name_attr: ClassVar[str] = "conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_CONN_ID
    conn_type: ClassVar[str] = "rocketmq"
    hook_name: ClassVar[str] = "RocketMQ"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id

    def get_conn(self) -> blocking.Client:
        """Make a blocking client: use it with `with`.

        Raises:
            UsageError: the connection has a wrong type, or an option that clients do not have.
        """
        url, options = settings_of(self.get_connection(self.conn_id))
        return blocking.connect(url, **cast("Any", options))

    async def aget_conn(self) -> coherer.Client:
        """Make an asyncio client: use it with `async with`.

        Raises:
            UsageError: see `get_conn`.
        """
        url, options = settings_of(await self.aget_connection(self.conn_id))
        return coherer.connect(url, **cast("Any", options))

    def test_connection(self) -> tuple[bool, str]:
        """Ask the cluster for its brokers, for Airflow's button "Test"."""
        try:
            with self.get_conn() as client:
                brokers = client.admin().brokers.list()
        except CohererError as error:
            return False, str(error)
        return True, f"Brokers: {', '.join(sorted(broker.name for broker in brokers))}"


class RocketMQHook(CohererHook):
    """The hook of connections of the type `rocketmq`."""


class TubeMQHook(CohererHook):
    """The hook of connections of the type `tubemq`."""

    conn_type: ClassVar[str] = "tubemq"
    hook_name: ClassVar[str] = "TubeMQ"


def settings_of(connection: Connection) -> tuple[str, dict[str, object]]:
    """The URL of a cluster and the options of its clients, from an Airflow connection.

    Raises:
        UsageError: the connection is not of a cluster.

    >>> settings_of(Connection(conn_id="a", uri="rocketmq://me:secret@ns:9876/?timeout_ms=5000"))
    ('rocketmq://ns:9876', {'user': 'me', 'password': 'secret', 'timeout_ms': 5000})
    """
    kind = connection.conn_type or ""
    if kind.removesuffix("s") not in {"rocketmq", "tubemq"}:
        raise UsageError(
            f"The Airflow connection {connection.conn_id!r} has the type {kind!r}.",
            hint="Its type is rocketmq or tubemq.",
        )
    if not connection.host:
        raise UsageError(
            f"The Airflow connection {connection.conn_id!r} has no host.",
            hint="It is the name server (rocketmq) or the master (tubemq), or several.",
        )
    port = f":{connection.port}" if connection.port else ""
    options: dict[str, object] = {"user": connection.login, "password": connection.password}
    options = {name: value for name, value in options.items() if value}
    for name, value in cast("Any", connection).extra_dejson.items():
        options[name] = _option(connection.conn_id, name, value)
    return f"{kind}://{connection.host}{port}", options


def _option(conn_id: str, name: str, value: object) -> object:
    """An option of a client. All values in the query of a URI are texts."""
    try:
        if name == "tls":
            given = msgspec.json.decode(value) if isinstance(value, str) else value
            return (
                TlsOptions() if given is True else msgspec.convert(given or None, TlsOptions | None)
            )
        kind = {"int": int, "bool": bool}.get(
            coherer.rocketmq.ClientOptions.__annotations__.get(name, "")
        )
        return value if kind is None else msgspec.convert(value, kind, strict=False)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"The Airflow connection {conn_id!r} has a wrong value for {name}: {error}"
        ) from error


class _Shared:
    """A client, and the groups whose members use it."""

    def __init__(self, client: coherer.Client) -> None:
        self.client = client
        self.groups: set[str] = set()


_shared: dict[tuple[object, ...], list[_Shared]] = {}
"""Clients by event loop and settings."""


@asynccontextmanager
async def shared_client(conn_id: str, group: str) -> AsyncGenerator[coherer.Client]:
    """The client that all triggers of this event loop share whose connections have equal settings.

    The members of one group have a client each: RocketMQ's brokers identify members by their
    clients. The last one to leave a client closes it. A connection that is changed gets a new one.

    Args:
        conn_id: the id of the Airflow connection.
        group: the group that the trigger joins with the client.
    """
    url, options = settings_of(await BaseHook.aget_connection(conn_id))
    key = (asyncio.get_running_loop(), url, *sorted((name, repr(v)) for name, v in options.items()))
    clients = _shared.setdefault(key, [])
    shared = next((one for one in clients if group not in one.groups), None)
    if shared is None:
        shared = _Shared(coherer.connect(url, **cast("Any", options)))
        clients.append(shared)
    shared.groups.add(group)
    try:
        yield shared.client
    finally:
        shared.groups.remove(group)
        if not shared.groups:
            clients.remove(shared)
            if not clients:
                del _shared[key]
            await shared.client.close()
