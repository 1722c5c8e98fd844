"""Serves the console with uvicorn."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

from coherer.console.app import running
from coherer.console.options import ConsoleOptions
from coherer.errors import UnavailableError

STOP_S = 3
"""How long requests may take when the server stops."""

_HINTS: Final = {
    errno.EADDRINUSE: "Another process uses it: stop that process or choose another port, 0 for "
    "any free one.",
    errno.EACCES: "Choose a port above 1023.",
}


class _Server(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do not handle signals."""
        yield


@asynccontextmanager
async def served(options: ConsoleOptions) -> AsyncGenerator[str]:
    """Serve a console; yields its URL.

    Raises:
        UsageError: an option is malformed.
        UnavailableError: the server cannot listen on the address.
    """
    async with running(options) as app:
        config = uvicorn.Config(
            app,
            host=options.host.strip("[]"),
            port=options.port,
            ssl_certfile=str(options.tls_cert) if options.tls_cert is not None else None,
            ssl_keyfile=str(options.tls_key) if options.tls_key is not None else None,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,
        )
        server = _Server(config)
        bound = await _bound(options)
        serving = asyncio.create_task(server.serve([bound]), name="serve the console")
        try:
            while not server.started:
                if serving.done():
                    serving.result()
                    raise UnavailableError("The console stopped while it started.")
                await asyncio.sleep(0.01)
            yield _url(options, server)
        finally:
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)


async def _bound(options: ConsoleOptions) -> socket.socket:
    """Listen on the address.

    uvicorn would log a failure on its own, and end the process.

    Raises:
        UnavailableError: that is impossible.
    """
    host = options.host.strip("[]")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name with several addresses would give several sockets, and with port 0 several ports.
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address, family=family)
    except OSError as error:
        number = error.errno or 0
        # Numbers that are not positive come from name resolution.
        text = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise UnavailableError(
            f"The console cannot listen on {options.host}:{options.port}: {text}.",
            hint=_HINTS.get(number, "Is it an address of this machine?"),
        ) from error


def _url(options: ConsoleOptions, server: uvicorn.Server) -> str:
    if options.public_url is not None:
        return options.public_url
    port: int = server.servers[0].sockets[0].getsockname()[1]
    scheme = "https" if options.tls_cert is not None else "http"
    host = options.host if options.host not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host.strip('[]') else host}:{port}"
