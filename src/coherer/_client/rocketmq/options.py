"""The options of a client of RocketMQ."""

from __future__ import annotations

from typing import Final

import msgspec

from coherer._net import TlsOptions
from coherer.errors import UsageError

TIMEOUT_MS_MIN: Final = 10
TIMEOUT_MS_MAX: Final = 600_000

VIP_PORT_STEP: Final = 2
"""A broker's fast port is so far below its main port; everything but pulls may go there."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a client of RocketMQ.

    Args:
        addresses: host and port of each name server.
        user: the access key; None for no signatures.
        password: the secret key. It is never sent, only used to sign.
        token: the security token that goes with temporary keys.
        tls: how connections are made secret; None for plain TCP.
        timeout_ms: for each request, and for a message to get its receipt, retries included.
        connect_timeout_ms: for each new connection.
        heartbeat_ms: period of heartbeats; brokers forget clients that are silent for 120 s.
        route_ms: period of looking up the routes of topics in use.
        namespace: put before the names of all topics and groups.
        instance: the second half of the client's id; None for one that no other has. Needed where
            the name must stay the same, as for a broadcast consumer's local offsets.
        unit: the client's unit, a third part of its id.
        vip: whether sends and administration use the brokers' fast port.
    """

    addresses: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls: TlsOptions | None = None
    timeout_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    heartbeat_ms: int = 30_000
    route_ms: int = 30_000
    namespace: str = ""
    instance: str | None = None
    unit: str = ""
    vip: bool = False

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UsageError("A client needs the address of a name server.")
        if (self.user is None) != (self.password is None):
            raise UsageError("User and password go together.")
        if not TIMEOUT_MS_MIN <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise UsageError(
                f"A timeout is {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX} ms, not {self.timeout_ms}."
            )
        for name in ("connect_timeout_ms", "heartbeat_ms", "route_ms"):
            value: int = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name} is 1 or more, not {value}.")

    def __repr__(self) -> str:
        return f"<ClientOptions {self.servers}, user {self.user}>"  # never the password

    @property
    def servers(self) -> str:
        """The name servers as text."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)
