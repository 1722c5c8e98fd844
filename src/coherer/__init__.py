"""Coherer: a message queue that speaks Apache TubeMQ and RocketMQ, with Spark as its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coherer._common.version import __version__ as __version__

# For type checkers: the names load on first use, see `__getattr__`.
if TYPE_CHECKING:
    from coherer import admin, blocking, rocketmq, spark, testing, tubemq
    from coherer._api import (
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
    from coherer._client.engine.metrics import ClientMetrics
    from coherer._client.engine.sender import Outcome, SendReport
    from coherer._net import TlsOptions
    from coherer._views import AnyMessage
    from coherer.errors import CohererError
    from coherer.message import Message, Receipt, ReceivedMessage

__all__ = [
    "Admin",
    "AnyMessage",
    "Batch",
    "BrokerAdmin",
    "Client",
    "ClientMetrics",
    "CohererError",
    "Consumer",
    "GroupAdmin",
    "Message",
    "Outcome",
    "Producer",
    "Receipt",
    "ReceivedMessage",
    "SendReport",
    "TlsOptions",
    "TopicAdmin",
    "admin",
    "blocking",
    "connect",
    "rocketmq",
    "spark",
    "testing",
    "tubemq",
]

_MODULES = ("admin", "blocking", "errors", "rocketmq", "spark", "testing", "tubemq")
"""Modules that `import coherer` makes available."""

_MODULE_OF = {
    "AnyMessage": "_views",
    "ClientMetrics": "_client.engine.metrics",
    "CohererError": "errors",
    "Message": "message",
    "Outcome": "_client.engine.sender",
    "Receipt": "message",
    "ReceivedMessage": "message",
    "SendReport": "_client.engine.sender",
    "TlsOptions": "_net",
}
"""Where names are defined that are not in `_api`."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # PEP 562: names load on first use, so that `import coherer` stays under 60 ms.
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"coherer.{name}")
        if name not in __all__:
            from coherer._common.renamed import renamed

            return renamed(__name__, name)
        value = getattr(import_module(f"coherer.{_MODULE_OF.get(name, '_api')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
