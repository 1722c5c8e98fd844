"""The clients for programs without asyncio: the same names, blocking.

```python
import coherer.blocking

with coherer.blocking.connect("tubemq://127.0.0.1:8715") as client:
    with client.producer("greetings") as producer:
        print(producer.send(coherer.Message("greetings", b"hello")))
    with client.consumer("readers", "greetings", start="earliest") as consumer:
        for message in consumer:
            print(message.body)
            break
```

An event loop in a background thread runs the asyncio client. Clients, producers and consumers can
be used from any number of threads. `coherer.blocking.tubemq` and `coherer.blocking.rocketmq` have
all that each protocol offers, typed exactly.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Unpack

from coherer._api import ConnectKeywords

# For type checkers: the names load on first use, see `__getattr__`.
if TYPE_CHECKING:
    from coherer.blocking import rocketmq, tubemq
    from coherer.blocking._api import (
        Admin,
        Batch,
        BrokerAdmin,
        Client,
        Consumer,
        GroupAdmin,
        Producer,
        TopicAdmin,
        connect,
    )

__all__ = [
    "Admin",
    "Batch",
    "BrokerAdmin",
    "Client",
    "Consumer",
    "GroupAdmin",
    "Producer",
    "TopicAdmin",
    "connect",
    "forget",
    "rocketmq",
    "shared",
    "tubemq",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # As in `coherer`: a client of one protocol does not load the other.
        from importlib import import_module

        if name in {"rocketmq", "tubemq"}:
            return import_module(f"coherer.blocking.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'coherer.blocking' has no attribute {name!r}")
        value = getattr(import_module("coherer.blocking._api"), name)
        globals()[name] = value
        return value


_shared: dict[object, Client] = {}
_sharing = threading.Lock()


def _share_anew() -> None:
    """Make a new lock in a child: who held the old one at the fork is not in it."""
    global _sharing  # noqa: PLW0603 - one for each process
    _sharing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_share_anew)


def shared(url: str, **options: Unpack[ConnectKeywords]) -> Client:
    """Return a client that all callers in this process share who pass the same arguments.

    For processes that run many small tasks, such as Spark's workers. Do not close the client;
    `forget` it when it has failed.
    """
    from coherer.blocking._api import connect

    key = _key(url, options)
    with _sharing:
        client = _shared.get(key)
        if client is None:
            client = _shared[key] = connect(url, **options)
        return client


def forget(url: str, **options: Unpack[ConnectKeywords]) -> None:
    """Close the client that `shared` returns for these arguments; the next call makes a new one."""
    with _sharing:
        client = _shared.pop(_key(url, options), None)
    if client is not None:
        client.close()


def _key(url: str, options: ConnectKeywords) -> object:
    return os.getpid(), url, tuple(sorted(options.items(), key=lambda item: item[0]))
