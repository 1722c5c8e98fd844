"""From a URL and keywords to the options of a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, TypeVar

import msgspec

from coherer._client.engine.arguments import unknown_name
from coherer._client.engine.metrics import ClientMetrics
from coherer._client.engine.options import options_of, parse_url, url_of
from coherer._common.masking import masked_url
from coherer._net import TlsOptions
from coherer.errors import UsageError

S = TypeVar("S", bound=msgspec.Struct)


class CommonKeywords(TypedDict, total=False):
    """The options that clients of both protocols have."""

    user: str | None
    password: str | None
    tls: TlsOptions | None
    timeout_ms: int
    connect_timeout_ms: int
    heartbeat_ms: int
    metrics: ClientMetrics | None


def client_options(kind: type[S], protocol: str, url: str | None, given: Mapping[str, object]) -> S:
    """Make the options of a client.

    Args:
        kind: the options struct of the protocol's client.
        protocol: `tubemq` or `rocketmq`.
        url: the cluster's URL; None for the one in the environment.
        given: the options by name, without the addresses.

    Raises:
        UsageError: the URL is of another protocol, or an option is unknown or out of range.
    """
    url = url_of(url, protocol)
    address = parse_url(url)
    if address.scheme.removesuffix("s") != protocol:
        raise UsageError(
            f"{masked_url(url)!r} is not a URL of {protocol}.",
            hint="`coherer.connect` takes URLs of both protocols.",
        )
    known = sorted(set(kind.__struct_fields__) - {"addresses"})
    if unknown := sorted(given.keys() - set(known)):
        raise UsageError(
            f"A client of {protocol} has no option {', '.join(unknown)}.",
            hint=unknown_name(unknown[0], known).hint,
        )
    options = {**given, "addresses": address.servers}
    if address.secure and options.get("tls") is None:
        options["tls"] = TlsOptions()
    return options_of(kind, options)
