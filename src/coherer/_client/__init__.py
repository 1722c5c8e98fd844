"""The client: `coherer.connect`.

Clients are asyncio; `coherer.blocking` has the same names without it. Names are loaded at their
first use, so that a client of one protocol does not load the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, cast

from coherer._client.engine.options import Address, options_of, parse, url_of
from coherer._common.masking import masked_url
from coherer._net import TlsOptions
from coherer.errors import UsageError

if TYPE_CHECKING:
    from coherer._client.engine.consumer import Progress
    from coherer._client.engine.sender import Bulk, SendReport
    from coherer._client.engine.telemetry import Telemetry
    from coherer._client.rocketmq.client import RocketClient
    from coherer._client.rocketmq.queue_selection import FaultRules
    from coherer._client.rocketmq.transactions import Verdict
    from coherer._client.tubemq.client import Client, ConsumerKeywords
    from coherer._client.tubemq.cluster import ClientOptions
    from coherer._client.tubemq.consumer import Consumer
    from coherer._client.tubemq.options import Bound, ConsumerOptions
    from coherer._client.tubemq.producer import Producer
    from coherer._client.tubemq.reader import Reader
    from coherer._client.tubemq.routing import QualityRules
    from coherer._wire.rocketmq.names import Queue
    from coherer._wire.rocketmq.subscription import Sql92, Tags

__all__ = [
    "Bound",
    "Bulk",
    "Client",
    "ClientOptions",
    "CommonKeywords",
    "ConnectKeywords",
    "Consumer",
    "ConsumerKeywords",
    "ConsumerOptions",
    "FaultRules",
    "Producer",
    "Progress",
    "QualityRules",
    "Queue",
    "Reader",
    "RocketClient",
    "RocketmqKeywords",
    "SendReport",
    "Sql92",
    "Tags",
    "Telemetry",
    "TlsOptions",
    "TubemqKeywords",
    "Verdict",
    "connect",
    "connect_rocketmq",
    "connect_tubemq",
]


_HOMES: Final[Mapping[str, str]] = {
    "Bound": "_client.tubemq.options",
    "Bulk": "_client.engine.sender",
    "Client": "_client.tubemq.client",
    "ClientOptions": "_client.tubemq.cluster",
    "Consumer": "_client.tubemq.consumer",
    "ConsumerKeywords": "_client.tubemq.client",
    "ConsumerOptions": "_client.tubemq.options",
    "FaultRules": "_client.rocketmq.queue_selection",
    "Producer": "_client.tubemq.producer",
    "Progress": "_client.engine.consumer",
    "QualityRules": "_client.tubemq.routing",
    "Queue": "_wire.rocketmq.names",
    "Reader": "_client.tubemq.reader",
    "RocketClient": "_client.rocketmq.client",
    "SendReport": "_client.engine.sender",
    "Sql92": "_wire.rocketmq.subscription",
    "Tags": "_wire.rocketmq.subscription",
    "Telemetry": "_client.engine.telemetry",
    "Verdict": "_client.rocketmq.transactions",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coherer._client' has no attribute {name!r}")
    value = getattr(import_module(f"coherer.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


class CommonKeywords(TypedDict, total=False):
    """The keywords of `connect` for both protocols."""

    user: str | None
    password: str | None
    tls: TlsOptions | None
    timeout_ms: int
    connect_timeout_ms: int
    heartbeat_ms: int


class TubemqKeywords(CommonKeywords, total=False):
    """The keywords for TubeMQ; see `ClientOptions`."""

    admin: str | None


class RocketmqKeywords(CommonKeywords, total=False):
    """The keywords for RocketMQ; see `coherer._client.rocketmq.options.RocketOptions`."""

    token: str | None
    route_ms: int
    namespace: str
    instance: str | None
    unit: str
    vip: bool


class ConnectKeywords(TubemqKeywords, RocketmqKeywords, total=False):
    """The keywords of `connect`."""


_PROTOCOLS: Final[Mapping[str, type]] = {"tubemq": TubemqKeywords, "rocketmq": RocketmqKeywords}


def connect(url: str | None = None, **options: Unpack[ConnectKeywords]) -> Client | RocketClient:
    """A client of a cluster. It connects at its first use.

    Args:
        url: `tubemq://host:port,host:port`, the masters, or `rocketmq://host:port;host:port`, the
            name servers; `tubemqs://` and `rocketmqs://` for TLS. None: that of the environment,
            `COHERER_URL`, or the name servers in `NAMESRV_ADDR`.
        options: see `ClientOptions` for TubeMQ and
            `coherer._client.rocketmq.options.RocketOptions`; the addresses are the URL's.

    Raises:
        UsageError: the URL or an option is invalid.

    >>> connect("tubemq://127.0.0.1:8715", timeout_ms=5_000)
    <Client of tubemq://127.0.0.1:8715>
    >>> connect("rocketmq://127.0.0.1:9876", namespace="team")
    <RocketClient of rocketmq://127.0.0.1:9876>
    """
    url = url_of(url)
    protocol = parse(url).scheme.removesuffix("s")
    wrong = sorted(options.keys() - _PROTOCOLS[protocol].__annotations__.keys())
    if wrong:
        known = ", ".join(sorted(_PROTOCOLS[protocol].__annotations__))
        text = f"A client of {protocol} has no option {', '.join(wrong)}."
        raise UsageError(text, hint=f"It has {known}.")
    if protocol == "rocketmq":
        return connect_rocketmq(url, **cast("RocketmqKeywords", options))
    return connect_tubemq(url, **cast("TubemqKeywords", options))


def connect_tubemq(url: str | None = None, **options: Unpack[TubemqKeywords]) -> Client:
    """`connect` for `tubemq://`, with its own type.

    Raises:
        UsageError: the URL or an option is invalid.
    """
    from coherer._client.tubemq.client import Client
    from coherer._client.tubemq.cluster import ClientOptions

    address = _address(url, "tubemq")
    if address.secure and options.get("tls") is None:
        options["tls"] = TlsOptions()
    return Client(options_of(ClientOptions, {**options, "addresses": address.servers}))


def connect_rocketmq(url: str | None = None, **options: Unpack[RocketmqKeywords]) -> RocketClient:
    """`connect` for `rocketmq://`, with its own type.

    Raises:
        UsageError: the URL or an option is invalid.
    """
    from coherer._client.rocketmq.client import RocketClient
    from coherer._client.rocketmq.options import RocketOptions

    address = _address(url, "rocketmq")
    if address.secure and options.get("tls") is None:
        options["tls"] = TlsOptions()
    return RocketClient(options_of(RocketOptions, {**options, "addresses": address.servers}))


def _address(url: str | None, protocol: str) -> Address:
    url = url_of(url, protocol)
    address = parse(url)
    if address.scheme.removesuffix("s") != protocol:
        raise UsageError(f"{masked_url(url)!r} is not a URL of {protocol}.")
    return address
