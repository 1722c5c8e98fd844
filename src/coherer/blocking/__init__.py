"""The client for programs without asyncio: the same names, blocking.

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

It is a facade over `coherer._client`: one event loop in a thread of its own does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from coherer.blocking.connecting import connect, connect_rocketmq, connect_tubemq, forget, shared

if TYPE_CHECKING:
    from coherer.blocking.client import Client
    from coherer.blocking.consumer import Consumer
    from coherer.blocking.producer import Producer
    from coherer.blocking.reader import Reader
    from coherer.blocking.rocketmq import RocketClient

__all__ = [
    "Client",
    "Consumer",
    "Producer",
    "Reader",
    "RocketClient",
    "connect",
    "connect_rocketmq",
    "connect_tubemq",
    "forget",
    "shared",
]

_HOMES: Final[Mapping[str, str]] = {
    "Client": "client",
    "Consumer": "consumer",
    "Producer": "producer",
    "Reader": "reader",
    "RocketClient": "rocketmq",
}


def __getattr__(name: str) -> object:
    # As in `coherer._client`: a client of one protocol does not load the other's.
    if name not in _HOMES:
        raise AttributeError(f"module 'coherer.blocking' has no attribute {name!r}")
    value = getattr(import_module(f"coherer.blocking.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
