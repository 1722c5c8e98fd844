"""URLs of clusters, and options given as keywords.

| scheme | protocol | TLS | default port |
|---|---|---|---|
| `tubemq` | TubeMQ, the addresses of the masters | with the option `tls` | 8715 |
| `tubemqs` | TubeMQ | yes | 8716 |
| `rocketmq` | RocketMQ, the addresses of the name servers | with the option `tls` | 9876 |
| `rocketmqs` | RocketMQ | yes | 9876 |

Addresses are `host:port`, separated by commas, or by semicolons as in RocketMQ's tools.

Without a URL, the environment decides (`url_from_environment`): first `COHERER_URL`, a URL, then
`NAMESRV_ADDR`, the addresses of name servers, which RocketMQ's clients and tools also read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import msgspec

from coherer._client.engine.arguments import check_fields, check_value
from coherer._common.masking import masked_url
from coherer.errors import UsageError

_PORTS: Final[Mapping[str, int]] = {
    "tubemq": 8715,
    "tubemqs": 8716,
    "rocketmq": 9876,
    "rocketmqs": 9876,
}
PORT_MAX: Final = 65_535

TIMEOUT_MS_MIN: Final = 10
TIMEOUT_MS_MAX: Final = 600_000
"""The timeouts that a client accepts for its requests."""


class Address(msgspec.Struct, frozen=True):
    """A parsed URL.

    Args:
        scheme: the protocol.
        servers: host and port of each server.
        secure: whether the scheme requires TLS.
    """

    scheme: str
    servers: tuple[tuple[str, int], ...]
    secure: bool


def parse_url(url: str) -> Address:
    """Parse a URL.

    Raises:
        UsageError: it is not a valid URL of a cluster.

    >>> parse_url("tubemq://10.0.0.1:8715,10.0.0.2").servers
    (('10.0.0.1', 8715), ('10.0.0.2', 8715))
    >>> parse_url("tubemqs://[::1]:9000")
    Address(scheme='tubemqs', servers=(('::1', 9000),), secure=True)
    >>> parse_url("rocketmq://a:9876;b").servers
    (('a', 9876), ('b', 9876))
    """
    scheme, sign, rest = url.partition("://")
    if not sign or scheme not in _PORTS:
        raise UsageError(
            f"{masked_url(url)!r} is not a valid URL of a cluster.",
            hint="Write rocketmq://host:9876 or tubemq://host:8715; with TLS, rocketmqs, tubemqs.",
        )
    parts = rest.rstrip("/").removesuffix(";").replace(";", ",").split(",")
    servers = [_server(part.strip(), _PORTS[scheme], url) for part in parts]
    return Address(scheme, tuple(dict.fromkeys(servers)), scheme.endswith("s"))


def url_from_environment(protocol: str = "") -> str | None:
    """The URL in the environment, if it is set.

    Args:
        protocol: `tubemq` or `rocketmq`; URLs of the other are ignored.

    >>> import os
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"COHERER_URL": "", "NAMESRV_ADDR": "10.0.0.1:9876;b:9876"}):
    ...     url_from_environment(), url_from_environment("tubemq")
    ('rocketmq://10.0.0.1:9876;b:9876', None)
    """
    given = os.environ.get("COHERER_URL", "")
    name_servers = os.environ.get("NAMESRV_ADDR", "")
    found = (given, f"rocketmq://{name_servers}" if name_servers else "")
    return next((url for url in found if url and url.startswith(protocol)), None)


def url_of(url: str | None, protocol: str = "") -> str:
    """The given URL, or the one in the environment.

    Raises:
        UsageError: neither is set.
    """
    check_value("url", url, str | None)
    url = url or url_from_environment(protocol)
    if url is None:
        raise UsageError(
            "No URL is given.",
            hint='Give the URL of a cluster: connect("rocketmq://host:9876"), or set COHERER_URL.',
        )
    return url


def parse_address(address: str) -> tuple[str, int]:
    """Parse a server's `host:port`.

    Raises:
        UsageError: it is not a valid address.

    >>> parse_address("127.0.0.1:10911"), parse_address("[::1]:10911")
    (('127.0.0.1', 10911), ('::1', 10911))
    """
    return _server(address, 0, address)


def _server(text: str, default_port: int, url: str) -> tuple[str, int]:
    host, sign, port = text.rpartition(":")
    if not sign or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise UsageError(
            f"{masked_url(f'//{text}')[2:]!r} in {masked_url(url)!r} is not a valid host:port.",
            hint="It looks like 10.0.0.1:9876.",
        )
    if "@" in host:
        raise UsageError(
            f"{masked_url(url)!r} contains an account, which does not belong in a URL.",
            hint="Give user and password as options: connect(url, user=..., password=...).",
        )
    return host, int(port)


S = TypeVar("S", bound=msgspec.Struct)


def options_of(kind: type[S], given: Mapping[str, object]) -> S:
    """Make a struct of options.

    Args:
        kind: the class of the struct.
        given: the values of some of its fields.

    Raises:
        UsageError: an option does not exist, or a value is invalid.

    >>> class Options(msgspec.Struct):
    ...     start: str = "latest"
    >>> options_of(Options, {"start": "earliest"})
    Options(start='earliest')
    >>> options_of(Options, {"strt": "earliest"})
    Traceback (most recent call last):
    coherer.errors.UsageError: Unknown option 'strt'. Did you mean start?
    """
    check_fields(kind, given)
    return kind(**cast("Mapping[str, Any]", given))
