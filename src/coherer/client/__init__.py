"""The client: `coherer.connect`.

What it makes is asyncio; `coherer.blocking` has the same names for programs without it.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from coherer.client.address import parse
from coherer.client.outcomes import Bulk, SendReport
from coherer.client.tubemq.client import Client, ConsumerKeywords
from coherer.client.tubemq.cluster import ClientOptions
from coherer.client.tubemq.consumer import Consumer
from coherer.client.tubemq.consumer_options import ConsumerOptions, Progress
from coherer.client.tubemq.positions import Bound
from coherer.client.tubemq.producer import Producer
from coherer.client.tubemq.quality import QualityRules
from coherer.client.tubemq.reader import Reader
from coherer.net import TlsOptions

__all__ = [
    "Bound",
    "Bulk",
    "Client",
    "ClientOptions",
    "ConnectKeywords",
    "Consumer",
    "ConsumerKeywords",
    "ConsumerOptions",
    "Producer",
    "Progress",
    "QualityRules",
    "Reader",
    "SendReport",
    "TlsOptions",
    "connect",
]


class ConnectKeywords(TypedDict, total=False):
    """The keywords of `connect`."""

    user: str | None
    password: str | None
    tls: TlsOptions | None
    timeout_ms: int
    connect_timeout_ms: int
    heartbeat_ms: int
    admin: str | None


def connect(url: str, **options: Unpack[ConnectKeywords]) -> Client:
    """A client of a cluster. Nothing is sent before it is used.

    Args:
        url: `tubemq://host:port,host:port`, the masters; `tubemqs://` for TLS.
        options: see `ClientOptions`; the address is the URL's.

    Raises:
        UsageError: the URL or an option makes no sense.

    >>> connect("tubemq://127.0.0.1:8715", timeout_ms=5_000)
    <Client of tubemq://127.0.0.1:8715>
    """
    address = parse(url)
    if address.secure and options.get("tls") is None:
        options["tls"] = TlsOptions()
    return Client(ClientOptions(addresses=address.servers, **options))
