"""What everything of one client shares: its options, connections, masters and credentials."""

from __future__ import annotations

import os
import secrets
import time
from ipaddress import AddressValueError, IPv4Address
from typing import Final

import msgspec

from coherer import __version__
from coherer._client.tubemq.link import Pool
from coherer._client.tubemq.master import Masters
from coherer._net import TlsOptions
from coherer._wire.tubemq import credentials
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.names import OWN_CLIENT
from coherer.errors import UsageError

UNDEFINED: Final = -2
"""What TubeMQ writes for "none yet" in number fields."""

TIMEOUT_MS_MIN: Final = 10
TIMEOUT_MS_MAX: Final = 600_000


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a client.

    Args:
        addresses: host and port of each master.
        user: name to authenticate with; None for no authentication.
        password: goes with it. It is never sent, only used to sign.
        tls: how connections are made secret; None for plain TCP.
        timeout_ms: for each request, and for becoming ready.
        connect_timeout_ms: for each new connection.
        heartbeat_ms: period of heartbeats to masters and brokers, which forget clients that are
            silent for 30 s.
        admin: URL of the master's HTTP port, for `Client.admin`.
    """

    addresses: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    tls: TlsOptions | None = None
    timeout_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    heartbeat_ms: int = 13_000
    admin: str | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UsageError("A client needs the address of a master.")
        if (self.user is None) != (self.password is None):
            raise UsageError("`user` and `password` go together.", hint="Give both, or none.")
        if not TIMEOUT_MS_MIN <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise UsageError(
                f"timeout_ms is {self.timeout_ms}; it is {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}."
            )
        for name in ("connect_timeout_ms", "heartbeat_ms"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it is 1 or more.")

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<ClientOptions {hosts}, user {self.user}>"  # never the password


class Signer:
    """Proves to servers who we are.

    Signatures go with every request that has a place for them. Java sends one only at some
    requests, so that its own servers refuse it when they are told to check.

    Args:
        user: the name.
        password: the key of the signatures.
    """

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def __repr__(self) -> str:
        return f"<Signer for {self._user}>"  # never the password

    def for_master(self, token: str) -> pb.MasterCertificateInfo:
        """The proof for a master; `token` is what a master gave earlier, or empty."""
        info = credentials.authenticate_info(self._user, self._password, *_now_and_nonce())
        return pb.MasterCertificateInfo(authInfo=info, authorizedToken=token or None)

    def for_broker(self) -> str:
        """The proof for a broker: name, time, nonce and signature."""
        return credentials.broker_token(self._user, self._password, *_now_and_nonce())


def _now_and_nonce() -> tuple[int, int]:
    return int(time.time() * 1000), secrets.randbelow(credentials.NONCE_LIMIT)


class Credentials:
    """What one producer or consumer shows to masters and brokers.

    Attributes:
        visit_token: proves to brokers that a master has seen us; the master renews it.
        granted_token: a master's word for our authentication; empty when it gave none.
    """

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self.visit_token = UNDEFINED
        self.granted_token = ""

    @property
    def signs(self) -> bool:
        """Whether it has signatures, which grow old, or only tokens."""
        return self._signer is not None

    def renew(self, info: pb.MasterAuthorizedInfo) -> None:
        """Take the tokens out of a master's answer."""
        self.visit_token = info.visitAuthorizedToken
        if info.authAuthorizedToken:
            self.granted_token = info.authAuthorizedToken

    def for_master(self) -> pb.MasterCertificateInfo | None:
        """The field `authInfo` of requests to a master."""
        return None if self._signer is None else self._signer.for_master(self.granted_token)

    def for_broker(self, *, prefer_token: bool = False) -> pb.AuthorizedInfo:
        """The field `authInfo` of requests to a broker.

        Args:
            prefer_token: show the master's token instead of a signature where there is one, as
                producers do.
        """
        proof: str | None = None
        if self._signer is not None:
            use_token = prefer_token and self.granted_token
            proof = self.granted_token if use_token else self._signer.for_broker()
        return pb.AuthorizedInfo(visitAuthorizedToken=self.visit_token, authAuthorizedToken=proof)


class Cluster:
    """The way to one TubeMQ cluster.

    Attributes:
        options: the client's options.
        pool: the connections.
        masters: calls to the active master.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.pool = Pool(tls=options.tls, connect_timeout_ms=options.connect_timeout_ms)
        self.masters = Masters(options.addresses, self.pool, options.timeout_ms)

    def credentials(self) -> Credentials:
        """A fresh credentials for a producer or consumer."""
        user, password = self.options.user, self.options.password
        return Credentials(Signer(user, password) if user is not None and password else None)

    async def local_host(self) -> str:
        """Our own address, as the master sees it.

        Raises:
            UnavailableError: no master can be reached.
        """
        link = await self.masters.link()
        return link.local_host or "127.0.0.1"

    @property
    def secure(self) -> bool:
        """Whether connections are made over TLS, which decides about default ports."""
        return self.options.tls is not None


def client_id(local_host: str, kind: str = "") -> str:
    """A name for a producer, or for a consumer of the given kind, that no other has.

    >>> client_id("10.0.0.1").startswith("10.0.0.1-")
    True
    """
    parts = [
        local_host,
        str(os.getpid()),
        str(time.monotonic_ns()),
        str(secrets.randbits(31)),
        *([kind] if kind else []),
        f"{OWN_CLIENT}{__version__}",
    ]
    return "-".join(parts)


def address_number(host: str) -> int:
    """An IPv4 address as the signed number that the protocol wants; of others, the loopback's.

    >>> address_number("192.168.0.1"), address_number("::1")
    (-1062731775, 2130706433)
    """
    try:
        number = int(IPv4Address(host))
    except AddressValueError:
        number = int(IPv4Address("127.0.0.1"))
    return number - 2**32 if number >= 2**31 else number
