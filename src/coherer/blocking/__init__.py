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

from coherer.blocking.client import Client
from coherer.blocking.connecting import (
    connect,
    connect_rocketmq,
    connect_tubemq,
    forget,
    shared,
)
from coherer.blocking.consumer import Consumer
from coherer.blocking.producer import Producer
from coherer.blocking.reader import Reader

__all__ = [
    "Client",
    "Consumer",
    "Producer",
    "Reader",
    "connect",
    "connect_rocketmq",
    "connect_tubemq",
    "forget",
    "shared",
]
