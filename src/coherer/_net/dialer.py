"""Making connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar, cast

from coherer._net.connection import Connection, Receiver
from coherer._net.process import keep_freed, running_loop
from coherer._net.tls import TlsOptions
from coherer.errors import ConnectError, UsageError

FAREWELL_MS: Final = 500
"""How long a closed TLS connection waits for the peer's farewell: Java's servers send none."""

R = TypeVar("R", bound=Receiver)


async def dial(
    host: str,
    port: int,
    make: Callable[[Connection], R],
    *,
    tls: TlsOptions | None = None,
    timeout_ms: int = 3000,
) -> R:
    """Connect to a server.

    Args:
        host: its name or address.
        port: its port.
        make: gets the new connection and returns who receives its bytes.
        tls: how to make the connection secret; None for plain TCP.
        timeout_ms: for name look-up, connection and TLS handshake together.

    Returns:
        What `make` returned.

    Raises:
        ConnectError: the connection was not made in time, or not at all.
        UsageError: the port is none, or the TLS files cannot be used.
    """
    keep_freed()
    if not 0 < port <= 0xFFFF:
        raise UsageError(f"{port} is no port: they are 1 to 65535.")
    context = tls.client_context() if tls is not None else None
    loop = running_loop()
    server = f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(make),
                host,
                port,
                ssl=context,
                ssl_shutdown_timeout=None if context is None else FAREWELL_MS / 1000,
            )
    except TimeoutError:
        raise ConnectError(
            f"No connection within {timeout_ms} ms.", server=server, hint="Is the address right?"
        ) from None
    except OSError as error:  # ssl's errors and failed look-ups are such, too
        text, hint = _reason(error, secret=tls is not None)
        raise ConnectError(f"No connection: {text}.", server=server, hint=hint) from error
    except ValueError as error:  # what IDNA says of "a..b"; it may be another server's word
        raise ConnectError(f"No connection: {host!r} is no host.", server=server) from error
    return cast("R", connection.receiver)


def _reason(error: OSError, *, secret: bool) -> tuple[str, str]:
    """Why there is no connection, and what to do next."""
    text = error.strerror or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}", (
            "Trust its authority, with TlsOptions(trust=...) or SSL_CERT_FILE in the environment, "
            "and use the name that it is made for."
        )
    if isinstance(error, ssl.SSLError) or (secret and isinstance(error, ConnectionResetError)):
        return f"the TLS handshake failed{text and f': {text}'}", "Is that a port for TLS?"
    if isinstance(error, socket.gaierror):
        return text, "Is the name of the host right?"
    return text or type(error).__name__, "Is the server up, and is that its port?"
