"""Making blocking clients, and those that everybody in a process shares."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Unpack, cast

from coherer import _client as asynchronous
from coherer._client import ConnectKeywords, RocketmqKeywords, TubemqKeywords
from coherer._client.engine.options import parse, url_of

if TYPE_CHECKING:
    from coherer.blocking.client import Client
    from coherer.blocking.rocketmq import RocketClient


def connect(url: str | None = None, **options: Unpack[ConnectKeywords]) -> Client | RocketClient:
    """A client of a cluster. Nothing is sent before it is used.

    Args:
        url: `tubemq://host:port,host:port`, the masters, or `rocketmq://host:port;host:port`, the
            name servers; `tubemqs://` and `rocketmqs://` for TLS. None: that of the environment,
            `COHERER_URL`, or else the name servers in `NAMESRV_ADDR`.
        options: see `coherer.connect`.

    Raises:
        UsageError: the URL or an option makes no sense.

    >>> with connect("tubemq://127.0.0.1:8715") as client:
    ...     client
    <Client of tubemq://127.0.0.1:8715>
    """
    url = url_of(url)
    client = asynchronous.connect(url, **options)  # first: it checks its arguments
    if parse(url).scheme.startswith("tubemq"):
        from coherer.blocking.client import Client

        return Client(cast("asynchronous.Client", client))
    from coherer.blocking.rocketmq import RocketClient

    return RocketClient(cast("asynchronous.RocketClient", client))


def connect_tubemq(url: str | None = None, **options: Unpack[TubemqKeywords]) -> Client:
    """What `connect` does for `tubemq://`, for type checkers.

    Raises:
        UsageError: the URL or an option makes no sense.
    """
    from coherer.blocking.client import Client

    return Client(asynchronous.connect_tubemq(url, **options))


def connect_rocketmq(url: str | None = None, **options: Unpack[RocketmqKeywords]) -> RocketClient:
    """What `connect` does for `rocketmq://`, for type checkers.

    Raises:
        UsageError: the URL or an option makes no sense.
    """
    from coherer.blocking.rocketmq import RocketClient

    return RocketClient(asynchronous.connect_rocketmq(url, **options))


_shared: dict[object, Client | RocketClient] = {}
_sharing = threading.Lock()


def shared(url: str, **options: Unpack[ConnectKeywords]) -> Client | RocketClient:
    """A client that everybody in this process shares who asks with the same arguments.

    For processes that do one small task after the other, like Spark's workers. Do not close it;
    `forget` it when it has failed.
    """
    key = _key(url, options)
    with _sharing:
        client = _shared.get(key)
        if client is None:
            client = _shared[key] = connect(url, **options)
        return client


def forget(url: str, **options: Unpack[ConnectKeywords]) -> None:
    """Close the client that `shared` gives for these arguments; the next one is a new one."""
    with _sharing:
        client = _shared.pop(_key(url, options), None)
    if client is not None:
        client.close()


def _key(url: str, options: ConnectKeywords) -> object:
    return os.getpid(), url, tuple(sorted(options.items(), key=lambda item: item[0]))
