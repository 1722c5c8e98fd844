"""Coherer: a message queue that speaks Apache TubeMQ and RocketMQ, with Spark as its engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coherer._client import (
        Client,
        RocketClient,
        Verdict,
        connect,
        connect_rocketmq,
        connect_tubemq,
    )
    from coherer._wire.rocketmq.messages import StoredMessage
    from coherer._wire.rocketmq.subscription import Sql92
    from coherer.errors import CohererError
    from coherer.message import Message, Receipt, ReceivedMessage

__version__ = "0.2.0"

__all__ = [
    "Client",
    "CohererError",
    "Message",
    "Receipt",
    "ReceivedMessage",
    "RocketClient",
    "StoredMessage",
    "Sql92",
    "Verdict",
    "connect",
    "connect_rocketmq",
    "connect_tubemq",
]

_HOMES = {
    "Client": "coherer._client",
    "CohererError": "coherer.errors",
    "Message": "coherer.message",
    "Receipt": "coherer.message",
    "ReceivedMessage": "coherer.message",
    "RocketClient": "coherer._client",
    "StoredMessage": "coherer._wire.rocketmq.messages",
    "Sql92": "coherer._wire.rocketmq.subscription",
    "Verdict": "coherer._client",
    "connect": "coherer._client",
    "connect_rocketmq": "coherer._client",
    "connect_tubemq": "coherer._client",
}

_ROOMS = ("blocking", "errors", "spark", "testing")
"""Modules that need no import of their own."""


def __getattr__(name: str) -> object:
    # PEP 562: names load on first use, so that `import coherer` stays under 60 ms.
    if name in _ROOMS:
        return import_module(f"coherer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'coherer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
