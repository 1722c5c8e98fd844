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

It is a facade over `coherer.client`: one event loop in a thread of its own does the work.
"""

from __future__ import annotations

from typing import Unpack

from coherer.blocking.client import Client, forget, shared
from coherer.blocking.consumer import Consumer, Reader
from coherer.blocking.producer import Producer
from coherer.client import ConnectKeywords

__all__ = [
    "Client",
    "Consumer",
    "Producer",
    "Reader",
    "connect",
    "forget",
    "shared",
]


def connect(url: str, **options: Unpack[ConnectKeywords]) -> Client:
    """A client of a cluster. Nothing is sent before it is used.

    Args:
        url: `tubemq://host:port,host:port`, the masters; `tubemqs://` for TLS.
        options: see `coherer.connect`.

    Raises:
        UsageError: the URL or an option makes no sense.

    >>> with connect("tubemq://127.0.0.1:8715") as client:
    ...     client
    <Client of tubemq://127.0.0.1:8715>
    """
    return Client(url, **options)
