"""The options of the console."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.masking import masked, masked_url
from coherer.errors import UsageError

PORT: Final = 8790
_PORT_MAX: Final = 0xFFFF
SAMPLE_MS: Final = 10_000
SESSION_S: Final = 8 * 3600
"""The lifetime of a session: a working day."""

DEFAULT_ACCOUNT: Final = "admin"
"""The name of the account that `console_password` belongs to."""


class ConsoleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the console listens, which cluster it shows, and who may use it.

    Args:
        url: the URL of the cluster, `rocketmq://host:port` or `tubemq://host:port`.
        admin: TubeMQ: the HTTP administration of the master, unless the master reports it.
        token: TubeMQ: the token for changes.
        user: the account in the cluster; RocketMQ's access key.
        password: its password; RocketMQ's secret key.
        host: the address to listen on.
        port: the port; 0 for any free one.
        allow_changes: whether changes are allowed; otherwise the console is read-only.
        console_password: the password of the account `admin` of the console; None without one.
        accounts: the file of the console's accounts; None without one.
        public_url: the URL that browsers use, if it differs from the address to listen on.
        tls_cert: the file of a certificate chain; None for plain HTTP.
        tls_key: the file of its key.
        sample_ms: the interval of the samples of lag and rates.

    Raises:
        UsageError: the address is not local and there is no password, or options contradict
            each other.
    """

    url: str
    admin: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    allow_changes: bool = False
    console_password: str | None = None
    accounts: Path | None = None
    public_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    sample_ms: int = SAMPLE_MS

    def __post_init__(self) -> None:
        if not (self.is_local or self.has_login):
            raise UsageError(
                f"{self.host} can be reached from other machines, and the console has no password.",
                hint="Set COHERER_CONSOLE_PASSWORD or --accounts, or listen on 127.0.0.1.",
            )
        if self.console_password is not None and not self.console_password:
            raise UsageError("The password of the console is empty.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("A certificate needs its key, and a key its certificate.")
        if not 0 <= self.port <= _PORT_MAX:  # uvicorn would use its lowest 16 bits
            raise UsageError(f"{self.port} is not a valid port: ports are 0 to {_PORT_MAX}.")
        if self.sample_ms < 1:
            raise UsageError(f"The sampling interval must be 1 ms or more, not {self.sample_ms}.")
        schemes = ("http://", "https://")
        if self.public_url is not None and not self.public_url.startswith(schemes):
            raise UsageError(f"{self.public_url!r} is not the URL of a console.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def has_login(self) -> bool:
        """Whether users have to log in."""
        return self.console_password is not None or self.accounts is not None

    @property
    def secure(self) -> bool:
        """Whether browsers reach the console over TLS."""
        return self.tls_cert is not None or (self.public_url or "").startswith("https://")

    @property
    def cluster(self) -> str:
        """The URL of the cluster as shown to users."""
        return masked_url(self.url)

    def __repr__(self) -> str:
        return masked(self, "token", "password", "console_password")
