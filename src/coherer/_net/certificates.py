"""Renews the certificate of a server's ports without a restart.

Invariants:

* New connections get the new files, on all ports with TLS alike; existing connections keep theirs.
* Files that cannot be used change nothing: the ports keep the previous certificate, and `problem`
  says why until usable files are there.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Protocol

from coherer._common.logs import Log
from coherer._net.tls import TlsOptions, fingerprint
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))


class Renewable(Protocol):
    """A port whose TLS context can be replaced."""

    def renew(self, context: ssl.SSLContext) -> None:
        """Use another context for new connections."""


class FixedContext:
    """The port of a server that keeps the TLS context with which it was opened."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def renew(self, context: ssl.SSLContext) -> None:
        """Have each new connection switch to another context at the start of its handshake."""

        def switch(connection: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
            connection.context = context

        self._context.sni_callback = switch  # also called for clients that name no server


class Certificates:
    """The TLS files of a server.

    Args:
        tls: the settings; None without TLS.
        ports: returns the ports of the server.

    Attributes:
        problem: why the files on disk are not in use; empty if they are.
    """

    def __init__(self, tls: TlsOptions | None, ports: Callable[[], Iterable[Renewable]]) -> None:
        self._tls = tls
        self._ports = ports
        self._seen = fingerprint(tls) if tls is not None else ()
        self._forced = False
        self.problem = ""

    def reload(self) -> None:
        """Read the files at the next `check` even if they look the same."""
        self._forced = True

    async def check(self) -> None:
        """Use the files if they have changed; call it every second or so."""
        if self._tls is None:
            return
        seen = fingerprint(self._tls)
        if seen == self._seen and not self._forced:
            return
        self._seen, self._forced = seen, False
        try:
            context = self._tls.server_context()
        except UsageError as error:
            self.problem = str(error)
            _log.plain.error("New TLS files are not used, the previous ones stay: %s", error)
            return
        for port in self._ports():
            port.renew(context)
        self.problem = ""
        _log.plain.warning("Read the TLS files again; new connections use them")
