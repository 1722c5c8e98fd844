"""Serves the console with uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from coherer import _net as net
from coherer.console.app import running
from coherer.console.options import ConsoleOptions
from coherer.errors import UnavailableError, UsageError

STOP_S = 3
"""How long requests may take when the server stops."""


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
        try:  # uvicorn would log a failure on its own, and end the process
            bound = await net.bound_socket(options.host.strip("[]"), options.port)
        except UsageError as error:
            text = f"The console cannot start. {error.text}"
            raise UnavailableError(text, hint=error.hint) from error
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


def _url(options: ConsoleOptions, server: uvicorn.Server) -> str:
    if options.public_url is not None:
        return options.public_url
    port: int = server.servers[0].sockets[0].getsockname()[1]
    scheme = "https" if options.tls_cert is not None else "http"
    host = options.host if options.host not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host.strip('[]') else host}:{port}"
